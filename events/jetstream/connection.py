"""
A connection to the log's server, kept up for ever, that raises this package's errors only.

nats-py reports a refused permission as a timeout and says why elsewhere; here the reason comes with
the error.  It buffers what is published while the server is away; here that is off, because what
was sent under an old fence must never be sent by itself later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Self, TypeVar

import msgspec
from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from ..address import ServerAddress
from ..errors import LogSetupError, LogUnavailableError

__all__ = ["ApiError", "Connection", "Events", "status_of"]

_Answer = TypeVar("_Answer", bound="Answer")
_Result = TypeVar("_Result")

_CONNECT_SECONDS = 2
_RECONNECT_SECONDS = 0.2
_REQUEST_SECONDS = 2.0
_PING_SECONDS = 5

#: What breaks a connection attempt or a request.  nats-py asserts where its own transport went away
#: under it, as when a server dies in the middle of the greeting.
_FAULTS = (OSError, TimeoutError, nats_errors.Error, AssertionError)


class ApiError(msgspec.Struct, frozen=True):
    """Why JetStream refused."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what the JetStream API answers."""

    error: ApiError | None = None


class Events(msgspec.Struct, frozen=True):
    """What a connection tells its owner; none of these may block."""

    lost: Callable[[str], None] = lambda _: None
    back: Callable[[], None] = lambda: None
    problem: Callable[[str], None] = lambda _: None


class Connection:
    """A connection as one user; it reconnects by itself until it is closed."""

    def __init__(self, address: ServerAddress, *, name: str, events: Events) -> None:
        self._address = address
        self._name = name
        self._events = events
        self._client: Client | None = None
        self._problem = ""

    @classmethod
    async def open(cls, address: ServerAddress, *, name: str, events: Events | None = None) -> Self:
        """
        Connect to *address*.

        Raises:
            LogSetupError: The server does not let this user in.
            LogUnavailableError: There is no server.
        """
        connection = cls(address, name=name, events=events or Events())
        await connection.revive()
        return connection

    @property
    def client(self) -> Client:
        """Return the client; another one after `revive`."""
        assert self._client is not None
        return self._client

    @property
    def is_connected(self) -> bool:
        """Return whether the server can be spoken to now."""
        return self.client.is_connected

    @property
    def address(self) -> ServerAddress:
        """Return where this connection leads."""
        return self._address

    def retarget(self, url: str) -> None:
        """Reconnect to *url* from now on: the server may come back on another port."""
        self._address = msgspec.structs.replace(self._address, url=url)
        if not self.client.is_closed:
            self.client.set_server_pool([url])

    async def revive(self) -> None:
        """
        Make a new connection; subscriptions have to be made again.

        Raises:
            LogSetupError: The server does not let this user in.
            LogUnavailableError: There is no server.
        """
        client = Client()

        async def lost() -> None:
            if client is self._client:
                self._events.lost("the connection to the log's server is lost")

        async def back() -> None:
            if client is self._client:
                self._problem = ""
                self._events.back()

        await self._connect(client, disconnected_cb=lost, reconnected_cb=back)
        # A first connection fails soon; one that was there is waited for without end.
        client.options["allow_reconnect"] = True
        client.options["max_reconnect_attempts"] = -1
        old, self._client = self._client, client
        if old is not None:
            await _close(old)

    async def _connect(self, client: Client, **callbacks: Any) -> None:
        """Connect *client*, or leave nothing of it."""
        address = self._address
        options: dict[str, Any] = {}
        if address.seed_file is not None:
            options["nkeys_seed"] = str(address.seed_file)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(_close, client)
            try:
                await _heed(
                    client.connect(
                        address.url,
                        name=self._name,
                        inbox_prefix=address.inbox_prefix,
                        error_cb=self._on_error,
                        connect_timeout=_CONNECT_SECONDS,
                        reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type]
                        ping_interval=_PING_SECONDS,
                        allow_reconnect=False,
                        max_reconnect_attempts=1,
                        pending_size=0,
                        **callbacks,
                        **options,
                    )
                )
            except _FAULTS as error:
                raise self._translate(error, "cannot connect") from error
            undo.pop_all()

    async def close(self) -> None:
        """Close the connection for good."""
        self._events = Events()
        await _close(self.client)

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        timeout_seconds: float = _REQUEST_SECONDS,
        headers: dict[str, str] | None = None,
    ) -> Msg:
        """
        Return the answer to *data* on *subject*.

        Raises:
            LogUnavailableError: There is none.
        """
        try:
            return await _heed(
                self.client.request(subject, data, timeout=timeout_seconds, headers=headers)
            )
        except _FAULTS as error:
            raise self._translate(error, f"no answer to {subject}") from error

    async def api(self, request: str, body: object, *, answer: type[_Answer]) -> _Answer:
        """
        Return what the JetStream API answers to *request*, errors included.

        Raises:
            LogUnavailableError: It does not answer, or not in its own form.
        """
        data = msgspec.json.encode(body) if body is not None else b""
        message = await self.request(f"$JS.API.{request}", data)
        try:
            return msgspec.json.decode(message.data, type=answer)
        except msgspec.DecodeError as error:
            raise LogUnavailableError(f"{request} was answered with {error}") from error

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """
        Send *data* to *subject* now, or not at all.

        Raises:
            LogUnavailableError: There is no connection.
        """
        try:
            await _heed(self.client.publish(subject, data, reply=reply, headers=headers))
        except _FAULTS as error:
            raise self._translate(error, f"cannot publish to {subject}") from error

    async def subscribe(
        self, subject: str, received: Callable[[Msg], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        """
        Call *received* for each message on *subject*; return what ends that.

        Raises:
            LogUnavailableError: There is no connection.
        """
        client = self.client
        try:
            # Bounded by whoever asks for the messages, not by a queue that drops them.
            subscription = await _heed(
                client.subscribe(subject, cb=received, pending_bytes_limit=0)
            )
        except _FAULTS as error:
            raise self._translate(error, f"cannot subscribe to {subject}") from error

        async def end() -> None:
            if not client.is_closed:
                with suppress(*_FAULTS):
                    await _heed(subscription.unsubscribe())

        return end

    def _translate(self, error: BaseException, what: str) -> LogSetupError | LogUnavailableError:
        text = str(error) or type(error).__name__
        if isinstance(error, nats_errors.NoRespondersError):
            text = "nobody answers there"
        problem, self._problem = self._problem, ""
        if "authorization violation" in f"{problem} {text}".lower():
            return LogSetupError(
                f"the server at {self._address.url} does not let this user in",
                hint="the seed file is another server's, or the server asks for one",
            )
        return LogUnavailableError(
            f"the log at {self._address.url} is not reachable: {what}: {problem or text}",
            hint="is that nats-server running? the setting log.url names another one",
        )

    async def _on_error(self, error: Exception) -> None:
        self._problem = str(error) or type(error).__name__
        self._events.problem(self._problem)


async def _heed(work: Awaitable[_Result]) -> _Result:
    """
    Do *work* and let no cancellation get lost in it.

    nats-py swallows one in places, and so does `wait_for` of Python 3.11 when it comes together
    with the result; a task that was cancelled would then go on for ever.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    result = await work
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result


async def _close(client: Client) -> None:
    """Close *client*; one that was reconnecting raises a cancellation that nobody asked for."""
    [result] = await asyncio.gather(client.close(), return_exceptions=True)
    if isinstance(result, Exception) and not isinstance(result, _FAULTS):
        raise result


def status_of(message: Msg) -> str:
    """Return the status of *message*, such as "404"; nothing for one that carries data."""
    return (message.headers or {}).get("Status", "")
