"""Run the command line as ``python -m claimlet``."""

from __future__ import annotations

from .adapters.cli import main

main()
