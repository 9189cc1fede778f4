"""
Fold the log once more from its first fact, and compare: with the newest snapshot, with the service.

What is compared is the digest of the public state, so that a reader can do it.  The replay checks
each sequence and each link on its way; what it finds wrong there ends it with an error.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Literal

import msgspec

from ...config.settings import Settings
from ...engine.node import Node
from ...engine.snapshot import FOLD_VERSION
from ...events.facts import SnapshotTaken
from ...events.record import Record
from ..control.protocol import StateReply
from .changes import Change, changes, things
from .policy import policy_of
from .reading import log_reader

__all__ = ["Comparison", "Verification", "verify"]

Result = Literal["match", "mismatch", "none"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One digest against that of the replay, and the fields that differ where they are known."""

    #: snapshot, service.
    what: str
    result: Result
    sequence: int = 0
    digest: str = ""
    replayed: str = ""
    #: Why nothing was compared.
    reason: str = ""
    changes: list[Change] = []


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole replay gave."""

    node: str
    first: int
    last: int
    facts: int
    seconds: float
    claims: int
    pods: int
    digest: str
    comparisons: list[Comparison]
    kind: str = "ReplayVerification"

    @property
    def is_good(self) -> bool:
        """Return whether nothing differs."""
        return all(comparison.result != "mismatch" for comparison in self.comparisons)


class _Awaited:
    """A digest that is compared once the replay is at its sequence."""

    def __init__(self, what: str, *, sequence: int, digest: str, live: StateReply | None) -> None:
        self.sequence = sequence
        self._what = what
        self._digest = digest
        self._live = live

    def compare(self, node: Node) -> Comparison:
        """Compare with *node*, which is at that sequence."""
        replayed = node.digest()
        is_same = replayed == self._digest
        differing = (
            [] if is_same or self._live is None else changes(things(self._live), things(node))
        )
        return Comparison(
            what=self._what,
            result="match" if is_same else "mismatch",
            sequence=self.sequence,
            digest=self._digest,
            replayed=replayed,
            changes=differing,
        )


async def verify(settings: Settings, live: StateReply | None) -> Verification:
    """
    Replay the log and compare with the newest snapshot and with *live*, the service's state.

    Raises:
        ClaimletError: The log cannot be read, or is damaged.
    """
    began = time.perf_counter()
    node = Node(settings.node, policy_of(settings))
    first, facts = 0, 0
    async with log_reader(settings) as reader:
        awaited, comparisons = _awaited(await reader.last_of_node(SnapshotTaken.word), live)
        async with aclosing(reader.replay()) as records:
            async for record in records:
                # Private facts come to no reader and change no digest: compare before the next.
                while awaited and record.sequence > awaited[0].sequence:
                    comparisons.append(awaited.pop(0).compare(node))
                first = first or record.sequence
                node.fold(record)
                facts += 1
    comparisons += [one.compare(node) for one in awaited]
    return Verification(
        node=settings.node,
        first=first,
        last=node.sequence,
        facts=facts,
        seconds=round(time.perf_counter() - began, 3),
        claims=len(node.claims),
        pods=len(node.pods),
        digest=node.digest(),
        comparisons=sorted(comparisons, key=lambda c: c.what),
    )


def _awaited(
    newest: Record | None, live: StateReply | None
) -> tuple[list[_Awaited], list[Comparison]]:
    """Return what is to be compared, in order, and why something is not."""
    awaited, comparisons = [], []
    taken = newest.fact if newest is not None else None
    if not isinstance(taken, SnapshotTaken):
        comparisons.append(_nothing("snapshot", "none was taken yet"))
    elif taken.fold_version != FOLD_VERSION:
        comparisons.append(_nothing("snapshot", "it was made by another version of the fold"))
    else:
        sequence, digest = taken.sequence, taken.digest
        awaited.append(_Awaited("snapshot", sequence=sequence, digest=digest, live=None))
    if live is None:
        comparisons.append(_nothing("service", "none runs"))
    else:
        awaited.append(_Awaited("service", sequence=live.sequence, digest=live.digest, live=live))
    return sorted(awaited, key=lambda one: one.sequence), comparisons


def _nothing(what: str, reason: str) -> Comparison:
    return Comparison(what=what, result="none", reason=reason)
