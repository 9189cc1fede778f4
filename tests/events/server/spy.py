"""A user of the log's server who tries things, and what it tries."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.msg import Msg
from tests.events.helpers import eventually, generated, node_fact, open_writer, private

from claimlet.events.jetstream.connection import Connection, Events
from claimlet.events.server.process import EmbeddedServer

__all__ = ["API", "NODE", "Spy", "consumer", "holds_secret", "spy"]

API = "$JS.API."
NODE = "node-a_example"
SECRET = b"hunter2"


class Spy:
    """A user of the server who tries things and listens to everything it may."""

    def __init__(self, connection: Connection, problems: list[str]) -> None:
        self.connection = connection
        self.problems = problems
        self.heard: list[Msg] = []

    async def _hear(self, message: Msg) -> None:
        self.heard.append(message)

    async def is_refused(self, subject: str, body: object = None) -> bool:
        """Publish to *subject* and return whether the server refuses that."""
        self.problems.clear()
        data = b"" if body is None else json.dumps(body).encode()
        await self.connection.publish(subject, data, reply=self.connection.client.new_inbox())
        return await self._has_problem()

    async def is_deaf(self, subject: str) -> bool:
        """Subscribe to *subject* and return whether the server refuses that."""
        self.problems.clear()
        await self.connection.subscribe(subject, self._hear)
        return await self._has_problem()

    async def ask(self, subject: str, body: object) -> Msg:
        """Return the answer to *body*."""
        return await self.connection.request(subject, json.dumps(body).encode())

    async def pull(self, consumer: str, count: int) -> list[Msg]:
        """Return up to *count* messages of *consumer*."""
        inbox = self.connection.client.new_inbox()
        self.heard.clear()
        await self.connection.subscribe(inbox, self._hear)
        request = json.dumps({"batch": count, "no_wait": True}).encode()
        await self.connection.publish(
            f"{API}CONSUMER.MSG.NEXT.EVENTS.{consumer}", request, reply=inbox
        )
        await eventually(
            lambda: (
                len(self.heard) >= count
                or any((message.headers or {}).get("Status") for message in self.heard)
            )
        )
        return [m for m in self.heard if not (m.headers or {}).get("Status")]

    async def _has_problem(self) -> bool:
        # What the server refuses it says before it answers a ping that comes after it; the client's
        # first one overtakes what waits to be sent.
        await self.connection.client.flush()
        await self.connection.client.flush()
        return any("permissions violation" in problem for problem in self.problems)


@asynccontextmanager
async def spy(server: EmbeddedServer, user: str) -> AsyncIterator[Spy]:
    """Yield *user* as a spy, on a log with public and private facts."""
    async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
        if not log.last_sequence:
            await log.append([generated(), private(), node_fact(), private()])
    problems: list[str] = []
    connection = await Connection.open(
        server.address(user), name="spy", events=Events(problem=problems.append)
    )
    try:
        yield Spy(connection, problems)
    finally:
        await connection.close()


def consumer(name: str, **config: Any) -> dict[str, Any]:
    """Return a request for a consumer."""
    config = {"name": name, "ack_policy": "none", "deliver_policy": "all", **config}
    return {"stream_name": "EVENTS", "config": config, "action": "create"}


def holds_secret(messages: Sequence[Msg]) -> bool:
    """Return whether one of *messages* shows a private fact."""
    return any(SECRET in message.data for message in messages)
