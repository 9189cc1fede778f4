"""
One claim: what a fact makes of it (`evolve`) and whether it may follow (`check`).

`evolve` never fails: a fact that cannot follow makes the claim *suspect* and changes nothing else
(rule 12).  It is used live and at replay alike, so both give the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ..events import facts as f
from ..events.record import Record
from ..events.values import DriverName, PodUid
from .errors import IllegalFactError
from .lifecycle import FOLD, PREPARING, Phase, advance
from .state import Answer, ClaimState, Consumer, Debt, Failure, Operation, Overlap
from .texts import masked

__all__ = ["broken_condition", "check", "differs", "evolve", "problem"]


def broken_condition(claim: ClaimState, fact: f.Fact) -> str:
    """Return which of `lifecycle.CONDITIONS` *fact* would break, or an empty text."""
    match fact:
        case f.UnprepareStarted() if claim.consumers:
            return f"{len(claim.consumers)} consumers have not left"
        case f.Unprepared() if claim.debts:
            return f"{', '.join(debt.driver for debt in claim.debts)} owes an unprepare"
        case f.Unprepared() if claim.phase is Phase.BOUND and claim.consumers:
            return f"{len(claim.consumers)} consumers have not left"
        case f.Prepared() if missing := claim.unanswered():
            return f"{', '.join(missing)} has not answered"
        case f.DebtWaived(driver=driver) if claim.debt(driver) is None:
            return f"{driver} owes nothing"
    return ""


def problem(claim: ClaimState, fact: f.Fact | None) -> str:
    """Return why *fact* may not follow, or an empty text; the fold's twin of `check`."""
    if fact is None or (claim.phase, fact.word) not in FOLD:
        return "not in the table"
    return broken_condition(claim, fact)


def check(claim: ClaimState, fact: f.ClaimFact) -> Phase:
    """
    Return the phase that *fact* leads to, as the machine and the conditions allow it.

    Raises:
        IllegalFactError: It may not follow.
    """
    phase = advance(claim.phase, fact.word)
    if why := broken_condition(claim, fact):
        raise IllegalFactError(claim.phase.value, fact.word, why=why)
    return phase


def evolve(claim: ClaimState, record: Record) -> ClaimState:
    """Return *claim* after *record*; suspect, and otherwise as it was, if that cannot follow."""
    fact = record.fact
    if fact is None:
        return claim
    if why := problem(claim, fact):
        why = f"{record.word} at {record.sequence} in phase {claim.phase.value}: {why}"
        # The first such fact is the cause; those after it only follow from what was lost.
        return replace(claim, suspect=claim.suspect or why, last_sequence=record.sequence)
    phase = FOLD[claim.phase, record.word]
    changes: dict[str, Any] = {
        "last_sequence": record.sequence,
        "last_id": record.id,
        "last_time": record.time,
    }
    if phase is not claim.phase:
        changes |= {
            "phase": phase,
            "phase_sequence": record.sequence,
            "phase_time": record.time,
        }
    if effect := _EFFECTS.get(record.word):
        changes |= effect(claim, fact, record)
    return replace(claim, **changes)


# --- effects: (claim before, fact, record) → changed fields --------------------------------------

_Changes = dict[str, Any]

#: What a new stay starts without.
_FRESH: _Changes = {
    "answers": (),
    "failures": (),
    "released": None,
    "lost": "",
    "voided": "",
    "overlaps": (),
    "operation": None,
}


def _generated(_: ClaimState, fact: f.Generated, record: Record) -> _Changes:
    return {
        "origin": fact.origin,
        "pod_claim": fact.pod_claim,
        "generated_time": record.time,
    }


def _bound(_: ClaimState, fact: f.Bound, record: Record) -> _Changes:
    consumer = Consumer(pod=fact.pod, joined_sequence=record.sequence, writer=record.writer)
    return _FRESH | {
        "ref": record.claim,
        "allocation": fact.allocation,
        "attributes": fact.attributes,
        "bound_sequence": record.sequence,
        "bound_time": record.time,
        "consumers": (consumer,),
    }


def _consumer_joined(claim: ClaimState, fact: f.ConsumerJoined, record: Record) -> _Changes:
    joined = Consumer(pod=fact.pod, joined_sequence=record.sequence, writer=record.writer)
    if any(c.pod.uid == fact.pod.uid for c in claim.consumers):
        consumers = tuple(
            replace(c, skipped="") if c.pod.uid == fact.pod.uid else c for c in claim.consumers
        )
    else:
        consumers = (*claim.consumers, joined)
    return {"consumers": consumers, "released": None}


def _consumer_left(claim: ClaimState, fact: f.ConsumerLeft, _: Record) -> _Changes:
    rest = tuple(c for c in claim.consumers if c.pod.uid != fact.pod_uid)
    if rest or len(rest) == len(claim.consumers):
        return {"consumers": rest}
    return {"consumers": (), "released": claim.consumers[0].pod}


def _prepare_skipped(claim: ClaimState, fact: f.PrepareSkipped, _: Record) -> _Changes:
    return {
        "consumers": tuple(
            replace(c, skipped=fact.reason) if c.pod.uid == fact.pod_uid else c
            for c in claim.consumers
        )
    }


def _prepare_started(claim: ClaimState, fact: f.PrepareStarted, record: Record) -> _Changes:
    debts = {debt.driver: debt for debt in claim.debts}
    owing = set(claim.unprepare_drivers)
    for call in fact.calls:
        if call.driver not in owing:
            continue
        old = debts.get(call.driver)
        debts[call.driver] = Debt(
            driver=call.driver,
            since=old.since if old else record.time,
            sequence=old.sequence if old else record.sequence,
            boot=record.boot,
            unsettled=old is not None and old.unsettled and old.boot == record.boot,
        )
    operation = Operation(
        id=fact.operation,
        kind="prepare",
        pod_uid=fact.pod_uid,
        sequence=record.sequence,
        time=record.time,
        boot=record.boot,
        writer=record.writer,
        started_id=record.id,
        calls=fact.calls,
        why=fact.why,
    )
    return {"operation": operation, "debts": tuple(debts.values()), "failures": ()}


def _driver_prepared(claim: ClaimState, fact: f.DriverPrepared, record: Record) -> _Changes:
    answer = Answer(
        driver=fact.driver,
        boot=fact.boot,
        writer=record.writer,
        sequence=record.sequence,
        time=record.time,
        devices=fact.devices,
        duration_seconds=fact.duration_seconds,
        changed=fact.changed,
    )
    others = tuple(a for a in claim.answers if a.driver != fact.driver)
    # The process that began the operation has called as well, and may have died over it.
    is_cut = claim.operation is not None and claim.operation.writer != record.writer
    return {
        "answers": (*others, answer),
        "failures": _without(claim, fact.driver),
        "debts": tuple(
            replace(d, answered=True, unsettled=d.unsettled or is_cut)
            if d.driver == fact.driver
            else d
            for d in claim.debts
        ),
    }


def _driver_failed(claim: ClaimState, fact: f.DriverFailed, record: Record) -> _Changes:
    operation = claim.operation.id if claim.operation else ""
    last = claim.failure(fact.driver)
    failure = Failure(
        driver=fact.driver,
        operation=operation,
        outcome=fact.outcome,
        code=fact.code,
        text=fact.text,
        attempts=fact.attempts,
        first_seen=fact.first_seen or record.time,
        time=record.time,
        sequence=record.sequence,
        retry_delay_seconds=fact.retry_delay_seconds,
        changes=last.changes + differs(fact, last) if last else 0,
    )
    changes: _Changes = {"failures": (*_without(claim, fact.driver), failure)}
    if fact.outcome == "unknown" and claim.phase in PREPARING:
        changes["debts"] = tuple(
            replace(d, unsettled=True) if d.driver == fact.driver else d for d in claim.debts
        )
    return changes


def differs(fact: f.DriverFailed, last: Failure) -> bool:
    """Return whether *fact* says something new, beside numbers in its text (rule 16)."""
    return (fact.outcome, fact.code, masked(fact.text)) != (
        last.outcome,
        last.code,
        masked(last.text),
    )


def _prepared(_: ClaimState, __: f.Prepared, ___: Record) -> _Changes:
    return {"operation": None, "failures": (), "voided": ""}


def _reprepare_needed(claim: ClaimState, fact: f.ReprepareNeeded, _: Record) -> _Changes:
    return {
        "answers": tuple(replace(answer, void=True) for answer in claim.answers),
        "operation": None,
        "failures": (),
        "voided": fact.why,
    }


def _unprepare_started(claim: ClaimState, fact: f.UnprepareStarted, record: Record) -> _Changes:
    operation = Operation(
        id=fact.operation,
        kind="unprepare",
        pod_uid=claim.released.uid if claim.released else PodUid(""),
        sequence=record.sequence,
        time=record.time,
        boot=record.boot,
        writer=record.writer,
        started_id=record.id,
        calls=fact.calls,
    )
    return {"operation": operation, "failures": ()}


def _driver_unprepared(claim: ClaimState, fact: f.DriverUnprepared, _: Record) -> _Changes:
    if not fact.final:
        debts = tuple(
            replace(d, provisional=True) if d.driver == fact.driver else d for d in claim.debts
        )
        return {"debts": debts, "failures": _without(claim, fact.driver)}
    return _debt_closed(claim, fact.driver)


def _debt_waived(claim: ClaimState, fact: f.DebtWaived, _: Record) -> _Changes:
    return _debt_closed(claim, fact.driver)


def _debt_closed(claim: ClaimState, driver: DriverName) -> _Changes:
    return {
        "debts": tuple(debt for debt in claim.debts if debt.driver != driver),
        "failures": _without(claim, driver),
    }


def _unprepared(_: ClaimState, __: f.Unprepared, ___: Record) -> _Changes:
    return {"operation": None, "released": None, "failures": ()}


def _object_lost(_: ClaimState, fact: f.ObjectLost, __: Record) -> _Changes:
    return {"lost": fact.how}


def _deallocated(_: ClaimState, __: f.Deallocated, ___: Record) -> _Changes:
    return _FRESH | {"allocation": None, "attributes": {}}


def _restored(claim: ClaimState, fact: f.Restored, record: Record) -> _Changes:
    consumers = tuple(
        # Its request may lie in the gap: a restored consumer is never taken for an abandoned one.
        replace(known, pod=pod, restored=True)
        if (known := claim.consumer(pod.uid))
        else Consumer(pod=pod, joined_sequence=record.sequence, writer=record.writer, restored=True)
        for pod in fact.consumers
    )
    answers = tuple(
        Answer(
            driver=DriverName(driver),
            boot="",
            writer=record.writer,
            sequence=record.sequence,
            time=record.time,
            devices=devices,
            void=True,
        )
        for driver, devices in fact.devices.items()
    )
    debts = tuple(
        Debt(
            driver=driver,
            since=record.time,
            sequence=record.sequence,
            boot=record.boot,
            unsettled=True,
        )
        for driver in fact.debts
    )
    last = claim.consumers[0].pod if claim.consumers else claim.released
    return _FRESH | {
        "ref": record.claim,
        "allocation": fact.allocation,
        "attributes": fact.attributes or claim.attributes,
        "bound_sequence": claim.bound_sequence or record.sequence,
        "bound_time": claim.bound_time or record.time,
        "consumers": consumers,
        "released": None if consumers else last,
        "answers": answers,
        "debts": debts,
        "voided": "restored",
        "suspect": "",
    }


def _anomaly_found(claim: ClaimState, fact: f.AnomalyFound, _: Record) -> _Changes:
    changes: _Changes = {"anomalies": claim.anomalies + 1}
    if fact.kind == "device_overlap" and fact.other_claim_uid:
        overlap = Overlap(
            driver=fact.driver,
            pool=fact.pool,
            device=fact.device,
            other_claim_uid=fact.other_claim_uid,
        )
        changes["overlaps"] = (*claim.overlaps, overlap)
    return changes


def _without(claim: ClaimState, driver: str) -> tuple[Failure, ...]:
    return tuple(failure for failure in claim.failures if failure.driver != driver)


_EFFECTS: dict[str, Callable[[ClaimState, Any, Record], _Changes]] = {
    "generated": _generated,
    "bound": _bound,
    "consumer_joined": _consumer_joined,
    "consumer_left": _consumer_left,
    "prepare_skipped": _prepare_skipped,
    "prepare_started": _prepare_started,
    "driver_prepared": _driver_prepared,
    "driver_failed": _driver_failed,
    "prepared": _prepared,
    "reprepare_needed": _reprepare_needed,
    "unprepare_started": _unprepare_started,
    "driver_unprepared": _driver_unprepared,
    "debt_waived": _debt_waived,
    "unprepared": _unprepared,
    "object_lost": _object_lost,
    "deallocated": _deallocated,
    "restored": _restored,
    "anomaly_found": _anomaly_found,
}
