"""Whatever happens in whatever order: what must always hold (rules 1 to 3, 5, 8, 12)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.simulation.random_play import ACTIONS, POLICIES, Action, play
from tests.simulation.virtual import simulate

from claimlet.engine.state import Policy

#: What happens more often than the rest; a play without pods shows nothing.
WEIGHTED = (*ACTIONS, *("ask",) * 7, *("end",) * 3, *("fault",) * 5, *("pass",) * 5)

actions = st.builds(
    Action, name=st.sampled_from(WEIGHTED), a=st.integers(0, 13), b=st.integers(0, 13)
)


class TestRandomPlays:
    @settings(
        max_examples=120,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.lists(actions, min_size=3, max_size=30), st.sampled_from(POLICIES))
    def test_always_ends_clean(self, happenings: list[Action], policy: Policy) -> None:
        """No call without an intent, no illegal fact, replay is memory, drivers end empty."""
        simulate(lambda: play(happenings, policy))


#: Plays that once failed, with the fault that they showed.
FOUND = {
    "a prepare that an earlier process had called was forgotten after a second restart": [
        Action("fault", 2, 11),
        Action("ask", 8, 1),
        Action("restart", 1, 0),
        Action("finish", 8, 5),
        Action("restart", 1, 0),
    ],
    "a pod whose last claim went to another pod was never closed": [
        Action("ask", 2, 9),
        Action("end", 2, 13),
        Action("ask", 2, 5),
        Action("die_soon", 1, 1),
        Action("pass", 4, 2),
    ],
}


class TestFoundPlays:
    @pytest.mark.parametrize("fault", FOUND)
    def test_stays_fixed(self, fault: str) -> None:
        """A play that once failed ends clean."""
        simulate(lambda: play(FOUND[fault]))
