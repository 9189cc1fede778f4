"""
The timeline: what each device went through, from the log's facts alone.

The records are folded as the service folds them, so there is no second idea of what a fact means.
Times only place things on the axis (rule 15); where several things happened within one
column, the most telling one is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import Enum

import msgspec

from ...engine.lifecycle import PREPARING, UNPREPARING, Phase, public_state
from ...engine.node import Node
from ...engine.state import ClaimState
from ...events.facts import Booted, WriterStarted
from ...events.record import Record

__all__ = ["ASCII_GLYPHS", "GLYPHS", "Held", "Timeline", "draw", "read_timeline", "trail"]

WIDTH = 64


class Held(Enum):
    """What a device was to a claim; the later one is drawn where both fit into one column."""

    FREE = "free"
    PREPARED = "prepared"
    BUSY = "preparing, unpreparing"
    NEEDS = "needs re-prepare"
    FAILED = "failed"


GLYPHS = {
    Held.FREE: "░",
    Held.PREPARED: "▓",
    Held.BUSY: "▒",
    Held.NEEDS: "◇",
    Held.FAILED: "█",
}
#: For terminals that have no others.
ASCII_GLYPHS = {
    Held.FREE: ".",
    Held.PREPARED: "=",
    Held.BUSY: "-",
    Held.NEEDS: "?",
    Held.FAILED: "X",
}
_RANK = {held: rank for rank, held in enumerate(Held)}


class Change(msgspec.Struct, frozen=True):
    """From `seconds` after the first fact on, the device is `held` so."""

    seconds: float
    held: Held


class Row(msgspec.Struct, frozen=True):
    """A device: its changes in their order, and the pods that had it."""

    device: str
    changes: list[Change]
    pods: list[str]


class Mark(msgspec.Struct, frozen=True):
    """The service started again, in the same boot or in another one."""

    seconds: float
    is_boot: bool


class Timeline(msgspec.Struct, frozen=True):
    """All devices of a log."""

    seconds: float
    rows: list[Row]
    marks: list[Mark]


def read_timeline(records: Sequence[Record], node: Node) -> Timeline:
    """Return what happened to each device in *records*; *node* is empty and folds them."""
    if not records:
        return Timeline(0.0, [], [])
    began = datetime.fromisoformat(records[0].time)
    rows: dict[str, Row] = {}
    marks: list[Mark] = []
    seconds = 0.0
    for record in records:
        seconds = (datetime.fromisoformat(record.time) - began).total_seconds()
        node.fold(record)
        if isinstance(record.fact, WriterStarted) and record is not records[0]:
            marks.append(Mark(seconds, is_boot=False))
        elif isinstance(record.fact, Booted) and marks:
            marks[-1] = Mark(marks[-1].seconds, is_boot=True)
        if record.claim and (claim := node.claims.get(record.claim.uid)):
            _note(rows, claim, seconds)
    return Timeline(seconds, [rows[device] for device in sorted(rows)], marks)


def _note(rows: dict[str, Row], claim: ClaimState, seconds: float) -> None:
    """Add what *claim* now is to the rows of its devices."""
    held = _held(claim)
    for device in claim.allocation.devices if claim.allocation else ():
        row = rows.setdefault(device.device, Row(device.device, [Change(0.0, Held.FREE)], []))
        if row.changes[-1].held is not held:
            row.changes.append(Change(seconds, held))
        for consumer in claim.consumers:
            if str(consumer.pod) not in row.pods:
                row.pods.append(str(consumer.pod))


def _held(claim: ClaimState) -> Held:
    if claim.phase is Phase.PREPARED:
        return Held.PREPARED
    if claim.phase is Phase.NEEDS:
        return Held.NEEDS
    if claim.phase in PREPARING | UNPREPARING:
        return Held.FAILED if claim.failures else Held.BUSY
    return Held.FREE


def trail(records: Sequence[Record], node: Node, claim_uid: str) -> list[str]:
    """Return the states that the claim went through, in their order; *node* is empty."""
    states: list[str] = []
    for record in records:
        node.fold(record)
        if record.claim and record.claim.uid == claim_uid:
            claim = next((c for c in node.claims.values() if c.uid == claim_uid), None)
            state = public_state(claim.phase) if claim else "closed"
            if states[-1:] != [state]:
                states.append(state)
    return states


def draw(
    timeline: Timeline, *, glyphs: dict[Held, str] | None = None, width: int = WIDTH
) -> list[str]:
    """Return the timeline as lines: one for each device, starts of the service, the axis."""
    glyphs = glyphs or GLYPHS
    scale = width / max(timeline.seconds, 0.001)
    margin = max((len(row.device) for row in timeline.rows), default=0) + 2
    bar = "|" if glyphs is ASCII_GLYPHS else "┊"
    marks = {min(int(mark.seconds * scale), width - 1): mark for mark in timeline.marks}
    lines = []
    for row in timeline.rows:
        cells = [
            bar if column in marks else glyphs[held]
            for column, held in enumerate(_columns(row, scale, width))
        ]
        lines.append(f"{row.device:<{margin}}{''.join(cells)}   {', '.join(row.pods)}")
    return [*lines, " " * margin + _labels(marks, width), _legend(glyphs, bar, margin)]


def _columns(row: Row, scale: float, width: int) -> Iterator[Held]:
    """Yield the most telling thing that happened in each column, else what went on."""
    current = Held.FREE
    for column in range(width):
        within = [c.held for c in row.changes if min(int(c.seconds * scale), width - 1) == column]
        yield max(within, key=_RANK.__getitem__, default=current)
        current = within[-1] if within else current


def _labels(marks: dict[int, Mark], width: int) -> str:
    text = ""
    for column, mark in sorted(marks.items()):
        label = "reboot" if mark.is_boot else "restart"
        start = max(min(column, width - len(label)), len(text) + 1 if text else 0)
        text = text.ljust(start) + label
    return text


def _legend(glyphs: dict[Held, str], bar: str, margin: int) -> str:
    kinds = "  ".join(f"{glyph} {held.value}" for held, glyph in glyphs.items())
    return f"{' ' * margin}{kinds}  {bar} the service starts again"
