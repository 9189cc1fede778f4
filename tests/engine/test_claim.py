"""One claim: what each fact makes of it, and what a fact that cannot follow makes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.engine import facts as history
from tests.engine.facts import GPU, NIC, at, folded, joined, left, pod_ref, record, yes
from tests.simulation.rig import allocation

from claimlet.engine.claim import check, evolve
from claimlet.engine.errors import IllegalFactError
from claimlet.engine.lifecycle import FOLD, PREPARING, UNPREPARING, Phase
from claimlet.engine.state import ClaimState
from claimlet.events import facts as f
from claimlet.events.facts import CLAIM_FACTS
from claimlet.events.values import (
    Call,
    DriverName,
    FailureOutcome,
    PodUid,
    PreparedDevice,
)

#: One fact of each kind, with a body that breaks no condition of its own.
SAMPLES: dict[str, f.ClaimFact] = {
    "generated": f.Generated(),
    "bound": f.Bound(pod=pod_ref("p2"), allocation=allocation(f"{GPU}/gpu-1")),
    "consumer_joined": joined("p2"),
    "consumer_left": left("p1"),
    "prepare_skipped": f.PrepareSkipped(pod_uid=PodUid("p1")),
    "prepare_started": f.PrepareStarted(
        operation="op-9", pod_uid=PodUid("p1"), calls=(Call(driver=GPU),)
    ),
    "driver_prepared": yes(GPU),
    "driver_failed": f.DriverFailed(driver=GPU, outcome="refused"),
    "prepared": f.Prepared(),
    "reprepare_needed": f.ReprepareNeeded(why="boot"),
    "unprepare_started": f.UnprepareStarted(operation="op-9"),
    "driver_unprepared": f.DriverUnprepared(driver=GPU),
    "debt_waived": f.DebtWaived(driver=GPU, who="ops", why="gone"),
    "unprepared": f.Unprepared(),
    "object_lost": f.ObjectLost(how="deleted"),
    "deallocated": f.Deallocated(),
    "deleted": f.Deleted(),
    "retired": f.Retired(),
    "restored": f.Restored(allocation=allocation(f"{GPU}/gpu-1")),
    "anomaly_found": f.AnomalyFound(kind="orphan", driver=GPU, text="odd"),
}
ILLEGAL = [(p, w) for p in Phase for w in CLAIM_FACTS if (p, w) not in FOLD]


def name(value: object) -> str:
    return value.value if isinstance(value, Phase) else str(value)


def after(claim: ClaimState, *facts: f.ClaimFact) -> ClaimState:
    """Return *claim* after facts that must be able to follow."""
    result = folded(facts, start=claim)
    assert not result.suspect
    return result


class TestIllegalFacts:
    @pytest.mark.parametrize(("phase", "word"), ILLEGAL, ids=name)
    def test_makes_the_claim_suspect_and_nothing_else(self, phase: Phase, word: str) -> None:
        """A stored fact that cannot follow makes the claim suspect; all else stays as it was."""
        claim = at(phase)
        new = evolve(claim, record(SAMPLES[word], claim.last_sequence + 1))

        assert new.suspect.startswith(f"{word} at {claim.last_sequence + 1} in phase {phase.value}")
        assert replace(new, suspect="", last_sequence=claim.last_sequence) == claim

    def test_keeps_the_first_reason(self) -> None:
        """The first illegal fact is the cause; later ones do not hide it."""
        claim = folded([f.Deleted(), f.Prepared()], start=at(Phase.BOUND))

        assert claim.suspect.startswith("deleted at 3")

    def test_goes_on_folding(self) -> None:
        """A suspect claim goes on to be folded, so that what is known stays whole."""
        claim = folded([f.Deleted(), joined("p2")], start=at(Phase.BOUND))

        assert claim.consumer("p2") is not None
        assert claim.suspect

    def test_only_its_own_restoration_clears_it(self) -> None:
        """`restored` makes a suspect claim sound again."""
        claim = folded([f.Deleted()], start=at(Phase.BOUND))
        claim = after(claim, f.Restored(allocation=allocation(f"{GPU}/gpu-0")))

        assert claim.phase is Phase.NEEDS

    def test_skips_unknown_facts(self) -> None:
        """A record without a fact that this version knows leaves the claim as it was."""
        claim = at(Phase.BOUND)
        unknown = replace(record(f.Prepared(), 3), fact=None, word="future_word")

        assert evolve(claim, unknown) is claim


class TestConditions:
    """Each of the four is asked before an append (`check`) and at replay (`evolve`)."""

    @pytest.mark.parametrize(
        ("phase", "fact", "why"),
        [
            (Phase.BOUND, f.UnprepareStarted(operation="x"), "consumers have not left"),
            (Phase.BOUND_PREPARING, f.UnprepareStarted(operation="x"), "consumers have not left"),
            (Phase.PREPARED, f.UnprepareStarted(operation="x"), "consumers have not left"),
            (Phase.NEEDS, f.UnprepareStarted(operation="x"), "consumers have not left"),
            (Phase.NEEDS_PREPARING, f.UnprepareStarted(operation="x"), "consumers have not left"),
            (Phase.BOUND_UNPREPARING, f.Unprepared(), "owes an unprepare"),
            (Phase.PREPARED_UNPREPARING, f.Unprepared(), "owes an unprepare"),
            (Phase.NEEDS_UNPREPARING, f.Unprepared(), "owes an unprepare"),
            (Phase.BOUND, f.Unprepared(), "consumers have not left"),
            (Phase.BOUND, f.Prepared(), "has not answered"),
            (Phase.BOUND_PREPARING, f.Prepared(), "has not answered"),
            (Phase.NEEDS, f.Prepared(), "has not answered"),
            (Phase.NEEDS_PREPARING, f.Prepared(), "has not answered"),
            (
                Phase.PREPARED_UNPREPARING,
                f.DebtWaived(driver=DriverName("x"), who="o", why="w"),
                "owes nothing",
            ),
        ],
        ids=name,
    )
    def test_a_broken_one(self, phase: Phase, fact: f.ClaimFact, why: str) -> None:
        """A fact that breaks its condition is refused by `check` and makes the claim suspect."""
        claim = at(phase)
        with pytest.raises(IllegalFactError, match=why):
            check(claim, fact)
        new = evolve(claim, record(fact, claim.last_sequence + 1))

        assert why in new.suspect
        assert new.phase is phase

    def test_bound_with_a_debt_is_not_unprepared(self) -> None:
        """From bound `unprepared` wants no debt: a voided prepare left one."""
        claim = after(at(Phase.BOUND_PREPARING), f.ReprepareNeeded(why="boot"), left("p1"))

        assert claim.phase is Phase.BOUND
        with pytest.raises(IllegalFactError, match="owes an unprepare"):
            check(claim, f.Unprepared())

    @pytest.mark.parametrize(
        ("facts", "fact", "phase"),
        [
            ((*history.BOUND, left("p1")), f.Unprepared(), Phase.UNPREPARED),
            (
                (*history.PREPARED, left("p1")),
                f.UnprepareStarted(operation="x"),
                Phase.PREPARED_UNPREPARING,
            ),
            ((*history.STARTED, yes(GPU), yes(NIC)), f.Prepared(), Phase.PREPARED),
            (
                history.UNPREPARING,
                f.DebtWaived(driver=GPU, who="o", why="w"),
                Phase.PREPARED_UNPREPARING,
            ),
        ],
    )
    def test_a_kept_one(
        self, facts: tuple[f.ClaimFact, ...], fact: f.ClaimFact, phase: Phase
    ) -> None:
        """A fact that keeps its condition leads where the table says."""
        claim = folded(facts)

        assert check(claim, fact) is phase
        assert after(claim, fact).phase is phase

    def test_a_claim_without_drivers_is_prepared_at_once(self) -> None:
        """Without a driver to be called nothing has to be answered."""
        bound = f.Bound(pod=pod_ref("p1"), allocation=allocation())
        claim = after(ClaimState(ref=history.REF), f.Generated(), bound, f.Prepared())

        assert claim.phase is Phase.PREPARED


class TestStay:
    def test_generated(self) -> None:
        """`generated` records where the claim comes from."""
        claim = after(ClaimState(ref=history.REF), history.GENERATED)

        assert (claim.origin, claim.pod_claim) == ("template", "gpu")
        assert claim.generated_time

    def test_bound_starts_a_fresh_stay(self) -> None:
        """`bound` drops answers, released, losses and failures of the last stay."""
        old = after(
            folded(history.UNPREPARING),
            f.ObjectLost(how="reallocated"),
            f.DriverUnprepared(driver=GPU),
            f.DriverUnprepared(driver=NIC),
            f.Unprepared(),
        )
        new = after(old, SAMPLES["bound"])

        assert old.answers
        assert old.lost
        assert [c.pod.uid for c in new.consumers] == ["p2"]
        assert (new.answers, new.failures, new.debts, new.overlaps) == ((), (), (), ())
        assert (new.released, new.lost, new.voided, new.operation) == (None, "", "", None)
        assert new.drivers == (GPU,)

    def test_consumer_joined(self) -> None:
        """A further pod joins behind the first; nobody is released any more."""
        claim = after(at(Phase.PREPARED), left("p1"), joined("p2"), joined("p3"))

        assert [c.pod.uid for c in claim.consumers] == ["p2", "p3"]
        assert claim.released is None

    def test_consumer_joined_again(self) -> None:
        """A pod that is a consumer loses its skip and keeps its place."""
        skipped = after(at(Phase.BOUND), f.PrepareSkipped(pod_uid=PodUid("p1")))
        claim = after(skipped, joined("p1"))

        assert skipped.consumers[0].skipped == "unused"
        assert claim.consumers == at(Phase.BOUND).consumers

    def test_consumer_left(self) -> None:
        """The last consumer is released, others are dropped."""
        two = after(at(Phase.PREPARED), joined("p2"))
        one = after(two, left("p1"))
        none = after(one, left("p2"))

        assert (one.consumers[0].pod.uid, one.released) == ("p2", None)
        assert (none.consumers, none.released) == ((), pod_ref("p2"))
        assert after(none, left("p9")).released == pod_ref("p2")

    def test_unprepared(self) -> None:
        """`unprepared` ends the operation and empties released; the answers can still be read."""
        claim = after(
            folded(history.UNPREPARING),
            f.DriverUnprepared(driver=GPU),
            f.DriverUnprepared(driver=NIC),
            f.Unprepared(),
        )

        assert (claim.operation, claim.released, claim.debts) == (None, None, ())
        assert claim.answers

    def test_deallocated(self) -> None:
        """`deallocated` takes the allocation away; the claim can be bound again."""
        claim = after(at(Phase.UNPREPARED), f.Deallocated())

        assert (claim.phase, claim.allocation) == (Phase.GENERATED, None)

    @pytest.mark.parametrize("how", ["deleted", "deallocated", "reallocated"])
    def test_object_lost(self, how: str) -> None:
        """`object_lost` keeps how, and leaves devices and debts alone."""
        claim = at(Phase.PREPARED)
        new = after(claim, f.ObjectLost(how=how))  # type: ignore[arg-type]

        assert new.lost == how
        assert (new.answers, new.debts, new.consumers) == (
            claim.answers,
            claim.debts,
            claim.consumers,
        )


class TestIntents:
    @pytest.mark.parametrize("phase", sorted(PREPARING, key=name), ids=name)
    def test_prepare_started_opens_debts(self, phase: Phase) -> None:
        """The intent is the debt: each called driver may hold something from here on."""
        claim = at(phase)

        assert claim.operation is not None
        assert (claim.operation.kind, claim.operation.pod_uid) == ("prepare", "p1")
        assert [debt.driver for debt in claim.debts] == [GPU, NIC]
        assert not any(debt.answered for debt in claim.debts)

    def test_a_debt_keeps_its_beginning(self) -> None:
        """A later intent keeps since when a driver owes, and asks for a new answer."""
        first = at(Phase.PREPARED).debt(GPU)
        again = at(Phase.NEEDS_PREPARING).debt(GPU)

        assert first is not None
        assert again is not None
        assert (again.since, again.sequence) == (first.since, first.sequence)
        assert (first.answered, again.answered) == (True, False)

    def test_driver_prepared_replaces(self) -> None:
        """A driver's answer replaces its earlier list, and touches no other driver's."""
        one = PreparedDevice(pool="a", device="gpu-0", cdi_device_ids=("a/b=1",))
        other = PreparedDevice(pool="a", device="gpu-0", cdi_device_ids=("a/b=2",))
        claim = after(
            at(Phase.BOUND_PREPARING),
            yes(NIC),
            f.DriverPrepared(driver=GPU, boot="boot-1", devices=(one,)),
            f.DriverPrepared(driver=GPU, boot="boot-1", devices=(other,), changed=True),
        )
        gpu = claim.answer(GPU)

        assert gpu is not None
        assert (gpu.devices, gpu.changed, gpu.void) == ((other,), True, False)
        assert claim.answer(NIC) is not None
        assert claim.unanswered() == ()

    @pytest.mark.parametrize("outcome", ["refused", "unreachable", "unknown", "invalid"])
    def test_driver_failed(self, outcome: FailureOutcome) -> None:
        """A failure is kept with its words; only an unknown end leaves the call unsettled."""
        failed = f.DriverFailed(driver=GPU, outcome=outcome, code="X", text="no", attempts=3)
        claim = after(at(Phase.BOUND_PREPARING), failed)
        failure, debt = claim.failure(GPU), claim.debt(GPU)

        assert failure is not None
        assert debt is not None
        assert (failure.outcome, failure.code, failure.text, failure.attempts) == (
            outcome,
            "X",
            "no",
            3,
        )
        assert debt.unsettled is (outcome == "unknown")
        assert after(claim, yes(GPU)).failures == ()

    def test_a_failed_unprepare_settles_nothing(self) -> None:
        """The end of an unprepare says nothing about earlier prepares."""
        failed = f.DriverFailed(driver=GPU, outcome="unknown")
        debt = after(at(Phase.PREPARED_UNPREPARING), failed).debt(GPU)

        assert debt is not None
        assert not debt.unsettled

    def test_failures_count_what_is_new(self) -> None:
        """Numbers in a text are no news; another outcome, code or text is."""
        texts = ["busy 1", "busy 2", "gone", "gone"]
        claim = after(
            at(Phase.BOUND_PREPARING),
            *(f.DriverFailed(driver=GPU, outcome="refused", text=text) for text in texts),
        )
        failure = claim.failure(GPU)

        assert failure is not None
        assert failure.changes == 1

    def test_prepared_ends_the_operation(self) -> None:
        """`prepared` closes the intent; the debts stay."""
        claim = at(Phase.PREPARED)

        assert (claim.operation, claim.failures, claim.voided) == (None, (), "")
        assert len(claim.debts) == 2

    @pytest.mark.parametrize("why", ["boot", "start", "operator"])
    def test_reprepare_needed(self, why: str) -> None:
        """All answers are void and the intent is closed; debts and device lists stay."""
        before = at(Phase.PREPARED)
        claim = after(before, f.ReprepareNeeded(why=why))  # type: ignore[arg-type]

        assert all(answer.void for answer in claim.answers)
        assert [a.devices for a in claim.answers] == [a.devices for a in before.answers]
        assert (claim.debts, claim.operation, claim.voided) == (before.debts, None, why)
        assert claim.unanswered() == (GPU, NIC)

    @pytest.mark.parametrize("phase", sorted(UNPREPARING, key=name), ids=name)
    def test_unprepare_started(self, phase: Phase) -> None:
        """The unprepare belongs to the pod that was released last."""
        claim = at(phase)

        assert claim.operation is not None
        assert (claim.operation.kind, claim.operation.pod_uid) == ("unprepare", "p1")

    def test_driver_unprepared(self) -> None:
        """A final yes closes the driver's debt, one before a late prepare only marks it."""
        claim = at(Phase.PREPARED_UNPREPARING)
        early = after(claim, f.DriverUnprepared(driver=GPU, final=False))
        final = after(early, f.DriverUnprepared(driver=GPU))
        debt = early.debt(GPU)

        assert debt is not None
        assert debt.provisional
        assert [d.driver for d in final.debts] == [NIC]

    def test_debt_waived(self) -> None:
        """A waiver closes that driver's debt and no other."""
        waived = f.DebtWaived(driver=NIC, who="ops", why="gone for good")
        claim = after(at(Phase.PREPARED_UNPREPARING), waived)

        assert [d.driver for d in claim.debts] == [GPU]


class TestRestored:
    FACT = f.Restored(
        allocation=allocation(f"{GPU}/gpu-0"),
        consumers=(pod_ref("p1"), pod_ref("p2")),
        debts=(GPU,),
        devices={GPU: (PreparedDevice(pool="a", device="gpu-0"),)},
    )

    @pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.CLOSED], ids=name)
    def test_is_a_whole_claim(self, phase: Phase) -> None:
        """From any phase `restored` gives the claim of the fact, with all answers void."""
        claim = after(at(phase), self.FACT)

        assert claim.phase is Phase.NEEDS
        assert [c.pod.uid for c in claim.consumers] == ["p1", "p2"]
        assert all(consumer.restored for consumer in claim.consumers)
        assert [debt.driver for debt in claim.debts] == [GPU]
        assert [(a.driver, a.void) for a in claim.answers] == [(GPU, True)]
        assert (claim.operation, claim.released, claim.suspect) == (None, None, "")

    def test_keeps_where_a_consumer_stood(self) -> None:
        """A consumer that was known keeps its place before its request."""
        claim = after(at(Phase.PREPARED), self.FACT)

        assert claim.consumers[0].joined_sequence == 2
        assert claim.consumers[1].joined_sequence == claim.last_sequence

    def test_without_consumers_the_last_one_is_released(self) -> None:
        """A claim restored without consumers is unprepared for the pod that held it."""
        claim = after(at(Phase.PREPARED), replace(self.FACT, consumers=()))

        assert claim.released == pod_ref("p1")


class TestAnomalies:
    def test_are_counted(self) -> None:
        """Each anomaly is counted, in any phase, and changes nothing else."""
        claim = after(at(Phase.PREPARED), SAMPLES["anomaly_found"], SAMPLES["anomaly_found"])

        assert (claim.anomalies, claim.phase, claim.overlaps) == (2, Phase.PREPARED, ())

    def test_an_overlap_names_the_other_claim(self) -> None:
        """An overlap is kept with the device and the other claim's UID."""
        found = f.AnomalyFound(
            kind="device_overlap",
            driver=GPU,
            pool="node-a",
            device="gpu-0",
            other_claim_uid=history.REF.uid,
            text="shared",
        )
        (overlap,) = after(at(Phase.BOUND), found).overlaps

        assert (overlap.driver, overlap.device, overlap.other_claim_uid) == (
            GPU,
            "gpu-0",
            history.REF.uid,
        )
