"""
The anchor: where the log's last acknowledged record lies, written down outside of the log.

A chain proves that nothing between two known links was changed; it cannot show that the end is
gone.  With the anchor a log that lost its tail, or that was made anew, is told from one that is
whole.  The file is a witness and no source: where it is broken or missing, the log wins.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec

from ..errors import InvalidAnchorError
from ..log import Head
from .files import replace_file, usable

__all__ = ["anchor_file", "read_anchor", "write_anchor"]

_BYTES_MAX = 4096


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int
    id: str
    link: str


def anchor_file(state_dir: Path) -> Path:
    """Return where the anchor lies."""
    return state_dir / "anchor"


def write_anchor(path: Path, head: Head) -> None:
    """
    Write *head* down, on disk before this returns.

    Raises:
        LogSetupError: The file system refused.
    """
    line = msgspec.json.encode(_Line(sequence=head.sequence, id=head.id, link=head.link.hex()))
    replace_file(path, line + b"\n" + sha256(line).hexdigest().encode() + b"\n")


def read_anchor(path: Path) -> Head | None:
    """
    Return what was written down last; None: nothing was.

    Raises:
        InvalidAnchorError: The file is not as it was written.
        LogSetupError: The file system refused.
    """
    with usable(path):
        if not path.exists():
            return None
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX)
    line, _, rest = data.partition(b"\n")
    if rest != sha256(line).hexdigest().encode() + b"\n":
        raise InvalidAnchorError(f"{path} is not as it was written: its sum does not fit")
    try:
        found = msgspec.json.decode(line, type=_Line)
        return Head(sequence=found.sequence, id=found.id, link=bytes.fromhex(found.link))
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidAnchorError(f"{path} cannot be read: {error}") from error
