"""`claimlet log`: a real service's log, damaged, looked at, given up, and worked on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.cli.node import Node, Ran
from tests.adapters.service.bench import raw_facts
from tests.adapters.service_process import NODE, ServiceProcess, eventually, short_directory

from claimlet.events.chain import genesis, link
from claimlet.events.segment import Line, encode_segment

pytestmark = pytest.mark.damage


@pytest.fixture
def fresh() -> Iterator[Node]:
    """Give a node of this test's own with one driver."""
    # What was restored may still be acted on for as long as a call takes.
    environ = {"CLAIMLET_PREPARE__CALL_TIMEOUT_SECONDS": "1"}
    with short_directory() as directory, ServiceProcess(directory, environ=environ) as service:
        yield Node(service, service.driver(Node.driver_name))


def damage(node: Node, word: str, *, name: str = "") -> int:
    """Flip a bit in the last record of that fact about claim *name*; return its sequence."""
    facts = raw_facts(node.service)
    sequence = next(
        fact.sequence
        for fact in reversed(facts)
        if fact.word == word and (not name or fact.record["claim"]["name"] == name)
    )
    assert node.service.stop() == 0
    flip(node, sequence)
    return sequence


def flip(node: Node, sequence: int) -> None:
    (path,) = node.service.state_dir.glob("js/jetstream/LOG/streams/EVENTS/msgs/*.blk")
    data = bytearray(path.read_bytes())
    place = data.index(sequence.to_bytes(8, "little"))
    data[data.index(b'"node"', place) + 1] ^= 1
    path.write_bytes(data)


def end_of(path: Path) -> int:
    """Return the sequence of the last record in a file of the log."""
    data, place, sequence = path.read_bytes(), 0, 0
    while place < len(data):
        sequence = int.from_bytes(data[place + 4 : place + 12], "little")
        place += int.from_bytes(data[place : place + 4], "little") & 0x7FFF_FFFF
    return sequence


def copy_of_log(node: Node) -> Path:
    """Write all records of the log as another copy of it has them."""
    previous, lines = genesis(NODE), []
    for fact in raw_facts(node.service):
        previous = link(previous, fact.subject, fact.data)
        lines.append(
            Line(
                sequence=fact.sequence,
                subject=fact.subject,
                id=fact.record["id"],
                link=previous.hex(),
                data=fact.data.decode(),
            )
        )
    path = node.service.directory / "copy.jsonl"
    path.write_bytes(encode_segment(lines))
    return path


def acknowledge(node: Node, sequence: int, *more: str) -> Ran:
    where = ("--from", str(sequence), "--to", str(sequence), "--why", "a bad disk")
    return node.call("log", "gap", "acknowledge", *where, *more)


class TestGap:
    @pytest.mark.field(53)
    @pytest.mark.rule("R2")
    def test_is_named_given_up_and_worked_on_with(self, fresh: Node) -> None:
        """A lost record is named; once given up, drivers are asked again and all goes on."""
        fresh.prepared("p1", "a")
        fresh.prepared("p2", "b")
        fresh.prepared("p3", "c")
        sequence = damage(fresh, "driver_prepared", name="b")

        fresh.service.start()
        assert fresh.service.wait() == 4
        assert f"record {sequence} is missing" in fresh.service.said()
        listed = fresh.call("log", "gap", "list")
        assert listed.code == 1
        assert listed.rows[0][:4] == [str(sequence), str(sequence), "1", "damaged"]
        assert f"hint: claimlet log gap acknowledge --from {sequence} --to" in listed.err
        info = fresh.call("log", "info", "-o", "json")
        assert info.code == 1
        assert "hole" in info.json["condition"] or "missing" in info.json["condition"]

        done = acknowledge(fresh, sequence)
        assert done.code == 0, done
        assert done.out == (
            f"acknowledged: records {sequence} to {sequence}; restored: ml/a, ml/b\n"
        )
        assert acknowledge(fresh, sequence).out.endswith("restored: no claim\n")
        assert fresh.good("log", "gap", "list").rows[0][3] == "acknowledged"
        assert fresh.good("log", "info", "-o", "json").json["condition"] == "whole"

        fresh.service.up()
        eventually(
            lambda: {c.phase for c in fresh.service.claims().values()} == {"prepared"},
            "both are prepared again",
        )
        calls = [len(fresh.driver.calls("prepare", claim)) for claim in "abc"]
        assert calls == [2, 2, 1]
        fresh.prepared("p4", "d")
        for pod in ("p1", "p2", "p3", "p4"):
            fresh.good("pod", "unprepare", f"ml/{pod}", "--wait")
        assert {c.phase for c in fresh.service.claims().values()} == {"unprepared"}

    def test_with_a_copy_nothing_is_lost(self, fresh: Node) -> None:
        """The records of another copy of the log take their place; nobody is asked again."""
        fresh.prepared("p1", "a")
        copy = copy_of_log(fresh)
        before = fresh.good("claims", "get", "ml/a", "-o", "json").json
        sequence = damage(fresh, "driver_prepared")
        text = copy.read_text()
        wrong = copy.with_name("wrong.jsonl")
        wrong.write_text(text.replace("gpu.demo", "gpu.dem0"))

        assert "does not follow the chain" in acknowledge(fresh, sequence, "--copy", f"{wrong}").err
        wrong.unlink()
        done = acknowledge(fresh, sequence, "--copy", str(copy))
        assert done.code == 0, done
        assert "they are kept in the archive, gap-" in done.out
        copy.unlink()
        fresh.service.up()
        after = fresh.good("claims", "get", "ml/a", "-o", "json").json
        assert after["phase"] == "prepared"
        assert after["devices"] == before["devices"]
        assert len(fresh.driver.calls("prepare", "a")) == 1

    def test_of_the_end_is_given_up_too(self, fresh: Node) -> None:
        """A torn tail leaves a hole at the end, and the anchor there; the log goes on."""
        fresh.prepared("p1", "a")
        assert fresh.service.stop() == 0
        (path,) = fresh.service.state_dir.glob("js/jetstream/LOG/streams/EVENTS/msgs/*.blk")
        sequence = end_of(path)
        path.write_bytes(path.read_bytes()[:-100])
        assert acknowledge(fresh, sequence).out.endswith("restored: ml/a\n")
        fresh.service.up()
        fresh.prepared("p2", "b")

        assert fresh.good("log", "info", "-o", "json").json["gaps"] == 1

    def test_only_what_is_damaged_can_be_given_up(self, fresh: Node) -> None:
        """Another range, a log that is whole, a service that runs: each is refused in one line."""
        running = acknowledge(fresh, 1)
        assert running.code == 6
        assert "stop the service first" in running.err
        assert fresh.call("log", "gap", "list").code == 6
        assert fresh.service.stop() == 0
        whole = acknowledge(fresh, 1)
        assert whole.code == 1
        assert "damaged: nothing" in whole.err
        assert "the log is whole" in fresh.good("log", "gap", "list").err
        assert acknowledge(fresh, 1, "--why", " ").code == 2

    @pytest.mark.field(112)
    def test_a_log_that_vanished_is_not_made_anew(self, fresh: Node) -> None:
        """A store that is gone is told, and no empty log takes its place."""
        fresh.prepared("p1", "a")
        assert fresh.service.stop() == 0
        streams = fresh.service.state_dir / "js/jetstream/LOG/streams"
        (streams / "EVENTS").rename(fresh.service.directory / "EVENTS")
        fresh.service.start()

        assert fresh.service.wait() == 4
        assert "the log is gone, but record" in fresh.service.said()
        assert fresh.call("log", "info").code == 4
        (fresh.service.directory / "EVENTS").rename(streams / "EVENTS")
        fresh.service.up()
        assert fresh.service.claims()["ml/a"].phase == "prepared"


class TestInfo:
    def test_of_a_sound_log(self, node: Node) -> None:
        """It tells how much there is, where, how safe, and that all of it was checked."""
        ran = node.good("log", "info")
        view = json.loads(node.good("log", "info", "-o", "json").out)

        assert "Condition: whole" in ran.out
        assert view["facts"] == view["last_sequence"] > 0
        assert view["sync"].startswith("with each fact")
        assert 0 < view["percent"] < 1
