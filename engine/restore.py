"""
Claims that this log did not see from the beginning: brought in whole, as `restored`.

A kubelet checkpoint says which pods hold a claim and what each driver answered, and no more: no
allocation, no pod's name.  Such a claim carries an allocation without a digest until a pod is asked
for that uses it; then the claim object completes it.  Every driver named owes its unprepare from
the start, so teardown needs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..events import facts as f
from ..events.record import Draft
from ..events.subjects import InvalidTokenError, check_claim_name, check_namespace, check_uid
from ..events.values import (
    AllocatedDevice,
    Allocation,
    ClaimRef,
    DriverName,
    PodRef,
    PodUid,
    PreparedDevice,
)
from .answers import judge
from .errors import RefusedError
from .lifecycle import Phase
from .node import Node
from .ports import ClaimObject, Failed, Prepared
from .state import ClaimState
from .texts import cut

__all__ = ["CLAIMS_MAX", "ForeignClaim", "completed", "decide_import", "has_same_allocation"]

#: Of one import; a node has some hundred pods.
CLAIMS_MAX = 4096
_PODS_MAX = 1024
_DRIVERS_MAX = 256
_NAME_CHARACTERS_MAX = 253
_REASONS_MAX = 32

_FREE = (Phase.ABSENT, Phase.GENERATED, Phase.UNPREPARED)


class ForeignClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that another manager held: its pods, and the last answer of each of its drivers."""

    ref: ClaimRef
    pods: tuple[PodUid, ...] = ()
    drivers: dict[str, tuple[PreparedDevice, ...]] = {}


def decide_import(
    node: Node, claims: Sequence[ForeignClaim], *, why: str, actor: str
) -> list[Draft]:
    """
    Return the facts that take *claims* over; none for those that were taken over just so.

    Raises:
        RefusedError: Something is wrong with one of them, or the node holds it; nothing is taken.
    """
    reasons = _list_problems(claims)
    drafts: list[Draft] = []
    for claim in claims if len(claims) <= CLAIMS_MAX else ():
        found = _problems(claim)
        if not found:
            fact = _restored(claim, why=why)
            if _is_taken_over(node, claim, fact):
                continue
            found = _held_problems(node, claim)
            drafts.append(Draft(fact=fact, claim=claim.ref, actor=actor))
        reasons += [cut(f"claim {_shown(claim.ref)}: {reason}") for reason in found]
    if reasons:
        more = len(reasons) - _REASONS_MAX
        shown = [*reasons[:_REASONS_MAX], *([f"and {more} more"] if more > 0 else [])]
        raise RefusedError(shown, hint="nothing was imported")
    return drafts


def has_same_allocation(held: ClaimState, allocation: Allocation) -> bool:
    """Return whether *allocation* is what *held* was prepared with, as far as that is known."""
    if held.allocation is None:
        return False
    if held.allocation.digest:
        return held.allocation.digest == allocation.digest
    known = {_place(device) for device in held.allocation.devices}
    drivers = {debt.driver for debt in held.debts}
    return known <= {_place(device) for device in allocation.devices} and drivers <= {
        device.driver for device in allocation.devices
    }


def completed(held: ClaimState, claim: ClaimObject, pod: PodRef) -> f.Restored:
    """Return *held* again, with the allocation of *claim* and the name of *pod*, now known."""
    assert claim.allocation is not None
    return f.Restored(
        allocation=claim.allocation,
        attributes=claim.attributes,
        consumers=tuple(pod if c.pod.uid == pod.uid else c.pod for c in held.consumers),
        debts=tuple(debt.driver for debt in held.debts),
        devices={answer.driver: answer.devices for answer in held.answers},
        why="its object is known now",
    )


def _place(device: AllocatedDevice) -> tuple[str, str, str]:
    return (device.driver, device.pool, device.device)


def _restored(claim: ForeignClaim, *, why: str) -> f.Restored:
    devices = tuple(
        AllocatedDevice(
            driver=DriverName(driver),
            pool=device.pool,
            device=device.device,
            request=request,
            share_id=device.share_id,
        )
        for driver, prepared in claim.drivers.items()
        for device in prepared
        for request in device.requests or ("",)
    )
    results = [
        {"driver": d.driver, "pool": d.pool, "device": d.device, "request": d.request}
        | ({"shareID": d.share_id} if d.share_id is not None else {})
        for d in devices
    ]
    verbatim = msgspec.json.encode({"devices": {"results": results}}, order="sorted")
    return f.Restored(
        allocation=Allocation(digest="", devices=devices, verbatim=msgspec.Raw(verbatim)),
        # Only the UID is known; the first request of the pod brings its name.
        consumers=tuple(
            PodRef(uid=uid, namespace=claim.ref.namespace, name=uid.lower()) for uid in claim.pods
        ),
        debts=tuple(DriverName(driver) for driver in claim.drivers),
        devices=dict(claim.drivers),
        why=why,
    )


def _is_taken_over(node: Node, claim: ForeignClaim, fact: f.Restored) -> bool:
    """Return whether just this was imported before: an import that was cut goes on."""
    held = node.claims.get(claim.ref.uid)
    return (
        held is not None
        and held.ref == claim.ref
        and held.phase is Phase.NEEDS
        and held.allocation == fact.allocation
        and tuple(c.pod for c in held.consumers) == fact.consumers
        and tuple(debt.driver for debt in held.debts) == fact.debts
    )


def _held_problems(node: Node, claim: ForeignClaim) -> list[str]:
    """Return why the node cannot take *claim* over as it is."""
    ref = claim.ref
    for uid in node.by_name.get((ref.namespace, ref.name), ()):
        other = node.claims[uid]
        if uid != ref.uid and (other.phase not in _FREE or other.suspect):
            return [f"it is open here under another UID ({other.phase.value})"]
    held = node.claims.get(ref.uid)
    if held is None:
        return []
    if held.ref != ref:
        return [f"its UID belongs to {held.ref}"]
    if held.suspect or held.phase not in _FREE:
        return [f"it is open here already ({held.phase.value})"]
    return []


def _list_problems(claims: Sequence[ForeignClaim]) -> list[str]:
    if len(claims) > CLAIMS_MAX:
        return [f"{len(claims)} claims, more than {CLAIMS_MAX}"]
    reasons = []
    uids, names = set[str](), set[str]()
    for claim in claims:
        if claim.ref.uid in uids or str(claim.ref) in names:
            reasons.append(cut(f"claim {_shown(claim.ref)} is there twice"))
        uids.add(claim.ref.uid)
        names.add(str(claim.ref))
    return reasons


def _problems(claim: ForeignClaim) -> list[str]:
    """Return what is wrong with *claim* itself; what passes can be stored."""
    reasons = []
    try:
        check_uid(claim.ref.uid)
        check_namespace(claim.ref.namespace)
        check_claim_name(claim.ref.name)
        for pod_uid in claim.pods:
            check_uid(pod_uid)
    except InvalidTokenError as error:
        reasons.append(str(error))
    if len(claim.pods) > _PODS_MAX or len(claim.drivers) > _DRIVERS_MAX:
        reasons.append(f"more than {_PODS_MAX} pods or {_DRIVERS_MAX} drivers")
        return reasons
    for driver, devices in claim.drivers.items():
        if not 0 < len(driver) <= _NAME_CHARACTERS_MAX or not driver.isprintable():
            reasons.append("a driver's name that is empty or too long")
        elif isinstance(failed := judge(Prepared(devices=devices)), Failed):
            reasons.append(f"driver {driver}: {failed.text}")
    return reasons


def _shown(ref: ClaimRef) -> str:
    return str(ref) if len(str(ref)) <= 2 * _NAME_CHARACTERS_MAX else f"{str(ref)[:80]}…"
