"""Snapshots of a fold: the same node comes back, or it costs a replay."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.test_histories import HISTORIES, stored
from tests.engine.test_properties import actions
from tests.events.samples import ALLOCATION, POD, SAMPLES
from tests.simulation.random_play import POLICIES, Action, play
from tests.simulation.virtual import simulate

from claimlet.engine.lifecycle import Phase
from claimlet.engine.node import Node
from claimlet.engine.plan import plan
from claimlet.engine.slices import slices
from claimlet.engine.snapshot import (
    FOLD_VERSION,
    NodeSnapshots,
    Snapshot,
    dump,
    freeze,
    load,
    pieces,
    restore,
)
from claimlet.engine.state import Policy
from claimlet.events.errors import InvalidSnapshotError
from claimlet.events.log import Head
from claimlet.events.record import Record, decode
from claimlet.events.values import ClaimRef, ClaimUid

#: fold version → the fingerprint of the shape that it stores.
SHAPES = {1: "52b24107b694c6b6"}


def head_of(record: Record) -> Head:
    """Return a place for *record*; its link is made up."""
    return Head(sequence=record.sequence, id=record.id, link=sha256(record.id.encode()).digest())


def records_of(lines: Sequence[bytes]) -> list[Record]:
    return [decode(line, sequence=sequence) for sequence, line in enumerate(lines, 1)]


def folded(records: Sequence[Record], policy: Policy | None = None) -> Node:
    node = Node("node-a", policy)
    for record in records:
        node.fold(record)
    return node


def small() -> bytes:
    """Return a snapshot of a node that holds something."""
    records = records_of(stored("sharing"))
    return dump(folded(records), head_of(records[-1]))


def changed(**changes: Any) -> bytes:
    """Return that snapshot with other values in its document."""
    return msgspec.json.encode(msgspec.json.decode(small()) | changes)


def check_prefixes(records: Sequence[Record], policy: Policy | None = None) -> None:
    """Check that from a snapshot at any place the rest of *records* leads to the same node."""
    whole = Node("node-a", policy)
    contents = []
    for record in records:
        whole.fold(record)
        contents.append(dump(whole, head_of(record)))
        # Equal dicts may differ in their order: what is dumped has it.
        assert dump(load(contents[-1], policy), head_of(record)) == contents[-1]
    for place in {len(records) * part // 8 for part in range(8)}:
        node = load(contents[place], policy)
        for record in records[place + 1 :]:
            node.fold(record)
            assert dump(node, head_of(record)) == contents[record.sequence - 1]
        assert vars(node) == vars(whole)
        assert list(plan(node)) == list(plan(whole))


class TestSnapshot:
    @pytest.mark.rule("R12")
    @pytest.mark.parametrize("name", HISTORIES)
    def test_and_tail_are_a_full_replay(self, name: str) -> None:
        """From a snapshot at each place of a recorded log its tail leads to the same node."""
        check_prefixes(records_of(stored(name)))

    @settings(
        max_examples=25,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.lists(actions, min_size=3, max_size=30), st.sampled_from(POLICIES))
    def test_and_tail_are_a_full_replay_of_any_play(
        self, happenings: list[Action], policy: Policy
    ) -> None:
        """The same for whatever may happen on a node, with any settings."""
        rig = simulate(lambda: play(happenings, policy))

        check_prefixes(rig.storage.decoded(), policy)

    def test_keeps_every_kind_of_value(self) -> None:
        """Each fact's traces are in it: parameters of drivers, refusals, waivers, snapshots."""
        records = records_of(stored("waived"))
        last = records[-1]
        claim = ClaimRef(uid=ClaimUid("c"), namespace="ml", name="c")
        node = folded(records)
        for number, fact in enumerate(SAMPLES.values(), last.sequence + 1):
            last = msgspec.structs.replace(
                last,
                sequence=number,
                word=fact.word,
                fact=fact,
                claim=claim if fact.word == "config_recorded" else None,
                pod=POD if fact.word == "prepare_refused" else None,
            )
            node.fold(last)

        twin = load(dump(node, head_of(last)))

        assert vars(twin) == vars(node)
        assert twin.configs == {"c": b'{"secret":1}'}
        assert twin.last_snapshot is not None

    @pytest.mark.field(150)
    def test_holds_plain_data(self) -> None:
        """A snapshot is structs of values: no machine, nothing that can be called."""
        names = {kind.__name__ for kind in structs_of(Snapshot)}

        assert {"ClaimState", "Debt", "Waiver", "AllocatedDevice"} <= names
        assert all(issubclass(kind, msgspec.Struct) for kind in structs_of(Snapshot))

    @pytest.mark.field(34)
    def test_is_of_one_moment(self) -> None:
        """What is folded while it is written is not in it, not even in part."""
        records = records_of(stored("two_drivers"))
        node = folded(records[:8])
        snapshot, digested = freeze(node, head_of(records[7])), node.digested()
        before, digest = dump(node, head_of(records[7])), node.digest()
        for record in records[8:]:
            node.fold(record)

        assert b"".join(pieces(snapshot)) == before
        assert sha256(b"".join(digested)).hexdigest() == digest

    def test_is_written_in_pieces(self) -> None:
        """A thousand claims are many pieces, so that nobody waits until all are encoded."""
        node = Node("node-a")
        record = records_of(stored("sharing"))[-1]
        for number in range(1000):
            ref = ClaimRef(uid=ClaimUid(f"c{number}"), namespace="ml", name=f"c{number}")
            fact = SAMPLES["restored"]
            node.fold(
                msgspec.structs.replace(record, claim=ref, pod=None, fact=fact, word="restored")
            )
        written = list(pieces(freeze(node, head_of(record))))

        assert max(map(len, written)) < len(b"".join(written)) / 5
        assert load(b"".join(written)).claims == node.claims

    def test_slices_are_what_msgspec_writes(self) -> None:
        """Cut or not: the bytes are the same."""
        value = {"a": list(range(250)), "b": [], "c": tuple("x" * 101), "d": {"e": 1}}

        assert b"".join(slices(value.items())) == msgspec.json.encode(value)
        assert b"".join(slices(())) == b"{}"

    def test_keeps_the_allocation_as_it_was(self) -> None:
        """What a driver is told at unprepare is byte for byte what was recorded at prepare."""
        record = records_of(stored("sharing"))[-1]
        ref = ClaimRef(uid=ClaimUid("c"), namespace="ml", name="c")
        fact, word = SAMPLES["restored"], "restored"
        node = folded([msgspec.structs.replace(record, claim=ref, pod=None, fact=fact, word=word)])

        assert load(dump(node, head_of(record))).claims[ref.uid].allocation == ALLOCATION


class TestUnusable:
    @pytest.mark.field(55)
    @pytest.mark.parametrize("content", [b"", b"{", small()[:-40], small() + b"\0\0", b"\xff"])
    def test_bytes_that_are_damaged(self, content: bytes) -> None:
        """Nothing, a part, or more than a snapshot is refused, and leaves the node empty."""
        node = Node("node-a")
        with pytest.raises(InvalidSnapshotError, match="cannot be read"):
            restore(node, content)

        assert vars(node) == vars(Node("node-a"))

    @pytest.mark.field(56)
    def test_another_shape(self) -> None:
        """A list where there was a table is refused; the log is replayed instead."""
        with pytest.raises(InvalidSnapshotError, match="claims"):
            load(changed(claims={"c": 1}))

    @pytest.mark.field(57)
    def test_a_field_that_is_required_now(self) -> None:
        """A snapshot without a field that this version requires is refused."""
        document = msgspec.json.decode(small())
        del document["claims"][0]["ref"]
        with pytest.raises(InvalidSnapshotError, match="missing required field"):
            load(msgspec.json.encode(document))

    def test_another_fold(self) -> None:
        """What another version of the fold has made is not read, whatever it looks like."""
        with pytest.raises(InvalidSnapshotError, match=f"made by version {FOLD_VERSION + 1}"):
            load(changed(fold_version=FOLD_VERSION + 1, claims=7))

    def test_one_that_left_facts_out(self) -> None:
        """Where its claimlet did not know facts that this one may know, it is not read."""
        assert load(changed(vocabulary="older")).claims
        with pytest.raises(InvalidSnapshotError, match="leaves out facts"):
            load(changed(vocabulary="older", not_folded=3))

    def test_another_node(self) -> None:
        """A snapshot of another node is refused."""
        with pytest.raises(InvalidSnapshotError, match="of the node node-a"):
            restore(Node("node-b"), small())

    @pytest.mark.parametrize(
        "orders", [{"by_pod": [[["p1"], ["x", "y"]]]}, {"claims": [[["p1"], ["x"]]]}]
    )
    def test_an_order_that_does_not_fit(self, orders: Any) -> None:
        """An index names the claims that are there, and no others."""
        with pytest.raises(InvalidSnapshotError, match="does not fit"):
            load(changed(orders=orders))


class TestPort:
    def test_gives_back_its_place(self) -> None:
        """What is restored goes on after the record that was folded last."""
        records = records_of(stored("swap"))
        head = head_of(records[-1])
        content = NodeSnapshots(folded(records)).dump(head)
        port = NodeSnapshots(node := Node("node-a"))

        assert port.place(content) == head
        assert node.sequence == 0
        assert port.restore(content) == head
        assert node.digest() == folded(records).digest()


class TestShape:
    def test_is_that_of_the_fold_version(self) -> None:
        """Whoever changes what is stored raises `FOLD_VERSION` and adds the new fingerprint."""
        shape = sorted(
            (kind.__name__, field.encode_name, str(field.type), field.required)
            for kind in structs_of(Snapshot)
            for field in msgspec.structs.fields(kind)
        )
        stored_as = (shape, sorted(phase.value for phase in Phase))
        fingerprint = sha256(msgspec.json.encode(stored_as)).hexdigest()[:16]

        assert SHAPES.get(FOLD_VERSION) == fingerprint
        assert max(SHAPES) == FOLD_VERSION


def structs_of(kind: Any) -> set[type]:
    """Return all structs that a value of *kind* may hold."""
    found: set[type] = set()
    waiting = [kind]
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
            found.add(kind)
            waiting += [field.type for field in msgspec.structs.fields(kind)]
    return found
