"""
Gaps that an operator has acknowledged: the records of the log that no replay reads.

The acknowledgement lies later in the same log than its gap, so it is looked for first, by subject.
It names an exact range and the links before and after it: nothing else is passed over.  A later one
that covers an earlier one counts in its place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec

from ..errors import InvalidRecordError, LogDamagedError
from ..facts import LogGapAcknowledged
from ..record import GAP_WORD, Record, decode
from ..segment import Line, follow_lines, read_segment
from ..subjects import node_token
from .connection import Connection
from .stored import message_next
from .stream import STREAM, stream_info

__all__ = ["Gap", "copied", "effective", "gap_of", "gap_subject", "gaps_of_log"]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledged gap."""

    fact: LogGapAcknowledged
    #: The acknowledgement.
    record: Record

    @property
    def first(self) -> int:
        """Return the sequence of the first record that is not read."""
        return self.fact.from_sequence

    @property
    def last(self) -> int:
        """Return the sequence of the last record that is not read."""
        return self.fact.to_sequence

    @property
    def link_before(self) -> bytes:
        """Return the link of the record before the gap."""
        return bytes.fromhex(self.fact.link_before)

    @property
    def link_after(self) -> bytes:
        """Return the link that the record after the gap carries; nothing: it is not known."""
        return bytes.fromhex(self.fact.link_after)

    def placeholder(self) -> Record:
        """Return what a fold gets in the place of the records."""
        return msgspec.structs.replace(self.record, sequence=self.last, word=GAP_WORD)


def gap_subject(node: str) -> str:
    """Return the subject of *node*'s acknowledgements."""
    return f"dra.{node_token(node)}.node.{LogGapAcknowledged.word}"


async def gaps_of_log(connection: Connection, node: str) -> tuple[Gap, ...]:
    """
    Return the acknowledged gaps of *node*'s log in the order of the log, for its writer.

    Raises:
        LogUnavailableError: The server does not tell.
    """
    subject = gap_subject(node)
    info = await stream_info(connection, subjects=subject)
    if info is None or not info.state.subjects:
        return ()

    async def stored() -> AsyncIterator[tuple[bytes, int]]:
        sequence = 1
        while message := await message_next(connection, STREAM, subject, from_sequence=sequence):
            yield message.data, message.sequence
            sequence = message.sequence + 1

    return effective([gap async for data, n in stored() if (gap := gap_of(data, n))])


def gap_of(data: bytes, sequence: int) -> Gap | None:
    """Return the gap that a stored acknowledgement tells of; None for one that is damaged."""
    try:
        record = decode(data, sequence=sequence)
        if isinstance(record.fact, LogGapAcknowledged):
            gap = Gap(fact=record.fact, record=record)
            is_sound = 1 <= gap.first <= gap.last < sequence and len(gap.link_before) == 32
            return gap if is_sound and len(gap.link_after) in (0, 32) else None
    except (InvalidRecordError, ValueError):
        pass  # the replay meets it and says so
    return None


def effective(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return those of *gaps* that no later one overlaps, in the order of the log."""
    kept: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: gap.record.sequence):
        kept = [g for g in kept if g.last < gap.first or gap.last < g.first]
        kept.append(gap)
    return tuple(sorted(kept, key=lambda gap: gap.first))


def copied(gap: Gap, archive: Path | None) -> list[tuple[Line, bytes]]:
    """
    Return the records of a *gap* whose copy is kept in *archive*, with their links.

    Raises:
        LogDamagedError: The copy is not there, or not what the acknowledgement names.
        LogSetupError: It cannot be read.
    """
    name = gap.fact.copy
    path = archive / name if archive is not None and Path(name).name == name else None
    if path is None or not path.is_file():
        raise LogDamagedError(
            f"the copy of the records {gap.first} to {gap.last}, {name}, is not in the archive"
            " of the state directory",
            sequence=gap.first,
            hint="put it back, or acknowledge the gap without it: claimlet log gap acknowledge",
        )
    lines = read_segment(path, first=gap.first, last=gap.last, digest=gap.fact.copy_digest)
    return list(follow_lines(lines, gap.link_before))
