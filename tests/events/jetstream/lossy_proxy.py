"""
A fake network that loses what JetStream acknowledges: the only fake in the log's tests.

A real server behind it stores every record; on the way back a message is dropped, or the greeting
changed, as the test says.  Everything else passes untouched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["LossyProxy"]


class LossyProxy:
    """Stands before the server on *port*; `url` leads through it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        #: Says of each message from the server whether it is lost.
        self.loses: Callable[[bytes], bool] = lambda _: False
        #: Changes the server's greeting.
        self.greeting: Callable[[bytes], bytes] = lambda line: line
        self.lost_count = 0

    @property
    def url(self) -> str:
        """Return the address of the proxy."""
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        while self._pipes:
            await asyncio.wait(self._pipes)

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, forth}
        for pipe in (self._pass(reader, forth), self._filter(back, writer)):
            task = asyncio.create_task(pipe)
            self._pipes.add(task)
            task.add_done_callback(self._pipes.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self._end(writer)

    async def _filter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                if line.startswith((b"MSG ", b"HMSG ")):
                    body = await reader.readexactly(int(line.split()[-1]) + 2)
                    if self.loses(line + body):
                        self.lost_count += 1
                        continue
                    line += body
                elif line.startswith(b"INFO "):
                    line = self.greeting(line)
                writer.write(line)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        self._writers.discard(writer)
