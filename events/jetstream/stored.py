"""Single messages of a stream, as its leader has them: by sequence, or a subject's last one."""

from __future__ import annotations

import msgspec

from ..chain import CHAIN_HEADER
from ..errors import LogUnavailableError
from .connection import Answer, Connection

__all__ = ["Message", "NotShownError", "message_at", "message_last", "message_next"]

_NO_MESSAGE = 10037


class NotShownError(LogUnavailableError):
    """The server answers, and does not show the message; the stream may be gone."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it lies in a stream."""

    subject: str = ""
    sequence: int = msgspec.field(name="seq", default=0)
    data: bytes = b""
    hdrs: bytes = b""

    @property
    def id(self) -> str:
        """Return the id that it was published with."""
        return self._headers().get("Nats-Msg-Id", "")

    @property
    def link(self) -> bytes:
        """Return its link of the chain; nothing where it carries none."""
        try:
            return bytes.fromhex(self._headers().get(CHAIN_HEADER, ""))
        except ValueError:
            return b""

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for line in self.hdrs.decode(errors="replace").split("\r\n")[1:]:
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip()] = value.strip()
        return headers


class _Got(Answer, frozen=True, kw_only=True):
    message: Message = Message()


async def message_at(connection: Connection, stream: str, sequence: int) -> Message | None:
    """
    Return what *stream* holds at *sequence*.

    Raises:
        NotShownError: There is no such stream, or this user may not read it.
        LogUnavailableError: The server does not answer.
    """
    return await _message(connection, stream, {"seq": sequence})


async def message_last(connection: Connection, stream: str, subject: str) -> Message | None:
    """
    Return the last message that *stream* holds of *subject*.

    Raises:
        NotShownError: There is no such stream, or this user may not read it.
        LogUnavailableError: The server does not answer.
    """
    return await _message(connection, stream, {"last_by_subj": subject})


async def message_next(
    connection: Connection, stream: str, subject: str, *, from_sequence: int
) -> Message | None:
    """
    Return the first message of *subject* that *stream* holds at *from_sequence* or after it.

    Raises:
        NotShownError: There is no such stream, or this user may not read it.
        LogUnavailableError: The server does not answer.
    """
    request: dict[str, int | str] = {"seq": from_sequence, "next_by_subj": subject}
    return await _message(connection, stream, request)


async def _message(
    connection: Connection, stream: str, request: dict[str, int | str]
) -> Message | None:
    got = await connection.api(f"STREAM.MSG.GET.{stream}", request, answer=_Got)
    if got.error is None:
        return got.message
    if got.error.err_code == _NO_MESSAGE:
        return None
    what = next(iter(request.values()))
    raise NotShownError(f"{what} of {stream} is not shown: {got.error.description}")
