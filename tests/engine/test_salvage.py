"""A log with a gap: what it may have touched is suspect, and what is known of it is restored."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from msgspec.structs import replace
from tests.engine.test_histories import HISTORIES, stored

from claimlet.engine.lifecycle import Phase
from claimlet.engine.node import Node
from claimlet.engine.plan import CallPrepare, CallUnprepare, plan
from claimlet.engine.salvage import Salvage
from claimlet.engine.snapshot import dump, load
from claimlet.events.facts import LogGapAcknowledged
from claimlet.events.log import Head
from claimlet.events.record import GAP_WORD, Record, Stamp, decode, stamp

BY = Stamp(node="node-a", boot="boot-9", writer="salvage")


def records_of(name: str) -> list[Record]:
    return [decode(line, sequence=n) for n, line in enumerate(stored(name), 1)]


def with_gap(records: Sequence[Record], lost: Collection[int]) -> list[Record]:
    """Return *records* as a replay gives them that passes over those that are *lost*."""
    fact = LogGapAcknowledged(
        from_sequence=min(lost),
        to_sequence=max(lost),
        link_before="00" * 32,
        missing=len(lost),
        why="test",
    )
    gap = replace(records[0], fact=fact, word=GAP_WORD, sequence=max(lost), claim=None, pod=None)
    before = [record for record in records if record.sequence < min(lost)]
    after = [record for record in records if record.sequence > max(lost)]
    return [*before, gap, *after]


def folded(records: Sequence[Record]) -> Node:
    node = Node("node-a")
    for record in records:
        node.fold(record)
    return node


def salvaged(records: Sequence[Record]) -> Node:
    """Return the node after *records* and what is restored then."""
    node = Node("node-a")
    salvage = Salvage(node)
    for record in records:
        salvage.fold(record)
    for draft in salvage.drafts(actor="test"):
        sequence = node.sequence + 1
        node.fold(stamp(draft, BY, sequence=sequence, record_id=f"s{sequence}", wall_time_ns=0))
    return node


class TestGap:
    def test_every_claim_before_it_is_suspect(self) -> None:
        """Whatever its phase: any of them may have been touched by what is lost."""
        records = records_of("sharing")
        lost = next(r.sequence for r in records if r.word == "driver_prepared")
        before = folded([record for record in records if record.sequence < lost])
        node = folded(with_gap(records, [lost]))

        assert before.claims
        for uid in before.claims:
            if uid in node.claims:
                assert f"records {lost} to {lost} of the log are lost" in node.claims[uid].suspect

    def test_a_claim_that_came_after_it_works_on(self) -> None:
        """What was generated after the gap is as if there were none."""
        records = records_of("sharing")
        node, whole = folded(with_gap(records, [1])), folded(records)

        assert [c for c in node.claims.values() if c.suspect] == []
        assert node.digest() == whole.digest()

    def test_nobody_is_called_until_it_is_restored(self) -> None:
        """Nothing is planned for a suspect claim."""
        records = records_of("sharing")
        lost = next(r.sequence for r in records if r.word == "prepared")
        node = folded(with_gap(records[:lost], [lost]))

        assert [s for s in plan(node) if isinstance(s, CallPrepare | CallUnprepare)] == []

    def test_is_part_of_a_snapshot(self) -> None:
        """A node that is read back suspects what it did."""
        records = records_of("sharing")
        node = folded(with_gap(records, [len(records) // 2]))
        head = Head(sequence=node.sequence, id="x", link=bytes(32))

        assert load(dump(node, head)).digest() == node.digest()


@pytest.mark.parametrize("name", HISTORIES)
class TestSalvage:
    def test_forgets_no_debt_and_no_consumer(self, name: str) -> None:
        """Whichever single record is lost, who owes and who holds is known all the same."""
        records = records_of(name)
        whole = folded(records)
        for lost in range(1, len(records) + 1):
            node = salvaged(with_gap(records, [lost]))
            for uid, true in whole.claims.items():
                if uid not in node.claims:
                    # All that was known of it is lost.
                    assert [r.sequence for r in records if r.claim and r.claim.uid == uid] == [lost]
                    continue
                claim, where = node.claims[uid], (name, lost, records[lost - 1].word)
                known = {debt.driver for debt in claim.debts}
                assert {debt.driver for debt in true.debts} <= known, where
                pods = {consumer.pod.uid for consumer in claim.consumers}
                assert {consumer.pod.uid for consumer in true.consumers} <= pods, where

    @pytest.mark.parametrize("length", [1, 2, 5])
    def test_leaves_no_claim_suspect(self, name: str, length: int) -> None:
        """After it every claim is sound, and was restored if it was suspect."""
        records = records_of(name)
        for first in range(1, len(records) + 1):
            lost = range(first, min(first + length, len(records) + 1))
            before, node = folded(with_gap(records, lost)), salvaged(with_gap(records, lost))

            assert [claim for claim in node.claims.values() if claim.suspect] == []
            for uid, claim in before.claims.items():
                if claim.suspect:
                    assert node.claims[uid].phase is Phase.NEEDS
