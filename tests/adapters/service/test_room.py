"""A disk that fills up under the running service: new pods are refused first, no end is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.cli.node import Node, Ran
from tests.adapters.cli.test_pod import told
from tests.adapters.service_process import ServiceProcess, eventually, short_directory
from tests.events.helpers import mounted

from claimlet.adapters.service.room import Room, RoomSettings
from claimlet.adapters.world import RealWorld
from claimlet.events.jetstream.log import Usage

pytestmark = pytest.mark.damage

_BALLAST_BYTES = 4 * 1024**2


@pytest.fixture
def node() -> Iterator[Node]:
    """Give a node with its state on a small disk of its own, and one prepared pod."""
    environ = {
        "CLAIMLET_LOG__BALLAST_BYTES": str(_BALLAST_BYTES),
        "CLAIMLET_PREPARE__RETRY_MAX_SECONDS": "0.4",
    }
    with (
        short_directory() as directory,
        mounted(directory / "state", options="size=24m,mode=700"),
        ServiceProcess(directory, environ=environ) as service,
    ):
        node = Node(service, service.driver(Node.driver_name))
        node.prepared("old", "old-a")
        eventually(ballast_of(node).exists, "the ballast is there")
        yield node


def ballast_of(node: Node) -> Path:
    return node.service.state_dir / "ballast"


def fill(node: Node, *, leave_bytes: int) -> None:
    """Have the disk filled up by somebody else."""
    status = os.statvfs(node.service.state_dir)
    size = status.f_bavail * status.f_frsize - leave_bytes
    descriptor = os.open(node.service.state_dir / "filler", os.O_WRONLY | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size)
    os.close(descriptor)


def make_room(node: Node) -> None:
    (node.service.state_dir / "filler").unlink()


def ask(node: Node, pod: str, *more: str) -> Ran:
    """Ask for a new pod."""
    path = node.manifest(pod, [f"{pod}-a"])
    return node.call("pod", "prepare", "-f", str(path), *more)


def said(node: Node, event: str) -> bool:
    return f'"event":"{event}"' in node.service.said()


class TestDisk:
    @pytest.mark.field(116)
    def test_that_is_nearly_full_takes_no_new_pod(self, node: Node) -> None:
        """New pods are refused with the reason, old ones end; with room again all goes on."""
        fill(node, leave_bytes=_BALLAST_BYTES // 2)
        eventually(lambda: said(node, "log_nearly_full"), "it is noticed")
        error = told(ask(node, "new"), 4)
        ended = node.call("pod", "unprepare", "ml/old", "--wait")
        make_room(node)
        eventually(lambda: said(node, "log_has_room"), "the room is noticed")

        assert "no new pod is taken: the disk of" in error
        assert ended.code == 0
        assert ask(node, "new", "--wait").code == 0

    @pytest.mark.field(116)
    def test_that_is_full_loses_no_end(self, node: Node) -> None:
        """The ballast makes way for what ends the old pod; what was acknowledged is there."""
        fill(node, leave_bytes=0)
        ended = node.call("pod", "unprepare", "ml/old", "--wait", "--timeout", "30s")
        given_up = said(node, "ballast_given_up")
        make_room(node)
        eventually(ballast_of(node).exists, "the ballast is there again")
        eventually(lambda: said(node, "log_has_room"), "the room is noticed")
        asked = ask(node, "new", "--wait")
        node.service.crash()

        assert given_up
        assert ended.code == 0, ended
        assert asked.code == 0, asked
        states = {name: claim.state for name, claim in node.service.claims().items()}
        assert states == {"ml/old-a": "unprepared", "ml/new-a": "prepared"}
        assert len(node.driver.calls("unprepare", "old-a")) == 1


class _Log:
    """A log that is as full as it is told (a real one takes its time to fill)."""

    def __init__(self, used_bytes: int) -> None:
        self.used = Usage(used_bytes=used_bytes, bytes_max=1000)
        self.is_available = True

    async def usage(self) -> Usage:
        return self.used


class _Gate:
    no_room = ""


class _Server:
    restarts = 0

    async def restart(self) -> None:
        self.restarts += 1


class TestStream:
    @pytest.mark.parametrize(("used", "is_full"), [(0, False), (900, False), (901, True)])
    async def test_that_is_nearly_full_takes_no_new_pod(
        self, tmp_path: Path, used: int, is_full: bool
    ) -> None:
        """The stream's own bound counts as the disk's does, from nine tenths on."""
        gate = _Gate()
        room = Room(
            RoomSettings(state_dir=tmp_path, ballast_bytes=4096),
            world=RealWorld(),
            gate=gate,
            log=_Log(used),
            server=_Server(),
        )
        await room.look()

        assert bool(gate.no_room) is is_full
        assert not is_full or "90%" in gate.no_room

    async def test_needs_no_ballast(self, tmp_path: Path) -> None:
        """Without ballast no file is made, and nothing else changes."""
        gate = _Gate()
        room = Room(
            RoomSettings(state_dir=tmp_path, ballast_bytes=0),
            world=RealWorld(),
            gate=gate,
            log=_Log(0),
            server=_Server(),
        )
        await room.look()

        assert gate.no_room == ""
        assert list(tmp_path.iterdir()) == []
