"""The demo's timeline: drawn from facts, whatever lies close together."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.engine.facts import GPU, NEEDS, PREPARED, STARTED, UNPREPARING, record, yes

from claimlet.adapters.demo.timeline import ASCII_GLYPHS, draw, read_timeline, trail
from claimlet.engine.node import Node
from claimlet.engine.state import Policy
from claimlet.events import facts as f
from claimlet.events.record import Record

_REFUSED = f.DriverFailed(driver=GPU, outcome="refused", text="busy")
_DONE = (f.DriverUnprepared(driver=GPU), f.Unprepared())


def records(*facts: f.Fact) -> list[Record]:
    """Return *facts* as records, one a second."""
    return [record(fact, number) for number, fact in enumerate(facts, 1)]


def node() -> Node:
    return Node("node-a", Policy())


def bars(facts: Iterable[f.Fact], *, width: int) -> dict[str, str]:
    """Return the bar of each device."""
    lines = draw(read_timeline(records(*facts), node()), width=width, glyphs=ASCII_GLYPHS)
    rows = [line.split() for line in lines if line[:3] in ("gpu", "nic")]
    return {row[0]: row[1] for row in rows}


class TestDraw:
    def test_has_a_row_for_each_device(self) -> None:
        """Each device has its bar and the pods that had it."""
        lines = draw(read_timeline(records(*PREPARED), node()), width=10)

        assert [line.split()[0] for line in lines[:2]] == ["gpu-0", "nic-0"]
        assert all(line.endswith("   ml/p1") for line in lines[:2])

    def test_draws_what_was_when(self) -> None:
        """A column is a time: free, preparing, prepared, unpreparing."""
        facts = (*PREPARED, *UNPREPARING[len(PREPARED) :])
        assert bars(facts, width=len(facts) - 1)["gpu-0"] == "..---=-"

    def test_shows_a_refusal_until_the_driver_says_yes(self) -> None:
        """From the failure on, not from the call."""
        facts = (*STARTED, _REFUSED, yes(GPU), *PREPARED[len(STARTED) + 1 :])
        assert "X" in bars(facts, width=len(facts) - 1)["gpu-0"]

    def test_shows_the_most_telling_thing_of_a_column(self) -> None:
        """What was short is seen although much happened beside it."""
        assert bars((*STARTED, _REFUSED), width=1) == {"gpu-0": "X", "nic-0": "X"}
        assert bars(NEEDS, width=2)["gpu-0"][-1] == "?"

    @pytest.mark.parametrize(
        ("booted", "label"), [((), "restart"), ((f.Booted(boot="b2"),), "reboot")]
    )
    def test_marks_starts_of_the_service(self, booted: tuple[f.Fact, ...], label: str) -> None:
        """A start is marked, and told from a boot; the first one is the beginning."""
        first, again = (f.WriterStarted(writer=w, boot="b1") for w in ("w1", "w2"))
        facts = (first, *PREPARED, again, *booted, *NEEDS[len(PREPARED) :])
        lines = draw(read_timeline(records(*facts), node()), width=20)

        column = lines[0].index("┊")
        assert lines[1][column] == "┊"
        assert lines[0].count("┊") == 1
        assert label in lines[2]

    def test_draws_nothing_of_nothing(self) -> None:
        """An empty log has a legend and no device."""
        assert len(draw(read_timeline([], node()))) == 2


class TestTrail:
    def test_is_the_states_of_one_claim(self) -> None:
        """States that people see, each once per change; a closed claim is closed."""
        facts = (*NEEDS, *STARTED[-1:], yes(GPU), *PREPARED[-2:])
        assert trail(records(*facts), node(), "c1-uid") == [
            "generated", "bound", "prepared", "needs-reprepare-after-boot", "prepared",
        ]  # fmt: skip
        facts = (STARTED[0], f.Retired())
        assert trail(records(*facts), node(), "c1-uid") == ["generated", "closed"]
        assert not trail(records(*facts), node(), "other")
