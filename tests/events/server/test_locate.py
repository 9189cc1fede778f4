"""Finding the nats-server program."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from claimlet.events.errors import LogSetupError
from claimlet.events.server import locate as module
from claimlet.events.server.locate import locate


def program(directory: Path, *, mode: int = 0o755) -> Path:
    """Put a program into *directory*."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "nats-server"
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


class TestLocate:
    def test_finds_the_one_that_was_installed(self) -> None:
        """`pip install` alone is enough, also where no PATH leads there."""
        assert locate(environ={"PATH": ""}).name == "nats-server"

    def test_takes_the_environment_first(self, tmp_path: Path) -> None:
        """Who names one in the environment means that one."""
        first, second = program(tmp_path / "a"), program(tmp_path / "b")

        assert locate(str(second), environ={"CLAIMLET_NATS_SERVER": str(first)}) == first

    def test_takes_the_setting_next(self, tmp_path: Path) -> None:
        """The setting goes before what is installed."""
        named = program(tmp_path)

        assert locate(str(named), environ={}) == named

    @pytest.mark.parametrize("mode", [None, 0o644])
    def test_never_takes_another_than_the_one_named(self, tmp_path: Path, mode: int | None) -> None:
        """A name that leads nowhere, or to no program, is an error, not a suggestion."""
        named = tmp_path / "nats-server" if mode is None else program(tmp_path, mode=mode)

        with pytest.raises(LogSetupError, match="setting log"):
            locate(str(named), environ=os.environ)

    def test_takes_the_one_on_path_at_last(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A system package will do."""
        monkeypatch.setattr(module, "DISTRIBUTION", "claimlet-has-no-such-distribution")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere/python"))
        named = program(tmp_path / "bin")

        assert locate(environ={"PATH": str(tmp_path / "bin")}) == named

    def test_names_every_place_that_it_tried(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where there is none, the error says what to do, and the exit code is 4."""
        monkeypatch.setattr(module, "DISTRIBUTION", "claimlet-has-no-such-distribution")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere/python"))

        with pytest.raises(LogSetupError) as caught:
            locate(environ={"PATH": str(tmp_path)})

        assert str(tmp_path / "elsewhere/nats-server") in str(caught.value)
        assert "$PATH" in str(caught.value)
        assert "pip install" in caught.value.hint
        assert caught.value.exit_code == 4
