"""Which sockets are seen, and which paths can be dialled."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from claimlet.adapters.plugins.sockets import (
    PATH_BYTES_MAX,
    SOCKETS_MAX,
    SocketPathError,
    check_directory,
    check_socket_path,
    find_sockets,
)


@pytest.fixture
def binder() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bind(stack: ExitStack, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))


class TestFinding:
    """Sockets below the directory, and nothing else."""

    def test_subdirectories(self, root: Path, binder: ExitStack) -> None:
        """Sockets in subdirectories are found too."""
        for name in ("a.sock", "sub/b.sock", "sub/sub/c.sock"):
            bind(binder, root / name)

        assert {Path(p).name for p in find_sockets(root)} == {"a.sock", "b.sock", "c.sock"}

    def test_ignored(self, root: Path, binder: ExitStack) -> None:
        """Dot names, files, broken links and what lies in hidden folders are no drivers."""
        for name in (".a.sock", ".hidden/b.sock", "seen.sock"):
            bind(binder, root / name)
        (root / "file.sock").touch()
        (root / "broken.sock").symlink_to(root / "nowhere")
        (root / "loop").symlink_to(root)

        assert list(find_sockets(root)) == [str(root / "seen.sock")]

    def test_linked_socket(self, root: Path, binder: ExitStack) -> None:
        """A link to a socket is that socket, and is another one when it is replaced."""
        bind(binder, root / "run" / "d.sock")
        (root / "registry").mkdir()
        (root / "registry" / "d.sock").symlink_to(root / "run" / "d.sock")
        before = find_sockets(root / "registry")
        (root / "run" / "d.sock").unlink()
        bind(binder, root / "run" / "d.sock")

        after = find_sockets(root / "registry")

        assert before.keys() == after.keys()
        assert before != after

    def test_replaced(self, root: Path, binder: ExitStack) -> None:
        """A socket that was replaced at its path has another key."""
        bind(binder, root / "d.sock")
        before = find_sockets(root)
        (root / "d.sock").unlink()
        bind(binder, root / "d.sock")

        assert find_sockets(root) != before

    def test_bounded(self, root: Path, binder: ExitStack) -> None:
        """A directory full of sockets, or a deep one, does not grow without end."""
        for number in range(SOCKETS_MAX + 5):
            bind(binder, root / f"{number:04}.sock")
        bind(binder, root / "1/2/3/4/5/6/deep.sock")

        assert len(find_sockets(root)) == SOCKETS_MAX

    def test_missing(self, root: Path) -> None:
        """A directory that is not there is an error, not an empty one."""
        with pytest.raises(FileNotFoundError):
            find_sockets(root / "nowhere")


class TestPaths:
    """The kernel's limit is told before it bites."""

    def test_longest(self) -> None:
        """A path of 107 bytes works, and one of 108 does not, whatever upstream's helper allows."""
        check_socket_path("/" + "x" * (PATH_BYTES_MAX - 1))
        with pytest.raises(SocketPathError, match="108 bytes") as caught:
            check_socket_path("/" + "x" * PATH_BYTES_MAX)

        assert "shorter" in caught.value.hint

    def test_root_without_room(self) -> None:
        """A directory in which no socket could be dialled is refused."""
        check_directory(Path("/" + "x" * 90))
        with pytest.raises(SocketPathError):
            check_directory(Path("/" + "x" * 100))
