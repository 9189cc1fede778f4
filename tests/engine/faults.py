"""
Faults of the engine: for each promise two ways to break it, each by one function that is wrong.

`test_rules.py` turns each of them on and shows that the tests of that rule notice.  A promise whose
fault nobody notices is not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from claimlet.engine import claim as claim_module
from claimlet.engine import containers, outcome, plan, pod
from claimlet.engine.loop import caller
from claimlet.engine.node import Node
from claimlet.engine.ports import Failed, Prepared
from claimlet.engine.state import ClaimState
from claimlet.events import facts as f
from claimlet.events.record import Record

__all__ = ["FAULTS"]

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]


def _effect(patch: Patch, word: str, wrong: Callable[..., dict[str, Any]]) -> None:
    """Replace what *word* makes of a claim."""
    patch.setitem(claim_module._EFFECTS, word, wrong)


# --- R1: asked again after a boot, once, and never else ------------------------------------------


def r1_boot_unnoticed(patch: Patch) -> None:
    """Let no boot void an answer."""
    patch.setattr(plan, "void_reason", lambda node, claim: "")


def r1_every_start_voids(patch: Patch) -> None:
    """Let a restart void answers as a boot does."""

    def void_reason(node: Node, claim: ClaimState) -> str:
        valid = [answer for answer in claim.answers if not answer.void]
        return "boot" if any(answer.writer != node.writer for answer in valid) else ""

    patch.setattr(plan, "void_reason", void_reason)


# --- R2: unprepare needs nothing but the log -----------------------------------------------------


def r2_needs_the_claim_object(patch: Patch) -> None:
    """Leave a claim whose object is lost prepared."""
    right = plan._Planner._plan_release

    def release(self: Any, claim: ClaimState) -> None:
        if not claim.lost:
            right(self, claim)

    patch.setattr(plan._Planner, "_plan_release", release)


def r2_asks_the_pods_status(patch: Patch) -> None:
    """Give back only the claims that the pod's last request names."""
    right = plan._Planner._leaving

    def leaving(self: Any, claim: ClaimState) -> list[f.ConsumerLeft]:
        found = []
        for fact in right(self, claim):
            state = self._node.pods.get(fact.pod_uid)
            named = {c.claim_uid for c in state.request.claims} if state and state.request else ()
            if claim.uid in named:
                found.append(fact)
        return found

    patch.setattr(plan._Planner, "_leaving", leaving)


# --- R3: one call per pod and driver, one result per claim ---------------------------------------


def r3_one_call_per_claim(patch: Patch) -> None:
    """Call for each claim by itself."""
    right = plan.plan

    def split(*arguments: Any, **options: Any) -> tuple[Any, ...]:
        steps: list[Any] = []
        for step in right(*arguments, **options):
            if isinstance(step, plan.CallPrepare) and len(step.claims) > 1:
                steps += [
                    replace(step, operation=f"{step.operation}/{uid}", claims=(uid,))
                    for uid in step.claims
                ]
            else:
                steps.append(step)
        return tuple(steps)

    from claimlet.engine.loop import node_loop

    patch.setattr(node_loop, "plan", split)


def r3_one_failure_fails_all(patch: Patch) -> None:
    """Let one claim that failed take the answers of the others with it."""
    right = outcome._answer_for

    def answer_for(claim: ClaimState, result: Any) -> Any:
        if isinstance(result, Mapping):
            for answer in result.values():
                if isinstance(answer, Failed):
                    return answer
        return right(claim, result)

    patch.setattr(outcome, "_answer_for", answer_for)


# --- R7: "no claim needed" is skipped, what is wrong is said --------------------------------------


def r7_nothing_is_skipped(patch: Patch) -> None:
    """Look for an entry that needs no claim all the same."""
    right = pod._items

    def items(wish: Any) -> list[Any]:
        return [replace(item, needed=True) for item in right(wish)]

    patch.setattr(pod, "_items", items)


def r7_what_is_wrong_is_skipped(patch: Patch) -> None:
    """Pass over an entry that is wrong or not made yet, in silence."""
    right = pod._items

    def items(wish: Any) -> list[Any]:
        return [item for item in right(wish) if not item.problem and item.claim_name]

    patch.setattr(pod, "_items", items)


# --- R8: unused claims are skipped, per consumer -------------------------------------------------


def r8_never_skips(patch: Patch) -> None:
    """Prepare claims that nobody uses, whatever the settings say."""
    patch.setattr(pod, "_skip_reason", lambda *_, **__: "")


def r8_a_skip_is_no_consumer(patch: Patch) -> None:
    """Let a pod that skips a claim not keep it."""
    right = plan._Planner._leaving

    def leaving(self: Any, claim: ClaimState) -> list[f.ConsumerLeft]:
        if claim.consumers and all(c.skipped for c in claim.consumers) and claim.debts:
            return [f.ConsumerLeft(pod_uid=c.pod.uid, reason="skips") for c in claim.consumers]
        return right(self, claim)

    patch.setattr(plan._Planner, "_leaving", leaving)


# --- R9: readers never see half a list -----------------------------------------------------------


def r9_an_answer_comes_in_parts(patch: Patch) -> None:
    """Record a driver's answer device by device."""
    right = outcome._prepared

    def parts(claim: ClaimState, driver: Any, answer: Any, **options: Any) -> list[Any]:
        drafts: list[Any] = []
        for end in range(1, len(answer.devices) + 1):
            part = Prepared(devices=answer.devices[:end])
            drafts += right(claim, driver, part, **options)
        return drafts or right(claim, driver, answer, **options)

    patch.setattr(outcome, "_prepared", parts)


def r9_an_answer_adds_up(patch: Patch) -> None:
    """Put a new answer behind the old one instead of replacing it."""
    right = claim_module._driver_prepared

    def appended(claim: ClaimState, fact: f.DriverPrepared, record: Record) -> dict[str, Any]:
        old = claim.answer(fact.driver)
        devices = (*old.devices, *fact.devices) if old else fact.devices
        return right(claim, replace(fact, devices=devices), record)

    _effect(patch, "driver_prepared", appended)


# --- R10: unprepare passes back what prepare recorded --------------------------------------------


def r10_passes_no_answer(patch: Patch) -> None:
    """Do not tell unprepare what the driver had answered."""
    right = caller.Caller._adapter_claim

    def adapter_claim(self: Any, uid: Any, driver: Any) -> Any:
        return replace(right(self, uid, driver), devices=())

    patch.setattr(caller.Caller, "_adapter_claim", adapter_claim)


def r10_forgets_the_parameters(patch: Patch) -> None:
    """Lose the opaque parameters with the claim's object."""
    right = caller.Caller._adapter_claim

    def adapter_claim(self: Any, uid: Any, driver: Any) -> Any:
        asked = right(self, uid, driver)
        return replace(asked, config=b"") if self._node.claims[uid].lost else asked

    patch.setattr(caller.Caller, "_adapter_claim", adapter_claim)


# --- R11: prepared when all drivers have answered ------------------------------------------------


def r11_one_answer_is_enough(patch: Patch) -> None:
    """Take a claim for prepared with the first driver's answer."""
    right = ClaimState.unanswered

    def unanswered(self: ClaimState) -> tuple[Any, ...]:
        return () if any(not a.void for a in self.answers) else right(self)

    patch.setattr(ClaimState, "unanswered", unanswered)


def r11_only_the_first_driver(patch: Patch) -> None:
    """Ask only the first driver of a claim."""
    right = vars(ClaimState)["prepare_drivers"]
    first = property(lambda self: right.__get__(self)[:1])
    patch.setattr(ClaimState, "prepare_drivers", first)


# --- R12: after a restart all is as before, from replay ------------------------------------------


def r12_a_start_forgets_devices(patch: Patch) -> None:
    """Forget at a start what a driver answered."""
    from claimlet.engine import node as node_module

    right = node_module._NODE_FOLDS["writer_started"]

    def started(node: Node, fact: Any, record: Record) -> None:
        right(node, fact, record)
        for uid, claim in list(node.claims.items()):
            node.claims[uid] = replace(claim, answers=())

    patch.setitem(node_module._NODE_FOLDS, "writer_started", started)


def r12_memory_runs_ahead(patch: Patch) -> None:
    """Keep something in the live fold that the stored record does not say."""
    calls = [0]

    def prepared(claim: ClaimState, fact: Any, record: Record) -> dict[str, Any]:
        calls[0] += 1
        return {"operation": None, "failures": (), "voided": "", "anomalies": calls[0]}

    _effect(patch, "prepared", prepared)
    _effect(patch, "unprepare_started", _counted(calls))


def _counted(calls: list[int]) -> Callable[..., dict[str, Any]]:
    right = claim_module._unprepare_started

    def started(claim: ClaimState, fact: Any, record: Record) -> dict[str, Any]:
        calls[0] += 1
        return right(claim, fact, record) | {"anomalies": calls[0]}

    return started


# --- R13: devices reach containers as CDI ids ----------------------------------------------------


def r13_everything_to_everybody(patch: Patch) -> None:
    """Let a request not narrow what a container gets."""
    patch.setattr(containers, "_is_for", lambda device, request: True)


def r13_any_text_is_an_id(patch: Patch) -> None:
    """Take any text for a CDI id."""
    from claimlet.engine import answers

    patch.setattr(answers, "is_cdi_id", lambda text: True)


#: rule → the faults that its tests must notice.
FAULTS: dict[str, tuple[Fault, ...]] = {
    "R1": (r1_boot_unnoticed, r1_every_start_voids),
    "R2": (r2_needs_the_claim_object, r2_asks_the_pods_status),
    "R3": (r3_one_call_per_claim, r3_one_failure_fails_all),
    "R7": (r7_nothing_is_skipped, r7_what_is_wrong_is_skipped),
    "R8": (r8_never_skips, r8_a_skip_is_no_consumer),
    "R9": (r9_an_answer_comes_in_parts, r9_an_answer_adds_up),
    "R10": (r10_passes_no_answer, r10_forgets_the_parameters),
    "R11": (r11_one_answer_is_enough, r11_only_the_first_driver),
    "R12": (r12_a_start_forgets_devices, r12_memory_runs_ahead),
    "R13": (r13_everything_to_everybody, r13_any_text_is_an_id),
}
