"""Locks that only one process can hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from claimlet.events.errors import LockHeldError, LogSetupError
from claimlet.events.server.locks import hold

HOLDER = """
import sys
from pathlib import Path
from claimlet.events.server.locks import hold
hold(Path(sys.argv[1]), owns="it")
print("held", flush=True)
sys.stdin.read()
"""


class TestHold:
    def test_names_the_holder(self, tmp_path: Path) -> None:
        """Who is second hears who is first, and exits with 6."""
        path = tmp_path / "service.lock"
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()

            with pytest.raises(
                LockHeldError, match=f"process {holder.pid} owns the root"
            ) as caught:
                hold(path, owns="the root")

            holder.kill()
        assert caught.value.exit_code == 6
        hold(path, owns="the root").release()

    def test_can_be_taken_again_after_it_was_left(self, tmp_path: Path) -> None:
        """Nothing stale stays behind."""
        for _ in range(2):
            with hold(tmp_path / "lock", owns="it"):
                pass

    def test_is_kept_by_a_child_that_inherits_it(self, tmp_path: Path) -> None:
        """The lock lives as long as the child, whatever its parent does."""
        lock = hold(tmp_path / "lock", owns="it")
        with subprocess.Popen(
            [sys.executable, "-c", "input()"],
            stdin=subprocess.PIPE,
            pass_fds=(lock.descriptor,),
        ) as child:
            lock.release()

            with pytest.raises(LockHeldError):
                hold(tmp_path / "lock", owns="it")

            child.kill()
        hold(tmp_path / "lock", owns="it").release()

    @pytest.mark.parametrize("path", ["no/such/lock", "file/lock"])
    def test_says_where_it_cannot_be_made(self, tmp_path: Path, path: str) -> None:
        """A directory that is none is an error of the setup."""
        (tmp_path / "file").touch()

        with pytest.raises(LogSetupError, match="cannot be used"):
            hold(tmp_path / path, owns="it")
