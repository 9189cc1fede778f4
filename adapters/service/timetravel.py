"""
What the node held at any place of its log, and what each fact changed on the way.

The fold is the service's own.  Times are looked up here for people; the order is the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ...config.settings import Settings
from ...engine.node import Node
from ...events.record import Record
from .changes import Change, changes, things_around
from .history import sequence_at
from .points import Point
from .policy import policy_of

__all__ = ["Step", "nodes_at", "steps"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A record, and what it changed."""

    record: Record
    changes: list[Change]


def nodes_at(
    records: Sequence[Record], *points: Point | None, settings: Settings
) -> list[tuple[Node, str]]:
    """
    Return the node at each of *points*, None being the end of the log, with the last fact's time.

    Raises:
        UsageError: There is no such boot in the log.
    """
    return [_node_at(records, point, settings) for point in points]


def _node_at(
    records: Sequence[Record], point: Point | None, settings: Settings
) -> tuple[Node, str]:
    last = sequence_at(point, records, default=2**63, is_end=True)
    node, time = Node(settings.node, policy_of(settings)), ""
    for record in records:
        if record.sequence > last:
            break
        node.fold(record)
        time = record.time
    return node, time


def steps(
    records: Sequence[Record], chosen: Sequence[Record], *, settings: Settings
) -> Iterator[Step]:
    """Yield each of *chosen*, which are among *records*, with what it changed."""
    wanted = {record.sequence for record in chosen}
    node = Node(settings.node, policy_of(settings))
    for record in records:
        if record.sequence not in wanted:
            node.fold(record)
            continue
        before = things_around(node, record)
        node.fold(record)
        yield Step(record=record, changes=changes(before, things_around(node, record)))
