"""
The fold of a whole node: every claim, pod and driver that the log tells of.

`Node.fold` is called once per record, in the order of the sequences, live and at replay alike.  It
replaces frozen values, so a reader that took one never sees it change (rule R9).  The indexes are
derived from the claims and hold nothing of their own.  What is to be done about it all stands in
`engine.plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ..events import facts as f
from ..events.record import Record
from ..events.values import ClaimUid, DriverName, PodUid
from .claim import evolve, problem
from .layer import Layer
from .lifecycle import Phase
from .slices import slices
from .state import (
    ClaimState,
    PodState,
    Policy,
    Refusal,
    RegisteredDriver,
    Request,
    TakenSnapshot,
    Waiver,
)

__all__ = ["DeviceKey", "Node"]

DeviceKey = tuple[str, str, str]
_Key = TypeVar("_Key")

#: Claim facts that change more than their claim.
_OUTLIVING = frozenset({"debt_waived", "driver_unprepared", "unprepared", "deleted", "retired"})

_sorting = msgspec.json.Encoder(order="sorted")

#: Refusals of pods that hold nothing; the oldest makes room.
_REFUSALS_MAX = 1000


class Node:
    """What the log says about one node, up to `sequence`."""

    def __init__(self, name: str, policy: Policy | None = None) -> None:
        self.name = name
        self.policy = policy or Policy()
        self.sequence = 0
        self.boot = ""
        self.writer = ""
        self.writer_sequence = 0
        self.boot_time = ""
        self.not_folded = 0
        self.last_snapshot: TakenSnapshot | None = None
        #: The policy that the last process recorded, as text; what counts is `policy`.
        self.recorded_policy: Mapping[str, str] = {}
        self.synced: frozenset[str] = frozenset()
        self.claims: MutableMapping[ClaimUid, ClaimState] = {}
        self.pods: MutableMapping[PodUid, PodState] = {}
        self.refusals: MutableMapping[PodUid, Refusal] = {}
        self.waivers: MutableMapping[tuple[ClaimUid, DriverName], Waiver] = {}
        #: driver → its registered instances, oldest first.
        self.drivers: MutableMapping[DriverName, tuple[RegisteredDriver, ...]] = {}
        #: Opaque driver parameters; never in a view, never in the digest.
        self.configs: MutableMapping[ClaimUid, bytes] = {}
        self.by_name: MutableMapping[tuple[str, str], tuple[ClaimUid, ...]] = {}
        self.by_pod: MutableMapping[PodUid, tuple[ClaimUid, ...]] = {}
        self.by_device: MutableMapping[DeviceKey, tuple[ClaimUid, ...]] = {}
        self.by_operation: MutableMapping[str, tuple[ClaimUid, ...]] = {}

    # --- folding ---------------------------------------------------------------------------------

    def fold(self, record: Record) -> None:
        """Take *record* in; it is the next one, and it is stored."""
        self.sequence = record.sequence
        fact = record.fact
        if fact is None:
            self.not_folded += 1
        elif isinstance(fact, f.ClaimFact):
            self._fold_claim(record)
        elif isinstance(fact, f.PodFact):
            self._fold_pod(record, fact)
        elif isinstance(fact, f.ConfigRecorded):
            if record.claim:
                self.configs[record.claim.uid] = bytes(fact.config)
        elif fold := _NODE_FOLDS.get(record.word):
            fold(self, fact, record)

    def _fold_claim(self, record: Record) -> None:
        if record.claim is None:
            self.not_folded += 1
            return
        uid = record.claim.uid
        old = self.claims.get(uid) or ClaimState(ref=record.claim)
        new = evolve(old, record)
        if record.word in _OUTLIVING and not problem(old, record.fact):
            self._fold_outliving(record, old)
        if new.phase is Phase.CLOSED:
            self._reindex(old, None)
            self.claims.pop(uid, None)
        else:
            self._reindex(old, new)
            self.claims[uid] = new

    def put(self, claim: ClaimState) -> None:
        """Take *claim* in as it is, from a snapshot."""
        self._reindex(claim, claim)
        self.claims[claim.uid] = claim

    def _fold_outliving(self, record: Record, claim: ClaimState) -> None:
        """Take in what a claim fact means for the node's own lists."""
        match record.fact:
            case f.DebtWaived() as fact:
                self._waive(record, fact)
            case f.DriverUnprepared(driver=driver, final=True):
                self.waivers.pop((claim.uid, driver), None)
            case f.Unprepared() | f.Deleted() | f.Retired():
                # The parameters belong to one stay (rule R10).
                self.configs.pop(claim.uid, None)

    def _waive(self, record: Record, fact: f.DebtWaived) -> None:
        assert record.claim is not None
        self.waivers[record.claim.uid, fact.driver] = Waiver(
            claim=record.claim,
            driver=fact.driver,
            who=fact.who,
            why=fact.why,
            last_error=fact.last_error,
            sequence=record.sequence,
            time=record.time,
        )

    def _fold_pod(self, record: Record, fact: f.PodFact) -> None:
        ref = record.pod
        if ref is None:
            self.not_folded += 1
            return
        pod = self.pods.get(ref.uid)
        match fact:
            case f.PrepareRefused():
                self._refuse(record, fact)
            case f.PodClosed():
                self.pods.pop(ref.uid, None)
                self.refusals.pop(ref.uid, None)
            case f.PrepareRequested():
                self.refusals.pop(ref.uid, None)
                base = pod or PodState(ref=ref)
                self.pods[ref.uid] = replace(
                    base, ref=ref, request=_request(fact, record), last_id=record.id
                )
            case f.PodFinished() | f.UnprepareRequested():
                self.refusals.pop(ref.uid, None)
                base = pod or PodState(ref=ref)
                reason = fact.phase if isinstance(fact, f.PodFinished) else fact.reason
                self.pods[ref.uid] = replace(
                    base,
                    ended=base.ended or reason,
                    ended_sequence=base.ended_sequence or record.sequence,
                    ended_time=base.ended_time or record.time,
                    last_id=record.id,
                )

    def _refuse(self, record: Record, fact: f.PrepareRefused) -> None:
        assert record.pod is not None
        last = self.refusals.pop(record.pod.uid, None)
        if len(self.refusals) >= _REFUSALS_MAX:
            del self.refusals[next(iter(self.refusals))]
        self.refusals[record.pod.uid] = Refusal(
            pod=record.pod,
            source=fact.source,
            reasons=fact.reasons,
            attempts=fact.attempts,
            sequence=record.sequence,
            time=record.time,
            changes=last.changes + (last.reasons != fact.reasons) if last else 0,
        )

    # --- indexes ---------------------------------------------------------------------------------

    def _reindex(self, old: ClaimState, new: ClaimState | None) -> None:
        uid = old.uid
        known = old if uid in self.claims else None
        # Values are frozen and most facts leave them alone: the same object has the same keys.
        same = new if known is not None else None
        if same is None or same.ref is not old.ref:
            _move(self.by_name, uid, before=_name_keys(known), after=_name_keys(new))
        if same is None or (same.consumers, same.released) != (old.consumers, old.released):
            _move(self.by_pod, uid, before=_pod_keys(known), after=_pod_keys(new))
        if same is None or same.allocation is not old.allocation or _holds(same) != _holds(old):
            _move(self.by_device, uid, before=_device_keys(known), after=_device_keys(new))
        if same is None or same.operation is not old.operation:
            _move(self.by_operation, uid, before=_operation_keys(known), after=_operation_keys(new))

    # --- questions -------------------------------------------------------------------------------

    def is_live(self, pod_uid: PodUid, claim: ClaimState) -> bool:
        """
        Return whether the pod's request may cause a prepare of *claim* now (rule 5).

        It was recorded in this boot (by this process, where a start voided the answers), nothing
        ended the pod since, and its source has told this process all it knows.
        """
        pod = self.pods.get(pod_uid)
        if pod is None or pod.request is None or pod.ended or pod.request.boot != self.boot:
            return False
        if claim.voided == "start" and pod.request.writer != self.writer:
            return False
        consumer = claim.consumer(pod_uid)
        if consumer is None or consumer.joined_sequence > pod.request.sequence:
            return False
        return pod.request.source in self.synced

    def claims_of(self, pod_uid: PodUid) -> list[ClaimState]:
        """Return the claims that the pod holds, in a stable order."""
        found = [self.claims[uid] for uid in self.by_pod.get(pod_uid, ())]
        return sorted(found, key=lambda claim: (claim.ref.name, claim.uid))

    def overlapping(self, claim: ClaimState) -> list[tuple[ClaimState, DeviceKey]]:
        """Return the claims that hold a device of *claim* although neither may (rule 13)."""
        found: list[tuple[ClaimState, DeviceKey]] = []
        for device in claim.allocation.devices if claim.allocation else ():
            if device.admin_access or not _holds(claim):
                continue
            key = (device.driver, device.pool, device.device)
            for uid in self.by_device.get(key, ()):
                other = self.claims[uid]
                if uid != claim.uid and _shares(other, key, device.share_id):
                    found.append((other, key))
        return found

    def branch(self) -> Node:
        """Return a node to try facts on; this one does not change."""
        twin = Node.__new__(Node)
        twin.__dict__.update(
            {
                name: Layer(value) if isinstance(value, MutableMapping) else value
                for name, value in self.__dict__.items()
            }
        )
        return twin

    def digest(self) -> str:
        """Return the sha256 of all that outlives a process: claims, pods, waivers, refusals."""
        digest = sha256()
        for piece in self.digested():
            digest.update(piece)
        return digest.hexdigest()

    def digested(self) -> Iterator[bytes]:
        """Return what the digest is made of, piece by piece; it is what is held at the call."""
        parts = (
            ("claims", sorted(self.claims.values(), key=lambda c: c.uid)),
            ("pods", sorted(self.pods.values(), key=lambda p: p.ref.uid)),
            ("refusals", sorted(self.refusals.values(), key=lambda r: r.pod.uid)),
            ("waivers", sorted(self.waivers.values(), key=lambda w: (w.claim.uid, w.driver))),
        )
        return slices(parts, _sorting)


def _request(fact: f.PrepareRequested, record: Record) -> Request:
    return Request(
        sequence=record.sequence,
        id=record.id,
        time=record.time,
        boot=record.boot,
        writer=record.writer,
        source=fact.source,
        claims=fact.claims,
        containers=fact.containers,
        extended=fact.extended,
    )


def _holds(claim: ClaimState) -> bool:
    """Return whether the claim stands in the way of another one on its devices (rules 12, 13)."""
    free = (Phase.ABSENT, Phase.GENERATED, Phase.UNPREPARED, Phase.CLOSED)
    return bool(claim.suspect) or claim.phase not in free


def _shares(other: ClaimState, key: DeviceKey, share_id: str | None) -> bool:
    if not _holds(other) or other.allocation is None:
        return False
    return any(
        (d.driver, d.pool, d.device) == key
        and not d.admin_access
        and (share_id is None or d.share_id is None or d.share_id == share_id)
        for d in other.allocation.devices
    )


def _move(
    index: MutableMapping[_Key, tuple[ClaimUid, ...]],
    uid: ClaimUid,
    *,
    before: set[_Key],
    after: set[_Key],
) -> None:
    """Take *uid* from the keys *before* to those *after*."""
    if before == after:
        return
    for key in before - after:
        rest = tuple(other for other in index[key] if other != uid)
        if rest:
            index[key] = rest
        else:
            del index[key]
    for key in after - before:
        index[key] = (*index.get(key, ()), uid)


def _name_keys(claim: ClaimState | None) -> set[tuple[str, str]]:
    return {(claim.ref.namespace, claim.ref.name)} if claim else set()


def _pod_keys(claim: ClaimState | None) -> set[PodUid]:
    if claim is None:
        return set()
    held = {consumer.pod.uid for consumer in claim.consumers}
    return held | {claim.released.uid} if claim.released else held


def _device_keys(claim: ClaimState | None) -> set[DeviceKey]:
    # Only claims that hold their devices: a node sees many ended ones on the same device.
    devices = claim.allocation.devices if claim and claim.allocation and _holds(claim) else ()
    return {(d.driver, d.pool, d.device) for d in devices}


def _operation_keys(claim: ClaimState | None) -> set[str]:
    return {claim.operation.id} if claim and claim.operation else set()


# --- node facts ----------------------------------------------------------------------------------


def _writer_started(node: Node, fact: f.WriterStarted, record: Record) -> None:
    if fact.boot != node.boot:
        node.boot_time = record.time
    node.boot = fact.boot
    node.writer = fact.writer
    node.writer_sequence = record.sequence
    node.synced = frozenset()
    node.drivers.clear()


def _source_synced(node: Node, fact: f.SourceSynced, _: Record) -> None:
    node.synced |= {fact.source}


def _driver_registered(node: Node, fact: f.DriverRegistered, record: Record) -> None:
    instances = [i for i in node.drivers.get(fact.driver, ()) if i.instance != fact.instance]
    new = RegisteredDriver(
        driver=fact.driver,
        instance=fact.instance,
        endpoint=fact.endpoint,
        api=fact.api,
        sequence=record.sequence,
        time=record.time,
    )
    node.drivers[fact.driver] = (*instances, new)


def _driver_gone(node: Node, fact: f.DriverGone, _: Record) -> None:
    rest = tuple(i for i in node.drivers.get(fact.driver, ()) if i.instance != fact.instance)
    if rest:
        node.drivers[fact.driver] = rest
    else:
        node.drivers.pop(fact.driver, None)


def _settings_changed(node: Node, fact: f.SettingsChanged, _: Record) -> None:
    node.recorded_policy = MappingProxyType(fact.settings)


def _snapshot_taken(node: Node, fact: f.SnapshotTaken, record: Record) -> None:
    node.last_snapshot = TakenSnapshot(
        fact_sequence=record.sequence,
        sequence=fact.sequence,
        digest=fact.digest,
        fold_version=fact.fold_version,
        slot=fact.slot,
        time=record.time,
    )


def _waiver_settled(node: Node, fact: f.WaiverSettled, _: Record) -> None:
    node.waivers.pop((fact.claim_uid, fact.driver), None)


_NODE_FOLDS: dict[str, Any] = {
    "writer_started": _writer_started,
    "source_synced": _source_synced,
    "driver_registered": _driver_registered,
    "driver_gone": _driver_gone,
    "waiver_settled": _waiver_settled,
    "settings_changed": _settings_changed,
    "snapshot_taken": _snapshot_taken,
}
