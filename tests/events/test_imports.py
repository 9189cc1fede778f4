"""What an import costs: the client of the log is not paid for by whoever does not open the log."""

from __future__ import annotations

import subprocess
import sys

import pytest


class TestImport:
    @pytest.mark.parametrize(
        "module",
        [
            "claimlet.events",
            "claimlet.events.log",
            "claimlet.events.jetstream",
            "claimlet.events.server.process",
            "claimlet.events.server.reading",
            "claimlet.engine.ports",
        ],
    )
    def test_brings_no_nats_client(self, module: str) -> None:
        """The client takes a fifth of a second; a command that shows its help does not wait."""
        code = f"import sys, {module}; sys.exit('nats' in sys.modules)"

        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
