"""Seeds: made once, private, never mended."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from claimlet.events.errors import LogSetupError
from claimlet.events.server.keys import USERS, check_seed_file, ensure_keys, seed_file


class TestEnsureKeys:
    def test_makes_a_seed_for_every_user(self, tmp_path: Path) -> None:
        """Each user has a key of its own, which only its owner can read."""
        public = ensure_keys(tmp_path / "keys")

        assert set(public) == set(USERS)
        assert len(set(public.values())) == len(USERS)
        for user in USERS:
            assert stat.S_IMODE(seed_file(tmp_path / "keys", user).stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700

    def test_keeps_what_is_there(self, tmp_path: Path) -> None:
        """A second start has the same users; nothing else is left in the directory."""
        public = ensure_keys(tmp_path / "keys")

        assert ensure_keys(tmp_path / "keys") == public
        assert len(list((tmp_path / "keys").iterdir())) == len(USERS)

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
    def test_refuses_a_seed_that_others_can_read(self, tmp_path: Path, mode: int) -> None:
        """It may be known; the hint says what to do."""
        ensure_keys(tmp_path)
        seed_file(tmp_path, "writer").chmod(mode)

        with pytest.raises(LogSetupError, match=r"writer\.nk can be read or changed") as caught:
            ensure_keys(tmp_path)

        assert "chmod 600" in caught.value.hint

    @pytest.mark.parametrize(
        "content", [b"", b"SU", b"not a seed", b"\xff\0", b"S" * 58, b"1" * 200, b"SUA" + b"A" * 90]
    )
    def test_refuses_a_file_that_holds_no_seed(self, tmp_path: Path, content: bytes) -> None:
        """Whatever lies there, the error names the file."""
        ensure_keys(tmp_path)
        seed_file(tmp_path, "reader").write_bytes(content)

        with pytest.raises(LogSetupError, match=r"reader\.nk holds"):
            ensure_keys(tmp_path)

    def test_refuses_a_directory_that_others_can_write_to(self, tmp_path: Path) -> None:
        """Somebody could put keys of their own there."""
        (tmp_path / "keys").mkdir()
        (tmp_path / "keys").chmod(0o777)

        with pytest.raises(LogSetupError, match="others can write"):
            ensure_keys(tmp_path / "keys")


class TestCheckSeedFile:
    def test_says_that_there_is_none(self, tmp_path: Path) -> None:
        """A seed file that a setting names must exist."""
        with pytest.raises(LogSetupError, match="no such file"):
            check_seed_file(tmp_path / "writer.nk")
