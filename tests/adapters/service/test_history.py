"""Which records belong to a claim or a pod, and how each of them reads."""

from __future__ import annotations

import msgspec
import pytest
from tests.engine.facts import (
    BOUND,
    GENERATED,
    GPU,
    PREPARED,
    REF,
    UNPREPARING,
    joined,
    left,
    pod_ref,
    record,
)

from claimlet.adapters.service.history import (
    ClaimHistory,
    History,
    NodeHistory,
    PodHistory,
    as_document,
    detail,
)
from claimlet.engine.errors import AmbiguousError
from claimlet.events import facts as f
from claimlet.events.record import Record
from claimlet.events.values import ClaimUid, PodUid

_DONE = (*UNPREPARING, f.Unprepared())


def claim_records(*facts: f.Fact, uid: str = REF.uid, after: int = 0) -> list[Record]:
    """Return *facts* about a claim of the usual name."""
    ref = msgspec.structs.replace(REF, uid=ClaimUid(uid))
    replace = msgspec.structs.replace
    return [replace(record(fact, after + n), claim=ref) for n, fact in enumerate(facts, 1)]


def pod_record(fact: f.PodFact, name: str, sequence: int, *, uid: str = "") -> Record:
    """Return a fact about the pod *name*."""
    pod = msgspec.structs.replace(pod_ref(name), uid=PodUid(uid or name))
    return msgspec.structs.replace(record(fact, sequence), claim=None, pod=pod)


def sequences(history: History, records: list[Record]) -> list[int]:
    return [found.sequence for found in history.select(records)]


class TestClaim:
    def test_is_the_open_one_of_several(self) -> None:
        """A name means the open claim, even where an ended one was heard of later."""
        ended = claim_records(*_DONE, uid="old")
        still_open = claim_records(*BOUND, uid="new", after=len(ended))
        late = claim_records(
            f.AnomalyFound(kind="orphan", driver=GPU, text="t"),
            uid="old",
            after=len(ended) + len(still_open),
        )
        records = [*ended, *still_open, *late]

        assert {r.claim.uid for r in ClaimHistory("ml", "c1").select(records) if r.claim} == {"new"}
        assert ClaimHistory("ml", "c1", uid="old").select(records) == [*ended, *late]

    def test_is_the_newest_of_ended_ones(self) -> None:
        """Where none is open, the last one is meant."""
        records = [
            *claim_records(*_DONE, uid="first"),
            *claim_records(*_DONE, uid="second", after=len(_DONE)),
        ]
        assert ClaimHistory("ml", "c1").select(records) == records[len(_DONE) :]

    def test_asks_which_one_is_meant(self) -> None:
        """Several open ones: their UIDs are told."""
        records = [
            *claim_records(*BOUND, uid="one"),
            *claim_records(*BOUND, uid="two", after=len(BOUND)),
        ]
        with pytest.raises(AmbiguousError, match="one, two"):
            ClaimHistory("ml", "c1").select(records)

    def test_is_empty_for_an_unknown_name(self) -> None:
        """Nothing is no error here."""
        records = claim_records(*BOUND)
        assert not ClaimHistory("ml", "other").select(records)
        assert not ClaimHistory("ml", "c1", uid="other").select(records)


class TestPod:
    def test_has_its_claims_from_the_first_fact_to_the_last(self) -> None:
        """The pod that brought a claim and was its last consumer has all of its facts."""
        records = claim_records(*_DONE)
        assert sequences(PodHistory("ml", "p1"), records) == [r.sequence for r in records]

    def test_leaves_what_came_after_it_had_left(self) -> None:
        """A claim that others hold goes on without the pod; its joining is where it began."""
        facts = (*PREPARED, joined("p2"), left("p1"), f.ReprepareNeeded(why="boot"), left("p2"))
        records = claim_records(*facts)
        last = len(PREPARED)

        assert sequences(PodHistory("ml", "p1"), records)[-1] == last + 2
        assert sequences(PodHistory("ml", "p2"), records) == [
            last + 1,
            last + 2,
            last + 3,
            last + 4,
        ]

    def test_is_that_of_the_next_consumer_when_it_was_not_unprepared(self) -> None:
        """A last consumer that left before another came has nothing to do with what follows."""
        facts = (*PREPARED, left("p1"), joined("p2"), f.ReprepareNeeded(why="boot"))
        records = claim_records(*facts)

        assert sequences(PodHistory("ml", "p1"), records)[-1] == len(PREPARED) + 1

    def test_has_its_own_facts(self) -> None:
        """Wishes, refusals and their end, of the open pod of that name."""
        records = [
            pod_record(f.PrepareRequested(source="control"), "p", 1, uid="old"),
            pod_record(f.PodClosed(), "p", 2, uid="old"),
            pod_record(f.PrepareRefused(source="control", reasons=("no",)), "p", 3, uid="new"),
        ]
        assert sequences(PodHistory("ml", "p"), records) == [3]
        assert sequences(PodHistory("ml", "p", uid="old"), records) == [1, 2]
        assert not sequences(PodHistory("ml", "other"), records)


class TestNode:
    def test_has_everything(self) -> None:
        """No record is left out."""
        records = claim_records(*_DONE)
        assert NodeHistory().select(records) == records


class TestText:
    def test_is_one_line_for_each_fact(self) -> None:
        """People read what matters of a fact; an unknown one is said to be unknown."""
        assert detail(record(GENERATED, 1)) == "template for pod claim gpu"
        refused = f.DriverFailed(driver=GPU, outcome="refused", text="busy", attempts=3)
        assert detail(record(refused, 1)) == f"{GPU} refused (attempt 3): busy"
        assert detail(record(f.PodFinished(phase="Failed"), 1)) == "phase=Failed"
        unknown = msgspec.structs.replace(record(GENERATED, 1), fact=None)
        assert detail(unknown) == "(unknown to this version)"

    def test_is_a_document_with_its_name(self) -> None:
        """The document is the record as stored, with its sequence and name in front."""
        document = as_document(record(f.ConsumerLeft(pod_uid=PodUid("p1"), reason="deleted"), 7))

        assert (document["sequence"], document["fact"]) == (7, "consumer_left")
        assert document["claim"] == {"uid": "c1-uid", "namespace": "ml", "name": "c1"}
        assert document["body"] == {"pod_uid": "p1", "reason": "deleted"}
