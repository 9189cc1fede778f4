"""The systemd unit fits what the service does."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from claimlet.adapters.cli.lazy import COMMANDS
from claimlet.config import settings

UNIT = Path(settings.__file__).parent / "systemd" / "claimlet.service"


@pytest.fixture
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text("utf-8"))
    return parser


class TestUnit:
    def test_starts_the_service(self, unit: configparser.ConfigParser) -> None:
        """The unit runs a command that exists, and waits for its READY=1."""
        program, command = unit["Service"]["ExecStart"].split()

        assert program.endswith("/claimlet")
        assert command in COMMANDS
        assert unit["Service"]["Type"] == "notify"

    def test_keeps_the_state_where_the_default_is(self, unit: configparser.ConfigParser) -> None:
        """As root the state directory is the one that systemd makes, for its owner only."""
        assert unit["Service"]["StateDirectory"] == "claimlet"
        assert unit["Service"]["StateDirectoryMode"] == "0700"

    def test_lets_the_service_end_its_log_server(self, unit: configparser.ConfigParser) -> None:
        """SIGTERM goes to the service alone, which ends the log's server last."""
        assert unit["Service"]["KillMode"] == "mixed"

    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
    def test_systemd_accepts_it(self) -> None:
        """Its verifier misses nothing but the program, which is not installed there."""
        process = subprocess.run(
            ["systemd-analyze", "verify", str(UNIT)], capture_output=True, text=True, check=False
        )

        wrong = [line for line in process.stderr.splitlines() if UNIT.name in line]
        assert [line for line in wrong if "/opt/claimlet" not in line] == []
