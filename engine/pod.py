"""
What to record when a source asks for a pod or says that it is gone: validation, all or nothing.

`decide_prepare` either returns the whole group of facts, `prepare_requested` last, or raises with
every reason (rules 3, 4, 6); nothing of a refused pod is stored.  It calls nobody: what
follows from the facts is planned by `engine.plan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec

from ..events import facts as f
from ..events.record import Draft
from ..events.subjects import InvalidTokenError, check_claim_name, check_namespace, check_uid
from ..events.values import ClaimUid, ExtendedMapping, PodClaim, PodUid
from .errors import RefusedError
from .lifecycle import UNPREPARING, Phase
from .node import Node
from .ports import ClaimObject, PodClaimObject, PodObject
from .restore import completed, has_same_allocation
from .state import ClaimState, Policy, Refusal
from .texts import cut, masked

__all__ = [
    "CLAIMS_MAX",
    "PreparePod",
    "decide_ended",
    "decide_prepare",
    "decide_refused",
]

#: A pod's claims, an allocation's results and a pod's containers: more is refused.
CLAIMS_MAX = 256

#: At most this many facts for one pod's refusals say something new (rule 16).
_CHANGES_MAX = 8


class PreparePod(msgspec.Struct, frozen=True, kw_only=True):
    """A source wants *pod* prepared; *claims* are the objects that its entries name, by name."""

    pod: PodObject
    claims: Mapping[str, ClaimObject]
    source: str
    actor: str = ""


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of the pod that passed, and what it is for the pod."""

    object: ClaimObject
    origin: Literal["template", "user", "extended", "legacy"]
    pod_claim: str
    skip: Literal["", "unused", "driver"]


def decide_prepare(node: Node, command: PreparePod) -> list[Draft]:
    """
    Return the facts that make *command* a standing wish; none if it is one already.

    Raises:
        RefusedError: The pod did not pass; `reasons` names everything that is wrong.
    """
    pod = command.pod
    reasons = _pod_problems(node, pod)
    if reasons:
        raise RefusedError(reasons)
    pod_claims: list[PodClaim] = []
    entries: dict[ClaimUid, _Entry] = {}
    for item in _items(pod):
        if not item.needed:
            pod_claims.append(PodClaim(name=item.name))
            continue
        try:
            claim = _resolve(command, item)
            entry = _judge(node, command, item, claim=claim)
        except RefusedError as error:
            reasons += error.reasons
            continue
        pod_claims.append(PodClaim(name=item.name, claim_uid=claim.ref.uid))
        old = entries.get(claim.ref.uid)
        entries[claim.ref.uid] = entry if old is None or old.skip else old
    if reasons:
        raise RefusedError(reasons)
    return _drafts(node, command, entries, pod_claims=tuple(pod_claims))


def decide_ended(
    node: Node, pod_uid: PodUid, fact: f.PodFinished | f.UnprepareRequested, *, actor: str = ""
) -> list[Draft]:
    """Return the fact that the pod is gone; none for a pod that is unknown or has ended already."""
    pod = node.pods.get(pod_uid)
    if pod is not None:
        return [] if pod.ended else [Draft(fact=fact, pod=pod.ref, actor=actor)]
    for claim in node.claims_of(pod_uid):
        for consumer in claim.consumers:
            if consumer.pod.uid == pod_uid:
                return [Draft(fact=fact, pod=consumer.pod, actor=actor)]
    refusal = node.refusals.get(pod_uid)
    if refusal is not None:
        return [Draft(fact=fact, pod=refusal.pod, actor=actor)]
    return []


def decide_refused(
    node: Node, command: PreparePod, reasons: tuple[str, ...], *, attempts: int
) -> list[Draft]:
    """Return the fact of a refusal, unless it only repeats the last one (rule 16)."""
    pod = command.pod
    fact = f.PrepareRefused(
        source=command.source, reasons=tuple(cut(r) for r in reasons[:32]), attempts=attempts
    )
    draft = Draft(fact=fact, pod=pod.ref, actor=command.actor)
    last = node.refusals.get(pod.ref.uid)
    if last is None or _says_new(fact, last) or attempts & (attempts - 1) == 0:
        return [draft]
    return []


def _says_new(fact: f.PrepareRefused, last: Refusal) -> bool:
    if last.changes >= _CHANGES_MAX:
        return False
    return [masked(r) for r in fact.reasons] != [masked(r) for r in last.reasons]


# --- validation ----------------------------------------------------------------------------------


def _items(pod: PodObject) -> list[PodClaimObject]:
    """Return the pod's entries and, like one more, its extended-resource claim."""
    if pod.extended_claim_name is None:
        return list(pod.claims)
    return [*pod.claims, PodClaimObject(name="", claim_name=pod.extended_claim_name)]


def _pod_problems(node: Node, pod: PodObject) -> list[str]:
    reasons = []
    try:
        check_uid(pod.ref.uid)
        check_namespace(pod.ref.namespace)
        check_claim_name(pod.ref.name)
    except InvalidTokenError as error:
        reasons.append(f"pod: {error}")
    if len(pod.claims) > CLAIMS_MAX or len(pod.containers) > CLAIMS_MAX:
        reasons.append(f"more than {CLAIMS_MAX} claims or containers")
    state = node.pods.get(pod.ref.uid)
    if state is not None and state.ended:
        reasons.append(f"this pod has ended ({state.ended}) and is being unprepared")
    if state is not None and state.ref != pod.ref:
        reasons.append(f"the pod UID {pod.ref.uid} belongs to {state.ref}")
    counts = Counter(claim.name for claim in pod.claims)
    reasons += [f"two pod claims are named {name!r}" for name, n in counts.items() if n > 1]
    names = set(counts)
    for container in pod.containers:
        reasons += [
            f"container {container.name} names the claim {link.name!r}, which the pod does not have"
            for link in container.claims
            if link.name not in names
        ]
    return reasons


def _resolve(command: PreparePod, item: PodClaimObject) -> ClaimObject:
    """Return the object that *item* names, if it exists and is this pod's to use (rule R7)."""
    if item.problem:
        raise RefusedError([f"pod claim {item.name!r}: {item.problem}"])
    if item.claim_name is None:
        raise RefusedError([f"the claim for pod claim {item.name!r} was not created yet"])
    claim = command.claims.get(item.claim_name)
    if claim is None:
        raise RefusedError([f"claim {item.claim_name} does not exist"])
    name = claim.ref.name
    reasons = []
    try:
        check_uid(claim.ref.uid)
        check_claim_name(name)
    except InvalidTokenError as error:
        reasons.append(f"claim {name}: {error}")
    if item.from_template and claim.owner_uid != command.pod.ref.uid:
        reasons.append(f"claim {name} was not made for this pod (its owner is another object)")
    if claim.ref.namespace != command.pod.ref.namespace:
        reasons.append(f"claim {name} is in another namespace")
    if claim.allocation is None:
        reasons.append(f"claim {name} is not allocated")
    elif len(claim.allocation.devices) > CLAIMS_MAX:
        reasons.append(f"claim {name} has more than {CLAIMS_MAX} devices")
    if command.pod.ref.uid not in claim.reserved_for:
        reasons.append(f"claim {name} is not reserved for this pod")
    if reasons:
        raise RefusedError(reasons)
    return claim


def _judge(node: Node, command: PreparePod, item: PodClaimObject, *, claim: ClaimObject) -> _Entry:
    """Return *claim* as an entry of the pod, or raise if the node cannot take it now."""
    assert claim.allocation is not None
    reasons = _identity_problems(node, claim)
    skip = _skip_reason(node.policy, command.pod, item, claim=claim)
    if not skip:
        reasons += [
            f"claim {claim.ref.name} needs the driver {driver}, which is not registered"
            for driver in ClaimState(ref=claim.ref, allocation=claim.allocation).prepare_drivers
            if driver not in node.drivers
        ]
    if reasons:
        raise RefusedError(reasons)
    origin: Literal["template", "user", "extended", "legacy"] = "user"
    if not item.name:
        origin = "extended"
    elif claim.owner_uid == command.pod.ref.uid:
        origin = "template" if claim.pod_claim_name else "legacy"
    return _Entry(object=claim, origin=origin, pod_claim=item.name, skip=skip)


def _identity_problems(node: Node, claim: ClaimObject) -> list[str]:
    """Return why the claim's name, UID or allocation does not fit what the node holds (rule 4)."""
    name = claim.ref.name
    for uid in node.by_name.get((claim.ref.namespace, name), ()):
        other = node.claims[uid]
        is_free = other.phase in (Phase.GENERATED, Phase.UNPREPARED) and not other.suspect
        if uid != claim.ref.uid and not is_free:
            here = f"claim {name} is still here under another UID ({other.phase.value})"
            return [f"{here}; that one must be unprepared first"]
    held = node.claims.get(claim.ref.uid)
    if held is None:
        return []
    if held.ref != claim.ref:
        return [f"the claim UID {claim.ref.uid} belongs to {held.ref}"]
    if held.suspect:
        return [f"claim {name} is suspect: {held.suspect}"]
    if held.phase in (Phase.GENERATED, Phase.UNPREPARED):
        return []
    if held.phase in UNPREPARING:
        return [f"claim {name} is being unprepared"]
    if held.lost:
        return [f"claim {name} was lost ({held.lost}) and must be unprepared first"]
    assert claim.allocation is not None
    if not has_same_allocation(held, claim.allocation):
        return [f"claim {name} has another allocation than the one it was prepared with"]
    return []


def _skip_reason(
    policy: Policy, pod: PodObject, item: PodClaimObject, *, claim: ClaimObject
) -> Literal["", "unused", "driver"]:
    """Return why this consumer needs no prepare of *claim* (rule R8), or an empty text."""
    used = any(link.name == item.name for c in pod.containers for link in c.claims)
    if used or (not item.name and pod.extended):
        return ""
    assert claim.allocation is not None
    drivers = {device.driver for device in claim.allocation.devices}
    said = {policy.unused_claims_by_driver.get(d, policy.unused_claims) for d in drivers}
    if not drivers:
        said = {policy.unused_claims}
    if "prepare" in said:
        return ""
    by_driver = policy.unused_claims != "skip"
    return "driver" if by_driver else "unused"


# --- facts ---------------------------------------------------------------------------------------


def _drafts(
    node: Node,
    command: PreparePod,
    entries: Mapping[ClaimUid, _Entry],
    *,
    pod_claims: tuple[PodClaim, ...],
) -> list[Draft]:
    pod = command.pod
    extended = tuple(
        ExtendedMapping(container=container, resource=resource, request=request, claim_uid=uid)
        for uid, entry in entries.items()
        if not entry.pod_claim
        for container, resource, request in pod.extended
    )
    request = f.PrepareRequested(
        source=command.source,
        claims=pod_claims,
        containers=pod.containers,
        extended=extended,
    )
    drafts = [draft for entry in entries.values() for draft in _claim_drafts(node, command, entry)]
    if not drafts and _is_standing(node, pod.ref.uid, request):
        return []
    return [*drafts, Draft(fact=request, pod=pod.ref, actor=command.actor)]


def _claim_drafts(node: Node, command: PreparePod, entry: _Entry) -> list[Draft]:
    """Return what the claim needs before `prepare_requested`, as far as it is news."""
    claim, pod = entry.object, command.pod.ref
    held = node.claims.get(claim.ref.uid)
    consumer = held.consumer(pod.uid) if held else None
    facts: list[f.Fact] = []
    if held is not None and held.allocation is not None and not held.allocation.digest:
        if claim.config:
            facts.append(f.ConfigRecorded(config=msgspec.Raw(claim.config)))
        facts.append(completed(held, claim, pod))
    if held is None or held.phase is Phase.ABSENT:
        facts.append(f.Generated(origin=entry.origin, pod_claim=entry.pod_claim))
    if held is None or held.phase in (Phase.ABSENT, Phase.GENERATED, Phase.UNPREPARED):
        if claim.config:
            facts.append(f.ConfigRecorded(config=msgspec.Raw(claim.config)))
        assert claim.allocation is not None
        facts.append(f.Bound(pod=pod, allocation=claim.allocation, attributes=claim.attributes))
        skipped = ""
    elif consumer is None or (consumer.skipped and not entry.skip):
        facts.append(f.ConsumerJoined(pod=pod))
        skipped = ""
    else:
        skipped = consumer.skipped
    if entry.skip and not skipped:
        facts.append(f.PrepareSkipped(pod_uid=pod.uid, reason=entry.skip))
    return [Draft(fact=fact, claim=claim.ref, actor=command.actor) for fact in facts]


def _is_standing(node: Node, pod_uid: PodUid, request: f.PrepareRequested) -> bool:
    """Return whether the pod's wish is recorded already and still counts."""
    pod = node.pods.get(pod_uid)
    if pod is None or pod.request is None or pod.ended:
        return False
    old = pod.request
    same = (old.source, old.claims, old.containers, old.extended) == (
        request.source,
        request.claims,
        request.containers,
        request.extended,
    )
    by_this_writer = node.policy.reprepare_on == "boot" or old.writer == node.writer
    return same and by_this_writer and old.boot == node.boot
