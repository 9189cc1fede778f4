"""claimlet: an event-sourced node manager for DRA claims; the log is the checkpoint."""

from __future__ import annotations

__version__ = "0.1.0"
