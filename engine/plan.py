"""
What is owed: the steps that follow from the state, whether it came from a command or from replay.

`plan` is pure and repeatable; a step that is not done is planned again.  `Record` steps are
conclusions, so that a crash before one is repaired at the next start; `CallPrepare` and
`CallUnprepare` say that a call is owed, never when (backoff is the loop's); `Wait` asks for a fixed
delay.  The rules it keeps are R1, R2, R8, R11 and 1, 3, 5, 7, 8, 12, 13 of engine/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from ..events import facts as f
from ..events.record import Draft, Stamp, stamp
from ..events.values import Call, ClaimUid, DriverName, PodUid
from .lifecycle import PREPARING, UNPREPARING, Phase
from .node import DeviceKey, Node
from .state import ClaimState, Consumer, PodState

__all__ = [
    "CallPrepare",
    "CallUnprepare",
    "Record",
    "Step",
    "Wait",
    "conclude",
    "is_prepared",
    "owner",
    "plan",
    "pod_key",
    "pods_of",
    "related",
    "void_reason",
    "waits_for",
]


class Record(msgspec.Struct, frozen=True):
    """Append this conclusion."""

    draft: Draft


class CallPrepare(msgspec.Struct, frozen=True, kw_only=True):
    """Ask *driver* to prepare *claims*: those of the operation that it has not answered yet."""

    operation: str
    driver: DriverName
    claims: tuple[ClaimUid, ...]


class CallUnprepare(msgspec.Struct, frozen=True, kw_only=True):
    """Ask *driver* to unprepare *claims*: those of the operation that it still owes."""

    operation: str
    driver: DriverName
    claims: tuple[ClaimUid, ...]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Append *then* once, *seconds* after the fact that *key* names, if it is still planned."""

    key: str
    seconds: float
    then: Draft


Step = Record | CallPrepare | CallUnprepare | Wait

_CALLABLE_IDLE = (Phase.BOUND, Phase.NEEDS)


def plan(
    node: Node,
    claims: Iterable[ClaimUid] | None = None,
    pods: Iterable[PodUid] | None = None,
    *,
    busy: Collection[str] = (),
) -> tuple[Step, ...]:
    """
    Return what is owed for *claims* and *pods*; for all of the node where both are None.

    No step opens or closes an intent of a *busy* claim, one with calls in flight (rule 7).
    """
    if claims is None and pods is None:
        claims, pods = list(node.claims), list(node.pods)
    planner = _Planner(node, busy)
    for uid in sorted(claims or ()):
        if claim := node.claims.get(uid):
            planner.claim(claim)
    for pod_uid in sorted(pods or ()):
        if pod := node.pods.get(pod_uid):
            planner.pod(pod)
    return planner.steps()


def related(node: Node, claims: Iterable[ClaimUid]) -> set[ClaimUid]:
    """Return *claims* with those whose steps they may change or share: pod, operation, device."""
    found: set[ClaimUid] = set()
    for uid in claims:
        claim = node.claims.get(uid)
        if claim is None:
            continue
        found.add(uid)
        for pod_uid in pods_of(claim):
            found.update(node.by_pod.get(pod_uid, ()))
        if claim.operation:
            found.update(node.by_operation.get(claim.operation.id, ()))
        for device in claim.allocation.devices if claim.allocation else ():
            key = (device.driver, device.pool, device.device)
            found.update(node.by_device.get(key, ()))
    return found


def waits_for(node: Node, claim: ClaimState) -> list[tuple[ClaimState, DeviceKey]]:
    """Return the earlier claims on the same devices that *claim* must wait for (rule 13)."""
    if node.policy.overlap == "record":
        return []
    return [
        (other, key)
        for other, key in node.overlapping(claim)
        if (other.bound_sequence, other.uid) < (claim.bound_sequence, claim.uid)
    ]


def owner(node: Node, claim: ClaimState) -> Consumer | None:
    """Return the live using consumer whose request is first: the prepare operation is its."""
    live = [c for c in claim.consumers if not c.skipped and node.is_live(c.pod.uid, claim)]
    return min(live, key=lambda c: _request_sequence(node, c), default=None)


def void_reason(node: Node, claim: ClaimState) -> Literal["", "boot", "start"]:
    """Return why the claim's answers count no more, if so (rule 5)."""
    operation = claim.operation
    valid = [answer for answer in claim.answers if not answer.void]
    if any(answer.boot != node.boot for answer in valid):
        return "boot"
    if operation and operation.kind == "prepare" and operation.boot != node.boot:
        return "boot"
    if (
        node.policy.reprepare_on == "start"
        and claim.phase is Phase.PREPARED
        and claim.phase_sequence < node.writer_sequence
    ):
        return "start"
    return ""


def is_prepared(node: Node, claim: ClaimState) -> bool:
    """Return whether containers may start with the claim, also before its void is recorded."""
    return claim.phase is Phase.PREPARED and not void_reason(node, claim)


def _request_sequence(node: Node, consumer: Consumer) -> int:
    pod = node.pods.get(consumer.pod.uid)
    return pod.request.sequence if pod and pod.request else 0


def conclude(
    node: Node,
    drafts: Sequence[Draft],
    by: Stamp,
    *,
    new_id: Callable[[], str],
    busy: Collection[str] = (),
    within: Collection[str] | None = None,
) -> list[Draft]:
    """
    Return *drafts* and all conclusions that follow from them, in order, as one group to append.

    Each gets its id here, so that those that follow from it can name it as their cause.

    Only claims and pods whose keys are *within* the caller's fact locks are concluded.  Every
    prefix of the group is a good state (rule 3): what is missing is planned again.
    """
    branch = node.branch()
    claims: set[ClaimUid] = set()
    pods: set[PodUid] = set()
    result: list[Draft] = []
    new = list(drafts)
    while new:
        new = [replace(draft, id=new_id()) for draft in new]
        for draft in new:
            following = branch.sequence + 1
            branch.fold(stamp(draft, by, sequence=following, record_id="", wall_time_ns=0))
            if draft.claim:
                claims.add(draft.claim.uid)
            if draft.pod:
                pods.add(draft.pod.uid)
                claims.update(branch.by_pod.get(draft.pod.uid, ()))
        result += new
        claims = related(branch, claims)
        for uid in claims:
            # As it was before the group: one of its pods may be free to close now.
            pods |= pods_of(node.claims[uid]) if uid in node.claims else set()
        if within is not None:
            claims = {uid for uid in claims if uid in within}
            pods = {uid for uid in pods if pod_key(uid) in within}
        steps = plan(branch, claims, pods, busy=busy)
        new = [step.draft for step in steps if isinstance(step, Record)]
    return result


def pod_key(pod_uid: PodUid) -> str:
    """Return the fact lock's key of a pod; a claim's are its UID and `namespace/name`."""
    return f"pod:{pod_uid}"


def pods_of(claim: ClaimState) -> set[PodUid]:
    """Return the pods that hold *claim*: its consumers, and the one it is unprepared for."""
    pods = {consumer.pod.uid for consumer in claim.consumers}
    return pods | {claim.released.uid} if claim.released else pods


class _Planner:
    """Collects the steps of many claims, so that those of one operation are grouped."""

    def __init__(self, node: Node, busy: Collection[str]) -> None:
        self._node = node
        self._busy = busy
        self._records: list[Step] = []
        self._prepares: dict[tuple[str, DriverName], list[ClaimUid]] = {}
        self._unprepares: dict[tuple[str, DriverName], list[ClaimUid]] = {}
        self._prepare_starts: dict[PodUid, list[ClaimState]] = {}
        self._unprepare_starts: dict[PodUid, list[ClaimState]] = {}
        self._waits: list[Step] = []

    def steps(self) -> tuple[Step, ...]:
        """Return all steps: conclusions first, so that the log is ahead of the calls."""
        for pod_uid, claims in self._prepare_starts.items():
            self._start_prepare(pod_uid, claims)
        for pod_uid, claims in self._unprepare_starts.items():
            self._start_unprepare(pod_uid, claims)
        prepares = [
            CallPrepare(operation=operation, driver=driver, claims=tuple(claims))
            for (operation, driver), claims in self._prepares.items()
        ]
        unprepares = [
            CallUnprepare(operation=operation, driver=driver, claims=tuple(claims))
            for (operation, driver), claims in self._unprepares.items()
        ]
        return (*self._records, *prepares, *unprepares, *self._waits)

    def pod(self, pod: PodState) -> None:
        """Plan the end of an ended pod that no claim holds."""
        if pod.ended and not self._node.by_pod.get(pod.ref.uid):
            draft = Draft(fact=f.PodClosed(), pod=pod.ref, cause=pod.last_id)
            self._records.append(Record(draft))

    def claim(self, claim: ClaimState) -> None:
        """Plan one claim."""
        if claim.suspect:
            return
        if claim.phase in (Phase.GENERATED, Phase.UNPREPARED):
            self._plan_idle(claim)
        elif leaving := self._leaving(claim):
            for fact in leaving:
                pod = self._node.pods.get(fact.pod_uid)
                self._record(claim, fact, cause=pod.last_id if pod else "")
        elif claim.phase in UNPREPARING:
            self._plan_unpreparing(claim)
        elif why := void_reason(self._node, claim):
            if claim.uid not in self._busy:
                self._record(claim, f.ReprepareNeeded(why=why))
        elif not claim.consumers:
            self._plan_release(claim)
        elif claim.phase in PREPARING:
            self._plan_preparing(claim)
        elif claim.phase in _CALLABLE_IDLE:
            self._plan_waiting(claim)

    def _record(self, claim: ClaimState, fact: f.ClaimFact, *, cause: str = "") -> None:
        operation = claim.operation.id if claim.operation else ""
        draft = Draft(fact=fact, claim=claim.ref, corr=operation, cause=cause or claim.last_id)
        self._records.append(Record(draft))

    def _leaving(self, claim: ClaimState) -> list[f.ConsumerLeft]:
        """Return the consumers whose pod has ended, or whose request never made it into the log."""
        found = []
        for consumer in claim.consumers:
            pod = self._node.pods.get(consumer.pod.uid)
            requested = pod.request.sequence if pod and pod.request else 0
            if pod and pod.ended:
                found.append(f.ConsumerLeft(pod_uid=consumer.pod.uid, reason=pod.ended))
            elif (
                requested < consumer.joined_sequence
                and consumer.writer != self._node.writer
                and not consumer.restored
            ):
                found.append(f.ConsumerLeft(pod_uid=consumer.pod.uid, reason="abandoned"))
        return found

    def _plan_idle(self, claim: ClaimState) -> None:
        if claim.phase is Phase.UNPREPARED and claim.lost == "deleted":
            self._record(claim, f.Deleted())
        elif claim.phase is Phase.UNPREPARED and claim.lost:
            self._record(claim, f.Deallocated())
        else:
            draft = Draft(fact=f.Retired(), claim=claim.ref, cause=claim.last_id)
            self._waits.append(
                Wait(
                    key=f"{claim.uid}:{claim.phase_sequence}",
                    seconds=self._node.policy.unprepared_retention_seconds,
                    then=draft,
                )
            )

    def _plan_unpreparing(self, claim: ClaimState) -> None:
        assert claim.operation is not None
        for debt in claim.debts:
            self._unprepares.setdefault((claim.operation.id, debt.driver), []).append(claim.uid)
        if not claim.debts and claim.uid not in self._busy:
            self._record(claim, f.Unprepared())

    def _plan_release(self, claim: ClaimState) -> None:
        if claim.phase is Phase.BOUND and not claim.debts:
            if claim.uid not in self._busy:
                self._record(claim, f.Unprepared())
            return
        pod_uid = claim.released.uid if claim.released else PodUid("")
        self._unprepare_starts.setdefault(pod_uid, []).append(claim)

    def _plan_preparing(self, claim: ClaimState) -> None:
        assert claim.operation is not None
        missing = claim.unanswered()
        if not missing:
            if claim.uid not in self._busy:
                self._record(claim, f.Prepared())
        elif not claim.lost and owner(self._node, claim):
            for driver in missing:
                self._prepares.setdefault((claim.operation.id, driver), []).append(claim.uid)

    def _plan_waiting(self, claim: ClaimState) -> None:
        pod = owner(self._node, claim)
        if claim.lost or pod is None:
            return
        if self._overlap_to_record(claim) or waits_for(self._node, claim):
            return
        missing = claim.unanswered()
        if not missing:
            if claim.uid not in self._busy:
                self._record(claim, f.Prepared())
        elif all(driver in self._node.drivers for driver in missing):
            self._prepare_starts.setdefault(pod.pod.uid, []).append(claim)

    def _overlap_to_record(self, claim: ClaimState) -> bool:
        """Record each overlap with an earlier claim once; it names the other by UID only."""
        known = {(o.driver, o.pool, o.device, o.other_claim_uid) for o in claim.overlaps}
        fresh = False
        for other, (driver, pool, device) in self._node.overlapping(claim):
            earlier = (other.bound_sequence, other.uid) < (claim.bound_sequence, claim.uid)
            if not earlier or (driver, pool, device, other.uid) in known:
                continue
            fresh = True
            fact = f.AnomalyFound(
                kind="device_overlap",
                driver=DriverName(driver),
                pool=pool,
                device=device,
                other_claim_uid=other.uid,
                text=f"{driver}/{pool}/{device} is also held by another claim",
            )
            self._record(claim, fact)
        return fresh

    def _start_prepare(self, pod_uid: PodUid, claims: list[ClaimState]) -> None:
        if any(claim.uid in self._busy for claim in claims):
            return
        operation = f"prepare-{self._node.sequence}-{pod_uid}"
        pod = self._node.pods.get(pod_uid)
        cause = pod.request.id if pod and pod.request else ""
        for claim in claims:
            calls = tuple(self._call(driver) for driver in claim.unanswered())
            fact = f.PrepareStarted(
                operation=operation,
                pod_uid=pod_uid,
                calls=calls,
                why="reprepare" if claim.voided else "request",
            )
            draft = Draft(fact=fact, claim=claim.ref, corr=operation, cause=cause)
            self._records.append(Record(draft))

    def _start_unprepare(self, pod_uid: PodUid, claims: list[ClaimState]) -> None:
        if any(claim.uid in self._busy for claim in claims):
            return
        operation = f"unprepare-{self._node.sequence}-{pod_uid}"
        for claim in claims:
            calls = tuple(self._call(debt.driver) for debt in claim.debts)
            fact = f.UnprepareStarted(operation=operation, calls=calls)
            draft = Draft(fact=fact, claim=claim.ref, corr=operation, cause=claim.last_id)
            self._records.append(Record(draft))

    def _call(self, driver: DriverName) -> Call:
        instances = self._node.drivers.get(driver, ())
        if not instances:
            return Call(driver=driver)
        newest = instances[-1]
        return Call(driver=driver, instance=newest.instance, endpoint=newest.endpoint)
