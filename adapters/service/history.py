"""
Which records of the log belong to a claim, a pod or the node, and how they read.

Names are labels: a history is that of one UID, the one that is open, else the newest.  Everything
here is pure; the records come from a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from ...engine.errors import AmbiguousError, UsageError
from ...events import facts as f
from ...events.record import Record
from ...events.values import PodRef
from .points import BootPoint, Point, SequencePoint

__all__ = [
    "ClaimHistory",
    "History",
    "NodeHistory",
    "PodHistory",
    "as_document",
    "between",
    "detail",
    "sequence_at",
]

#: Facts after which a claim is not open any more.
_CLAIM_ENDS = frozenset({"unprepared", "deleted", "retired", "deallocated"})
#: Facts that may come at any time and open nothing.
_ASIDE = frozenset({"anomaly_found", "object_lost"})


class History(Protocol):
    """Which records belong to something."""

    def select(self, records: Sequence[Record]) -> list[Record]:
        """
        Return those of *records* that belong to it.

        Raises:
            AmbiguousError: Its name means several open objects.
        """
        ...


class ClaimHistory:
    """All facts about one claim."""

    def __init__(self, namespace: str, name: str, *, uid: str = "") -> None:
        self._name = (namespace, name)
        self._uid = uid

    def select(self, records: Sequence[Record]) -> list[Record]:
        """
        Return the records of the claim that the name means.

        Raises:
            AmbiguousError: Several open claims have it.
        """
        found: dict[str, list[Record]] = {}
        for record in records:
            claim = record.claim
            if claim and (claim.namespace, claim.name) == self._name:
                found.setdefault(claim.uid, []).append(record)
        still_open = [uid for uid, rows in found.items() if _is_open(rows)]
        return _chosen(found, still_open, uid=self._uid, name="/".join(self._name))


class PodHistory:
    """All facts about one pod, and those about its claims from joining to leaving them."""

    def __init__(self, namespace: str, name: str, *, uid: str = "") -> None:
        self._name = (namespace, name)
        self._uid = uid

    def select(self, records: Sequence[Record]) -> list[Record]:
        """
        Return the records of the pod that the name means.

        Raises:
            AmbiguousError: Several open pods have it.
        """
        found: dict[str, list[Record]] = {}
        for record in records:
            pod = _pod_of(record)
            if pod and (pod.namespace, pod.name) == self._name:
                found.setdefault(pod.uid, []).append(record)
        still_open = [uid for uid, rows in found.items() if rows[-1].word != "pod_closed"]
        own = _chosen(found, still_open, uid=self._uid, name="/".join(self._name))
        if not own:
            return []
        pod = _pod_of(own[0])
        assert pod is not None
        return _with_claims(records, own, pod.uid)


class NodeHistory:
    """All facts."""

    def select(self, records: Sequence[Record]) -> list[Record]:
        """Return all *records*."""
        return list(records)


def _pod_of(record: Record) -> PodRef | None:
    fact = record.fact
    return fact.pod if isinstance(fact, f.Bound | f.ConsumerJoined) else record.pod


def _is_open(rows: Sequence[Record]) -> bool:
    last = next((row.word for row in reversed(rows) if row.word not in _ASIDE), "")
    return last not in _CLAIM_ENDS


def _with_claims(records: Sequence[Record], own: list[Record], pod_uid: str) -> list[Record]:
    """Return *own* and the facts about each claim while the pod held it, or had it unprepared."""
    chosen = {record.sequence for record in own}
    holdings: dict[str, _Holding] = {}
    for record in records:
        if record.claim is not None:
            holding = holdings.setdefault(record.claim.uid, _Holding(pod_uid))
            chosen.update(holding.take(record))
    return [record for record in records if record.sequence in chosen]


class _Holding:
    """Whether a pod holds one claim, followed through the claim's facts."""

    def __init__(self, pod_uid: str) -> None:
        self._pod_uid = pod_uid
        self._consumers: set[str] = set()
        self._generated: list[int] = []
        #: The pod was the last consumer: the unprepare is its own.
        self._is_released = False

    def take(self, record: Record) -> list[int]:
        """Take in the claim's next fact and return the sequences that belong to the pod with it."""
        before: list[int] = []
        match record.fact:
            case f.Generated():
                self._generated = [record.sequence]
            case f.Bound(pod=pod):
                self._consumers = {pod.uid}
                self._is_released = False
                before, self._generated = self._generated, []
            case f.ConsumerJoined(pod=pod):
                self._consumers.add(pod.uid)
                self._is_released = False
            case f.Restored(consumers=pods):
                self._consumers = {pod.uid for pod in pods}
        if self._pod_uid not in self._consumers and not self._is_released:
            return []
        if isinstance(record.fact, f.ConsumerLeft):
            self._consumers.discard(record.fact.pod_uid)
            self._is_released = record.fact.pod_uid == self._pod_uid and not self._consumers
        elif record.word in _CLAIM_ENDS:
            self._consumers.clear()
            self._is_released = False
        return [*before, record.sequence]


def _chosen(
    found: dict[str, list[Record]], still_open: list[str], *, uid: str, name: str
) -> list[Record]:
    if uid:
        return found.get(uid, [])
    if len(still_open) > 1:
        raise AmbiguousError(
            f"{name} means several open objects: {', '.join(still_open)}",
            hint="--uid chooses one",
        )
    if still_open:
        return found[still_open[0]]
    return max(found.values(), key=lambda rows: rows[-1].sequence, default=[])


def between(
    chosen: Sequence[Record],
    records: Sequence[Record],
    *,
    since: Point | None,
    until: Point | None,
) -> list[Record]:
    """
    Return those of *chosen* from *since* to *until*; boots are looked up in *records*.

    Raises:
        UsageError: There is no such boot in the log.
    """
    first = sequence_at(since, records, default=0, is_end=False)
    last = sequence_at(until, records, default=2**63, is_end=True)
    return [record for record in chosen if first <= record.sequence <= last]


def sequence_at(
    point: Point | None, records: Sequence[Record], *, default: int, is_end: bool
) -> int:
    """
    Return the first sequence from *point* on, or the last one up to it.

    Raises:
        UsageError: There is no such boot in the log.
    """
    match point:
        case None:
            return default
        case SequencePoint(sequence=sequence):
            return sequence
        case BootPoint(back=back):
            boots = [r.sequence for r in records if isinstance(r.fact, f.Booted)]
            if back >= len(boots):
                raise UsageError(
                    f"the log knows {len(boots)} boots, none of them boot-{back}",
                    hint="boot is the current one, boot-1 the one before it",
                )
            return boots[-1 - back]
    assert isinstance(point, datetime)
    # By time only here, to look something up for people; the order itself is the sequence.
    times = [(datetime.fromisoformat(record.time), record.sequence) for record in records]
    if is_end:
        return max((sequence for moment, sequence in times if moment <= point), default=0)
    return min((sequence for moment, sequence in times if moment >= point), default=2**63)


def as_document(record: Record) -> dict[str, Any]:
    """Return *record* as it is stored, with its sequence and its name."""
    document: dict[str, Any] = {
        "sequence": record.sequence,
        "fact": record.word,
        "t": record.word,
        "ts": record.time,
        "id": record.id,
        "node": record.node,
        "boot": record.boot,
        "writer": record.writer,
    }
    for name in ("claim", "pod", "corr", "cause", "actor"):
        if value := getattr(record, name):
            document[name] = msgspec.to_builtins(value)
    document["body"] = msgspec.json.decode(msgspec.json.encode(record.fact))
    return document


def detail(record: Record) -> str:
    """Return what people want to know of *record*, in one line."""
    fact = record.fact
    match fact:
        case f.Generated():
            return f"{fact.origin}" + (f" for pod claim {fact.pod_claim}" if fact.pod_claim else "")
        case f.Bound():
            devices = ", ".join(f"{d.driver}/{d.pool}/{d.device}" for d in fact.allocation.devices)
            return f"pod {fact.pod}: {devices or 'no devices'}"
        case f.ConsumerJoined():
            return f"pod {fact.pod}"
        case f.PrepareStarted() | f.UnprepareStarted():
            return ", ".join(call.driver for call in fact.calls)
        case f.DriverPrepared():
            ids = [cdi_id for device in fact.devices for cdi_id in device.cdi_device_ids]
            mark = " ≠ the last answer" if fact.changed else ""
            return f"{fact.driver} {fact.duration_seconds * 1000:.0f}ms {' '.join(ids)}{mark}"
        case f.DriverUnprepared():
            mark = "" if fact.final else ", asked once more later"
            return f"{fact.driver} {fact.duration_seconds * 1000:.0f}ms{mark}"
        case f.DriverFailed():
            return f"{fact.driver} {fact.outcome} (attempt {fact.attempts}): {fact.text}"
        case f.PrepareRequested():
            claims = "1 claim" if len(fact.claims) == 1 else f"{len(fact.claims)} claims"
            return f"by {fact.source}, {claims}"
        case f.PrepareRefused():
            return "; ".join(fact.reasons)
    return _plain_detail(fact)


def _plain_detail(fact: f.Fact | None) -> str:
    """Return the fact's own fields, as far as they are short."""
    if fact is None:
        return "(unknown to this version)"
    fields = msgspec.to_builtins(fact, builtin_types=(bytes,), enc_hook=str)
    return " ".join(
        f"{name}={value}" for name, value in fields.items() if isinstance(value, str | int | float)
    )
