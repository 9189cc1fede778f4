"""
What to record when a call has ended, and when an operator steps in.

An answer is judged per claim and per driver; an error of the call as a whole says nothing about any
single claim (rule 7).  Repeats do not flood the log (rule 16).  Nothing is called here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from ..events import facts as f
from ..events.record import Draft
from ..events.values import ClaimUid, DriverName
from .answers import judge, judge_error, judge_unprepared
from .claim import check, differs
from .errors import IllegalFactError, NotFoundError, RefusedError
from .lifecycle import FOLD, PREPARING, UNPREPARING, Phase
from .node import Node
from .plan import CallPrepare, CallUnprepare
from .ports import CdiFault, DriverCallError, Failed, Prepared
from .state import ClaimState
from .texts import cut

__all__ = [
    "Attempt",
    "decide",
    "decide_lost",
    "decide_prepared",
    "decide_replayed",
    "decide_reprepare",
    "decide_settled",
    "decide_unprepared",
    "decide_waived",
    "find_claim",
]

#: At most this many facts of one operation and driver say something new.
_CHANGES_MAX = 8

_CDI_FAULTS: dict[CdiFault, str] = {
    "cdi_unresolved": "no CDI file defines",
    "cdi_conflict": "more than one CDI file defines",
}
#: Of the ids of one fault so many are named.
_IDS_TOLD = 4


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """The call that has ended: which attempt it was, how long it took, when the next is due."""

    number: int
    duration_seconds: float = 0.0
    retry_delay_seconds: float = 0.0


def decide_prepared(
    node: Node,
    call: CallPrepare,
    result: Mapping[ClaimUid, Prepared | Failed] | DriverCallError,
    *,
    attempt: Attempt,
) -> list[Draft]:
    """Return the outcome facts of a prepare call, one for each claim that still waits for it."""
    drafts: list[Draft] = []
    waiting = [
        claim
        for uid in call.claims
        if (claim := node.claims.get(uid))
        and claim.phase in PREPARING
        and claim.operation
        and claim.operation.id == call.operation
    ]
    for claim in waiting:
        answer = _answer_for(claim, result)
        if isinstance(answer, Failed):
            drafts += _failed(claim, call.driver, answer, attempt=attempt)
            continue
        drafts += _prepared(claim, call.driver, answer, boot=node.boot, attempt=attempt)
    return drafts + _unasked(waiting, call, result, attempt=attempt)


def decide_unprepared(
    node: Node,
    call: CallUnprepare,
    result: Mapping[ClaimUid, Failed | None] | DriverCallError,
    *,
    attempt: Attempt,
    provisional: frozenset[ClaimUid] = frozenset(),
) -> list[Draft]:
    """
    Return the outcome facts of an unprepare call.

    For *provisional* claims an earlier prepare may still act, so their yes is not final (rule 1).
    """
    drafts: list[Draft] = []
    waiting: list[ClaimState] = []
    for uid in call.claims:
        claim = node.claims.get(uid)
        debt = claim.debt(call.driver) if claim else None
        if claim is None or claim.phase not in UNPREPARING or debt is None:
            continue
        waiting.append(claim)
        answer: Failed | None
        if isinstance(result, DriverCallError):
            answer = judge_error(result)
        else:
            answer = judge_unprepared(result.get(uid, _missing(claim)))
        if answer is not None:
            drafts += _failed(claim, call.driver, answer, attempt=attempt)
            continue
        is_final = uid not in provisional
        if not is_final and debt.provisional:
            continue
        fact = f.DriverUnprepared(
            driver=call.driver, duration_seconds=attempt.duration_seconds, final=is_final
        )
        drafts.append(_draft(claim, fact))
    return drafts + _unasked(waiting, call, result, attempt=attempt)


def decide(
    node: Node,
    call: CallPrepare | CallUnprepare,
    result: Mapping[ClaimUid, Any] | DriverCallError,
    *,
    attempt: Attempt,
    acting: frozenset[ClaimUid],
) -> list[Draft]:
    """Return the outcome facts of *call*; for *acting* claims an unprepare is not final yet."""
    if isinstance(call, CallPrepare):
        return decide_prepared(node, call, result, attempt=attempt)
    return decide_unprepared(node, call, result, attempt=attempt, provisional=acting)


def decide_lost(node: Node, claim_uid: ClaimUid, fact: f.ObjectLost) -> list[Draft]:
    """Return the fact that the claim's object is not what it was; none if nobody holds it."""
    claim = node.claims.get(claim_uid)
    if claim is None or claim.lost or (claim.phase, fact.word) not in FOLD:
        return []
    return [Draft(fact=fact, claim=claim.ref, cause=claim.last_id)]


def decide_reprepare(claim: ClaimState, *, actor: str) -> list[Draft]:
    """
    Return the fact that voids a claim's answers, so that its drivers are asked again.

    Raises:
        RefusedError: The claim is unpreparing, or holds nothing that could be prepared again.
    """
    fact = f.ReprepareNeeded(why="operator")
    if claim.suspect:
        raise RefusedError(
            [f"claim {claim.ref} is suspect: {claim.suspect}"],
            hint=f"claimlet claims describe {claim.ref}",
        )
    try:
        check(claim, fact)
    except IllegalFactError:
        raise RefusedError(
            [f"claim {claim.ref} is {claim.phase.value}; there is nothing to prepare again"],
            hint=f"claimlet claims describe {claim.ref} shows what it waits for",
        ) from None
    return [Draft(fact=fact, claim=claim.ref, cause=claim.last_id, actor=actor)]


def decide_replayed(
    node: Node, driver: DriverName, *, among: Collection[ClaimUid], actor: str
) -> list[Draft]:
    """
    Return the facts that have *driver* asked again for each claim *among* those with a debt to it.

    The others are not the caller's to decide on: a call of theirs may be under way (rule 7).

    Raises:
        NotFoundError: No claim owes that driver anything, and it is not registered.
    """
    owing = [claim for claim in node.claims.values() if claim.debt(driver)]
    if not owing and driver not in node.drivers:
        raise NotFoundError(
            f"driver {driver} is not registered and no claim has a debt to it",
            hint="claimlet drivers list",
        )
    drafts: list[Draft] = []
    for claim in sorted(owing, key=lambda claim: claim.uid):
        if claim.uid in among and claim.phase not in UNPREPARING and not claim.suspect:
            drafts += decide_reprepare(claim, actor=actor)
    return drafts


def decide_waived(claim: ClaimState, driver: DriverName, *, who: str, why: str) -> list[Draft]:
    """
    Return the fact that an operator gave up what *driver* owes for *claim* (rule 8).

    Raises:
        RefusedError: The claim has consumers, is not unpreparing, or the driver owes nothing.
    """
    if claim.consumers:
        pods = ", ".join(str(consumer.pod) for consumer in claim.consumers)
        raise RefusedError(
            [f"claim {claim.ref} is still used by {pods}"],
            hint="a debt can be waived only after its last pod is gone",
        )
    failure = claim.failure(driver)
    fact = f.DebtWaived(
        driver=driver, who=who, why=cut(why), last_error=failure.text if failure else ""
    )
    try:
        check(claim, fact)
    except IllegalFactError:
        owes = ", ".join(debt.driver for debt in claim.debts) or "nobody"
        raise RefusedError(
            [f"claim {claim.ref} has no debt of {driver} that can be waived (owing: {owes})"],
            hint=f"claimlet claims describe {claim.ref} shows what is owed",
        ) from None
    return [Draft(fact=fact, claim=claim.ref, cause=claim.last_id, actor=who)]


def decide_settled(
    node: Node, claim_uid: ClaimUid, driver: DriverName, *, who: str, why: str
) -> list[Draft]:
    """
    Return the fact that takes a waived debt off the node's list.

    Raises:
        NotFoundError: There is no such waived debt.
    """
    if (claim_uid, driver) not in node.waivers:
        raise NotFoundError(
            f"no waived debt of {driver} for claim {claim_uid}",
            hint=f"claimlet drivers can-stop {driver} lists what is owed",
        )
    fact = f.WaiverSettled(claim_uid=claim_uid, driver=driver, who=who, why=cut(why))
    return [Draft(fact=fact, actor=who)]


# --- parts ---------------------------------------------------------------------------------------


def _answer_for(
    claim: ClaimState, result: Mapping[ClaimUid, Prepared | Failed] | DriverCallError
) -> Prepared | Failed:
    if isinstance(result, DriverCallError):
        return judge_error(result)
    return judge(result.get(claim.uid, _missing(claim)))


def _missing(claim: ClaimState) -> Failed:
    return Failed(
        f"the driver's answer says nothing about claim {claim.ref}",
        outcome="invalid",
        code="missing_answer",
    )


def _draft(claim: ClaimState, fact: f.ClaimFact) -> Draft:
    operation = claim.operation
    return Draft(
        fact=fact,
        claim=claim.ref,
        corr=operation.id if operation else "",
        cause=operation.started_id if operation else claim.last_id,
    )


def _prepared(
    claim: ClaimState, driver: DriverName, answer: Prepared, *, boot: str, attempt: Attempt
) -> list[Draft]:
    """Return the driver's yes, and what is strange about it: accepted, but not unseen (P26)."""
    last = claim.answer(driver)
    fact = f.DriverPrepared(
        driver=driver,
        boot=boot,
        devices=answer.devices,
        duration_seconds=attempt.duration_seconds,
        changed=last is not None and last.devices != answer.devices,
    )
    drafts = [_draft(claim, fact)]
    allocated = claim.allocation.devices if claim.allocation else ()
    own = [device for device in allocated if device.driver == driver]
    known = {(device.pool, device.device) for device in own}
    requests = {part for d in own for part in (d.request, d.request.partition("/")[0])}
    for device in answer.devices:
        unknown = sorted(set(device.requests) - requests)
        if (device.pool, device.device) in known and not unknown:
            continue
        what = f"requests {', '.join(unknown)}" if unknown else "a device"
        anomaly = f.AnomalyFound(
            kind="unknown_device",
            driver=driver,
            pool=device.pool,
            device=device.device,
            text=cut(
                f"{driver} prepared {device.pool}/{device.device} with {what} that the"
                " allocation does not have"
            ),
        )
        drafts.append(_draft(claim, anomaly))
    drafts += [_draft(claim, anomaly) for anomaly in _unusable(driver, answer)]
    return drafts


def _unusable(driver: DriverName, answer: Prepared) -> Iterator[f.AnomalyFound]:
    """Yield that containers cannot have what was prepared: it is accepted all the same."""
    for kind, why in _CDI_FAULTS.items():
        ids = [i for i, fault in answer.cdi_faults.items() if fault == kind]
        if ids:
            more = f" and {len(ids) - _IDS_TOLD} more" if len(ids) > _IDS_TOLD else ""
            told = ", ".join(ids[:_IDS_TOLD]) + more
            text = f"{driver} says prepared, but {why} {told}: no container can start with it"
            yield f.AnomalyFound(kind=kind, driver=driver, text=cut(text))


def _failed(
    claim: ClaimState, driver: DriverName, answer: Failed, *, attempt: Attempt
) -> list[Draft]:
    last = claim.failure(driver)
    fact = f.DriverFailed(
        driver=driver,
        outcome=answer.outcome,
        code=answer.code,
        text=cut(answer.text),
        attempts=attempt.number,
        first_seen=last.first_seen if last else "",
        retry_delay_seconds=attempt.retry_delay_seconds,
    )
    is_news = last is None or (last.changes < _CHANGES_MAX and differs(fact, last))
    return [_draft(claim, fact)] if is_news or _is_power_of_two(attempt.number) else []


def _unasked(
    waiting: list[ClaimState],
    call: CallPrepare | CallUnprepare,
    result: Mapping[ClaimUid, Any] | DriverCallError,
    *,
    attempt: Attempt,
) -> list[Draft]:
    """Return that the driver answered for claims that it was not asked for; they get nothing."""
    if not waiting or isinstance(result, DriverCallError) or not _is_power_of_two(attempt.number):
        return []
    uids = sorted(str(uid) for uid in set(result) - set(call.claims))
    if not uids:
        return []
    fact = f.AnomalyFound(
        kind="protocol_violation",
        driver=call.driver,
        text=cut(
            f"{call.driver} answered for claims that it was not asked for: {', '.join(uids[:4])}"
        ),
    )
    return [_draft(waiting[0], fact)]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def find_claim(node: Node, namespace: str, name: str) -> list[ClaimState]:
    """Return the claims under a name: the open ones, else the newest."""
    found = [node.claims[uid] for uid in node.by_name.get((namespace, name), ())]
    closed = (Phase.UNPREPARED, Phase.GENERATED)
    if open_ones := [claim for claim in found if claim.phase not in closed]:
        return open_ones
    return sorted(found, key=lambda claim: claim.last_sequence)[-1:]
