"""Helpers for tests of the log: a server of its own, writers on it, facts to append."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from claimlet.adapters.world import RealWorld
from claimlet.events.address import ServerAddress
from claimlet.events.facts import ConfigRecorded, Generated, PodFinished, SourceSynced
from claimlet.events.jetstream.connection import Connection
from claimlet.events.jetstream.log import JetStreamLog, LogSettings, open_log
from claimlet.events.jetstream.pipe import PipeSettings
from claimlet.events.jetstream.reader import replay
from claimlet.events.jetstream.start import FULL_REPLAY_FACTS_MAX
from claimlet.events.log import Snapshots
from claimlet.events.record import Draft, Record, Stamp
from claimlet.events.server import keys
from claimlet.events.server.locate import locate
from claimlet.events.server.process import EmbeddedServer, ServerSettings
from claimlet.events.values import ClaimRef, ClaimUid, PodRef, PodUid

__all__ = [
    "NODE",
    "PLAIN_TEMPLATE",
    "READER_TEMPLATE",
    "TEMPLATE",
    "eventually",
    "everything",
    "freeze",
    "generated",
    "mounted",
    "node_fact",
    "open_writer",
    "pod_fact",
    "private",
    "settings_in",
    "supervised",
]

NODE = "node-a.example"
_TEMPLATES = Path(__file__).parents[2] / "config/nats"
TEMPLATE = (_TEMPLATES / "server.conf").read_text("utf-8")
READER_TEMPLATE = (_TEMPLATES / "namespace-reader.conf").read_text("utf-8")

#: A server as a developer starts one: it asks nobody who they are.
PLAIN_TEMPLATE = """
server_name: {{ server_name }}
listen: "127.0.0.1:{{ port }}"
jetstream { store_dir: {{ store_dir }} }
"""


def settings_in(directory: Path, **changes: object) -> ServerSettings:
    """Return settings for a server in *directory*."""
    settings = ServerSettings(
        state_dir=directory, node=NODE, program=locate(environ=os.environ), template=TEMPLATE
    )
    return msgspec.structs.replace(settings, **changes)


def generated(name: str = "c", *, text: str = "") -> Draft:
    """Return a claim fact about the claim *name*."""
    ref = ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace="team-a", name=name)
    return Draft(fact=Generated(pod_claim=text), claim=ref)


def private(name: str = "c", *, config: bytes = b'{"password":"hunter2"}') -> Draft:
    """Return a private fact about the claim *name*."""
    ref = ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace="team-a", name=name)
    return Draft(fact=ConfigRecorded(config=msgspec.Raw(config)), claim=ref)


def pod_fact(name: str = "p") -> Draft:
    """Return a fact about the pod *name*."""
    ref = PodRef(uid=PodUid(f"uid-{name}"), namespace="team-a", name=name)
    return Draft(fact=PodFinished(phase="Succeeded"), pod=ref)


def node_fact() -> Draft:
    """Return a fact about the node."""
    return Draft(fact=SourceSynced(source="control"))


async def eventually(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait until *condition* holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 -- processes and files announce nothing
            await asyncio.sleep(0.005)


async def freeze(pid: int) -> None:
    """Stop the process *pid* in all its threads; SIGCONT lets it go on."""
    os.kill(pid, signal.SIGSTOP)
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    await eventually(lambda: all(b") T" in (path / "stat").read_bytes() for path in threads))


@contextmanager
def mounted(path: Path, *, options: str) -> Iterator[None]:
    """Mount a small file system on *path*, or skip the test."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "claimlet-test", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@asynccontextmanager
async def supervised(server: EmbeddedServer) -> AsyncIterator[EmbeddedServer]:
    """Start *server* again whenever it dies."""
    task = asyncio.create_task(server.supervise())
    try:
        yield server
    finally:
        task.cancel()
        await asyncio.wait([task])


class OwnWorld(RealWorld):
    """The real world, whose tasks end in `end`, so that errors of a test's body come out bare."""

    def __init__(self) -> None:
        super().__init__()
        self._running: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run *work* until `end`."""
        self._running.append(asyncio.create_task(work, name=name))
        return self._running[-1]

    async def end(self) -> None:
        """End all tasks; raise what one of them has raised."""
        for task in self._running:
            task.cancel()
        for result in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


@asynccontextmanager
async def open_writer(
    address: ServerAddress,
    *,
    admin: ServerAddress | None = None,
    fold: Callable[[Record], None] = lambda _: None,
    writer: str = "writer-1",
    pipe: PipeSettings | None = None,
    stream_bytes_max: int = 64 * 1024**2,
    snapshots: Snapshots | None = None,
    full_replay_facts_max: int = FULL_REPLAY_FACTS_MAX,
) -> AsyncIterator[JetStreamLog]:
    """Open the log at *address*, in a world of its own."""
    world = OwnWorld()
    try:
        log = await open_log(
            address,
            admin=admin or address,
            stamp=Stamp(node=NODE, boot="boot-1", writer=writer),
            fold=fold,
            world=world,
            snapshots=snapshots,
            settings=LogSettings(
                pipe=pipe or PipeSettings(append_timeout_seconds=20.0, ack_timeout_seconds=0.5),
                stream_bytes_max=stream_bytes_max,
                full_replay_facts_max=full_replay_facts_max,
            ),
        )
        async with log:
            yield log
    finally:
        await world.end()


async def everything(server: EmbeddedServer) -> Sequence[Record]:
    """Return what the log holds, from a checked replay."""
    connection = await Connection.open(server.address(keys.WRITER), name="test")
    try:
        return [record async for record, _ in replay(connection, NODE, world=RealWorld())]
    finally:
        await connection.close()
