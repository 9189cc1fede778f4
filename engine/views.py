"""
What readers see of a claim, a pod, a driver: frozen values made from the fold, ready for JSON.

They are made in one go without awaiting, so no reader sees a half-written list (rule R9); they
answer the same from replay as live (rule R12), but for what only the running service knows: how
often a call was made and when the next one is due, which the `Live` argument adds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from ..events.record import time_text
from ..events.values import DriverName
from .lifecycle import PREPARING, UNPREPARING, Phase, public_state
from .node import Node
from .plan import is_prepared, owner, waits_for
from .state import ClaimState, PodState

__all__ = [
    "ClaimView",
    "DeviceView",
    "DriverState",
    "DriverView",
    "ErrorView",
    "Live",
    "ObjectView",
    "OwedView",
    "PodView",
    "claim_view",
    "claim_views",
    "pod_state",
    "pod_view",
]

DriverState = Literal["pending", "prepared", "failed", "unpreparing", "unprepared"]

#: (operation, driver) → attempts so far and seconds until the next, where the service knows them.
Live = Callable[[str, DriverName], tuple[int, float | None] | None]


class _View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the views."""


class ObjectView(_View, frozen=True):
    """An object by name and identity."""

    namespace: str
    name: str
    uid: str


class DeviceView(_View, frozen=True):
    """One device of a driver's last answer."""

    pool: str
    device: str
    requests: list[str]
    cdi_device_ids: list[str]
    share_id: str | None = None


class DriverView(_View, frozen=True):
    """One driver of a claim."""

    name: str
    state: DriverState
    devices: list[DeviceView]
    changed: bool = False


class OwedView(_View, frozen=True):
    """What a driver still owes, and why it takes so long."""

    driver: str
    operation: Literal["prepare", "unprepare"]
    since: str
    attempt: int
    next_retry: str | None
    reason: str


class ErrorView(_View, frozen=True):
    """The last thing that went wrong."""

    driver: str
    code: str
    text: str
    time: str


class ClaimView(_View, frozen=True):
    """A claim on this node."""

    namespace: str
    name: str
    uid: str
    state: str
    phase: str
    since: str
    created: str
    origin: str
    pods: list[ObjectView]
    skipped_pods: list[str]
    drivers: list[DriverView]
    devices: list[str]
    #: Drivers that may hold something for the claim.
    debts: list[str]
    owed: list[OwedView]
    last_error: ErrorView | None
    lost: str
    suspect: str
    overlaps: list[str]
    sequence: int


class PodView(_View, frozen=True):
    """A pod on this node: its wish, and how far its claims are."""

    namespace: str
    name: str
    uid: str
    #: pending, prepared, request-again, refused, unpreparing, finished.
    state: str
    reasons: list[str]
    requested: str
    source: str
    claims: list[str]


def claim_view(
    node: Node, claim: ClaimState, *, now_ns: int = 0, live: Live | None = None
) -> ClaimView:
    """Return *claim* as readers see it."""
    devices = claim.allocation.devices if claim.allocation else ()
    return ClaimView(
        namespace=claim.ref.namespace,
        name=claim.ref.name,
        uid=claim.uid,
        state=public_state(claim.phase),
        phase=claim.phase.value,
        since=claim.phase_time or claim.last_time,
        created=claim.generated_time,
        origin=claim.origin,
        pods=_pods(claim),
        skipped_pods=[c.pod.uid for c in claim.consumers if c.skipped],
        drivers=[_driver(claim, driver) for driver in claim.drivers],
        devices=[f"{d.driver}/{d.pool}/{d.device}" for d in devices],
        debts=[debt.driver for debt in claim.debts],
        owed=_owed(node, claim, now_ns=now_ns, live=live),
        last_error=_last_error(claim),
        lost=claim.lost,
        suspect=claim.suspect,
        overlaps=[f"{o.driver}/{o.pool}/{o.device}" for o in claim.overlaps],
        sequence=claim.last_sequence,
    )


def claim_views(node: Node, *, now_ns: int = 0, live: Live | None = None) -> list[ClaimView]:
    """Return all claims of the node, by namespace and name; the log's oldest first among equals."""
    claims = sorted(
        node.claims.values(), key=lambda c: (c.ref.namespace, c.ref.name, c.bound_sequence)
    )
    return [claim_view(node, claim, now_ns=now_ns, live=live) for claim in claims]


def pod_view(node: Node, pod: PodState) -> PodView:
    """Return *pod* as readers see it."""
    state, reasons = pod_state(node, pod)
    return PodView(
        namespace=pod.ref.namespace,
        name=pod.ref.name,
        uid=pod.ref.uid,
        state=state,
        reasons=reasons,
        requested=pod.request.time if pod.request else "",
        source=pod.request.source if pod.request else "",
        claims=[claim.uid for claim in node.claims_of(pod.ref.uid)],
    )


def pod_state(node: Node, pod: PodState) -> tuple[str, list[str]]:
    """
    Return the pod's state and why it is in it.

    `prepared` means that its containers may start: every claim that it uses is prepared in this
    boot.
    """
    if pod.ended:
        return "unpreparing", [f"ended: {pod.ended}"]
    waiting = [
        claim
        for claim in node.claims_of(pod.ref.uid)
        if (consumer := claim.consumer(pod.ref.uid))
        and not consumer.skipped
        and not is_prepared(node, claim)
    ]
    if not waiting:
        return "prepared", []
    if pod.request is None or pod.request.boot != node.boot:
        return "request-again", ["the node has booted since; ask for the pod again"]
    return "pending", [
        f"claim {claim.ref.name}: {_waiting_reason(node, claim)}" for claim in waiting
    ]


def _pods(claim: ClaimState) -> list[ObjectView]:
    pods = [consumer.pod for consumer in claim.consumers]
    if claim.released:
        pods.append(claim.released)
    return [ObjectView(namespace=p.namespace, name=p.name, uid=p.uid) for p in pods]


def _driver(claim: ClaimState, driver: DriverName) -> DriverView:
    answer = claim.answer(driver)
    devices = answer.devices if answer else ()
    return DriverView(
        name=driver,
        state=_driver_state(claim, driver),
        devices=[
            DeviceView(
                pool=d.pool,
                device=d.device,
                requests=list(d.requests),
                cdi_device_ids=list(d.cdi_device_ids),
                share_id=d.share_id,
            )
            for d in devices
        ],
        changed=answer.changed if answer else False,
    )


def _driver_state(claim: ClaimState, driver: DriverName) -> DriverState:
    if claim.phase in (Phase.UNPREPARED, Phase.GENERATED):
        return "unprepared"
    if claim.phase in UNPREPARING:
        return "unpreparing" if claim.debt(driver) else "unprepared"
    if claim.failure(driver):
        return "failed"
    answer = claim.answer(driver)
    if claim.phase is Phase.PREPARED or (answer and not answer.void):
        return "prepared"
    return "pending"


def _owed(node: Node, claim: ClaimState, *, now_ns: int, live: Live | None) -> list[OwedView]:
    operation = claim.operation
    if claim.phase in UNPREPARING and operation:
        drivers = tuple(debt.driver for debt in claim.debts)
    elif claim.phase in PREPARING and operation:
        drivers = claim.unanswered()
    elif claim.phase in (Phase.BOUND, Phase.NEEDS) and any(not c.skipped for c in claim.consumers):
        reason = _waiting_reason(node, claim)
        return [
            OwedView(
                driver=driver,
                operation="prepare",
                since=claim.phase_time,
                attempt=0,
                next_retry=None,
                reason=reason,
            )
            for driver in claim.unanswered()
        ]
    else:
        return []
    return [_owed_call(claim, driver, now_ns=now_ns, live=live) for driver in drivers]


def _owed_call(
    claim: ClaimState, driver: DriverName, *, now_ns: int, live: Live | None
) -> OwedView:
    operation = claim.operation
    assert operation is not None
    failure = claim.failure(driver)
    attempt = failure.attempts if failure else 0
    next_retry = None
    known = live(operation.id, driver) if live else None
    if known is not None:
        attempt = max(attempt, known[0])
        if known[1] is not None:
            next_retry = time_text(now_ns + int(max(known[1], 0.0) * 1e9))
    debt = claim.debt(driver)
    if failure:
        reason = f"{failure.outcome}: {failure.text}"
    elif debt and debt.provisional:
        reason = "unprepared, but an earlier prepare may still act; asked once more after it"
    else:
        reason = "waiting for the driver's answer"
    return OwedView(
        driver=driver,
        operation=operation.kind,
        since=operation.time,
        attempt=attempt,
        next_retry=next_retry,
        reason=reason,
    )


def _waiting_reason(node: Node, claim: ClaimState) -> str:
    """Return why a claim that is wanted is not prepared, the nearest cause first."""
    if claim.suspect:
        return f"suspect: {claim.suspect}"
    if claim.lost:
        return f"its object was {claim.lost}; it is unprepared when its last pod leaves"
    if claim.phase in UNPREPARING:
        return "it is being unprepared"
    if claim.failures:
        failure = claim.failures[-1]
        return f"{failure.driver} {failure.outcome}: {failure.text}"
    if claim.phase in PREPARING:
        return f"waiting for {', '.join(claim.unanswered())}"
    if earlier := waits_for(node, claim):
        driver, pool, device = earlier[0][1]
        return f"{driver}/{pool}/{device} is still held by another claim"
    missing = [driver for driver in claim.unanswered() if driver not in node.drivers]
    if missing:
        return f"driver {', '.join(missing)} is not registered"
    if owner(node, claim) is None:
        return _request_reason(node, claim)
    return "about to be prepared"


def _request_reason(node: Node, claim: ClaimState) -> str:
    for consumer in claim.consumers:
        pod = node.pods.get(consumer.pod.uid)
        if pod and pod.request and pod.request.boot == node.boot:
            if pod.request.source not in node.synced:
                return f"the source {pod.request.source} has not told all it knows yet"
            return "the service has started since; ask for the pod again"
    return "the node has booted since; ask for the pod again"


def _last_error(claim: ClaimState) -> ErrorView | None:
    if not claim.failures:
        return None
    failure = max(claim.failures, key=lambda f: f.sequence)
    return ErrorView(driver=failure.driver, code=failure.code, text=failure.text, time=failure.time)
