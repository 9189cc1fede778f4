"""
A stretch of the log as a file: one JSON line for each record, in order, private ones too.

``{"sequence": …, "subject": …, "id": …, "link": …, "data": …}``: `data` is the record as it is
stored, `link` its link of the chain in hex.  Such a file is believed as far as its chain goes:
from a link that is known to one that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import msgspec

from .chain import link
from .errors import LogDamagedError, LogSetupError
from .record import BODY_BYTES_MAX
from .server.files import replace_file

__all__ = ["Line", "encode_segment", "follow_lines", "read_segment", "write_segment"]

#: JSON in JSON: each quote may take two bytes, a control character six.
_LINE_BYTES_MAX = 6 * BODY_BYTES_MAX
#: Of what is taken from a file at once.
_BYTES_MAX = 512 * 1024**2


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it lies in the log."""

    sequence: int
    subject: str
    id: str
    link: str
    data: str


_lines = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


def encode_segment(lines: Iterable[Line]) -> bytes:
    """Return *lines* as the content of a file."""
    return b"".join(_encoder.encode(line) + b"\n" for line in lines)


def write_segment(path: Path, content: bytes) -> str:
    """
    Put a segment's content at *path* and return its sha256.

    Raises:
        LogSetupError: The file system refused.
    """
    replace_file(path, content)
    return sha256(content).hexdigest()


def read_segment(path: Path, *, first: int, last: int, digest: str = "") -> list[Line]:
    """
    Return the records *first* to *last* of a segment; *digest* is what its content must have.

    Raises:
        LogSetupError: The file cannot be read.
        LogDamagedError: It does not hold them all, or has another digest.
    """
    found: dict[int, Line] = {}
    hashed, size = sha256(), 0
    with _opened(path) as file:
        while raw := file.readline(_LINE_BYTES_MAX + 1):
            hashed.update(raw)
            line = _decoded(raw, path)
            if line is None or not first <= line.sequence <= last:
                continue
            size += len(raw)
            if size > _BYTES_MAX:
                raise _unfit(path, f"it holds more than {_BYTES_MAX} bytes of them", first)
            found[line.sequence] = line
    if digest and hashed.hexdigest() != digest:
        raise _unfit(path, "its digest is not the one that the log names", first)
    for sequence in range(first, last + 1):
        if sequence not in found:
            raise _unfit(path, f"record {sequence} is not in it", sequence)
    return [found[sequence] for sequence in range(first, last + 1)]


def follow_lines(lines: Iterable[Line], link_before: bytes) -> Iterator[tuple[Line, bytes]]:
    """
    Yield each line with its link, computed from the one before and not read.

    Raises:
        LogDamagedError: A line's link is not that one.
    """
    previous = link_before
    for line in lines:
        previous = link(previous, line.subject, line.data.encode())
        if previous.hex() != line.link:
            raise LogDamagedError(
                f"the copy of record {line.sequence} does not follow the chain",
                sequence=line.sequence,
            )
        yield line, previous


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise LogSetupError(f"{path}: {error.strerror or error}") from None


def _decoded(raw: bytes, path: Path) -> Line | None:
    if len(raw) > _LINE_BYTES_MAX:
        raise _unfit(path, "a line is longer than any record", 0)
    if not raw.strip():
        return None
    try:
        return _lines.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _unfit(path, f"a line is no record: {error}", 0) from None


def _unfit(path: Path, why: str, sequence: int) -> LogDamagedError:
    return LogDamagedError(f"{path} is no copy of the records: {why}", sequence=sequence)
