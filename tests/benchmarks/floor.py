"""
The floor: what a pod's life costs at the least, without any of claimlet's own work.

The same gRPC calls with bytes made before, the same facts appended in the same groups with the same
fence to a server with the same settings, and one NATS request per control call, one after another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import grpc.aio
import nats
from nats.errors import NoRespondersError

from claimlet.adapters.plugins.wire import V1, encode_claims
from claimlet.adapters.service.addresses import server_settings
from claimlet.config.settings import Settings
from claimlet.events.address import ServerAddress
from claimlet.events.jetstream.connection import Connection
from claimlet.events.jetstream.stream import create_stream
from claimlet.events.record import Record, encode
from claimlet.events.server import keys
from claimlet.events.server.process import EmbeddedServer
from claimlet.events.subjects import subject
from claimlet.events.values import ClaimRef, ClaimUid

from .processes import Processes

__all__ = ["Floor"]

_CLAIM = ClaimRef(uid=ClaimUid("floor-1"), namespace="bench", name="floor")
Group = Sequence[tuple[str, bytes]]


class Floor:
    """Bare calls, bare appends, bare requests; use it as `async with`."""

    def __init__(self, settings: Settings, endpoint: Path, *, processes: Processes) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._processes = processes
        self._stack = AsyncExitStack()
        self._last = 0
        self._number = 0
        self._acks: dict[int, asyncio.Future[bytes]] = {}

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        server = await enter(EmbeddedServer(server_settings(self._settings)))
        admin = await Connection.open(server.address(keys.ADMIN), name="floor admin")
        await create_stream(admin, self._settings.node, bytes_max=512 * 1024**2)
        await admin.close()
        self._writer = await self._connect(server.address(keys.WRITER))
        self._inbox = self._writer.new_inbox()
        await self._writer.subscribe(f"{self._inbox}.*", cb=self._acknowledge)
        await self._start_responder(server.address(keys.SERVICE))
        self._operator = await self._connect(server.address(keys.OPERATOR))
        channel = grpc.aio.insecure_channel(
            f"unix:{self._endpoint}", options=[("grpc.default_authority", "localhost")]
        )
        await enter(channel)
        self._prepare: Any = channel.unary_unary(f"/{V1.service}/NodePrepareResources")
        self._unprepare: Any = channel.unary_unary(f"/{V1.service}/NodeUnprepareResources")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _connect(self, address: ServerAddress) -> Any:
        connection = await nats.connect(
            address.url, nkeys_seed=str(address.seed_file), inbox_prefix=address.inbox_prefix
        )
        self._stack.push_async_callback(connection.close)
        return connection

    async def _start_responder(self, address: ServerAddress) -> None:
        arguments = ["-m", "tests.benchmarks.responder", address.url, str(address.seed_file)]
        self._processes.start(
            [*arguments, address.inbox_prefix, self._settings.node],
            output=self._settings.state_dir / "responder.log",
        )

    async def _acknowledge(self, message: Any) -> None:
        future = self._acks.pop(int(message.subject.rpartition(".")[2]), None)
        if future is not None:
            future.set_result(message.data)

    async def append(self, group: Group) -> None:
        """Append *group* bare: fenced, pipelined, every record acknowledged."""
        futures = []
        for subject_, data in group:
            self._number += 1
            future = asyncio.get_running_loop().create_future()
            self._acks[self._number] = future
            futures.append(future)
            headers = {
                "Nats-Msg-Id": f"floor-{self._number}",
                "Nats-Expected-Last-Sequence": str(self._last),
                "Claimlet-Chain": "0" * 64,
            }
            self._last += 1
            await self._writer.publish(
                subject_, data, reply=f"{self._inbox}.{self._number}", headers=headers
            )
        for answer in await asyncio.gather(*futures):
            assert b'"error"' not in answer, answer

    async def request(self, data: bytes) -> None:
        """Make one NATS request to a responder in another process."""
        await self._operator.request(f"claimlet.{self._settings.node}.floor", data, timeout=5)

    async def life(self, groups: Sequence[Group], request: bytes) -> float:
        """Return the seconds that one pod's life takes bare, one step after another."""
        claims = encode_claims(V1, [_CLAIM])
        begin = time.perf_counter()
        await self.request(request)
        await self.append(groups[0])
        await self._prepare(claims)
        await self.append(groups[1])
        await self.request(request)
        await self.append(groups[2])
        await self._unprepare(claims)
        await self.append(groups[3])
        return time.perf_counter() - begin

    async def ready(self) -> None:
        """Wait until the responder answers."""
        for _ in range(100):
            try:
                await self.request(b"{}")
            except (NoRespondersError, TimeoutError):
                await asyncio.sleep(0.05)
            else:
                return
        raise TimeoutError("the responder does not answer")


def group_of(records: Sequence[Record]) -> Group:
    """Return *records* as subject and bytes."""
    return [(subject(record), encode(record)) for record in records]
