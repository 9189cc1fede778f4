"""The lifecycle: every phase with every fact, against a table written apart from `EDGES`."""

from __future__ import annotations

import pytest
from transitions import Machine

from claimlet.engine.errors import IllegalFactError
from claimlet.engine.lifecycle import (
    CONDITIONS,
    EDGES,
    FOLD,
    MACHINE,
    PREPARING,
    UNPREPARING,
    Phase,
    advance,
    build_machine,
    derive_fold,
    possible,
    public_state,
)
from claimlet.events.facts import CLAIM_FACTS

#: The columns, by the short names that the cells use.
COLUMNS = {
    "a": Phase.ABSENT,
    "g": Phase.GENERATED,
    "b": Phase.BOUND,
    "bp": Phase.BOUND_PREPARING,
    "bu": Phase.BOUND_UNPREPARING,
    "p": Phase.PREPARED,
    "pu": Phase.PREPARED_UNPREPARING,
    "n": Phase.NEEDS,
    "np": Phase.NEEDS_PREPARING,
    "nu": Phase.NEEDS_UNPREPARING,
    "u": Phase.UNPREPARED,
    "c": Phase.CLOSED,
}

#: fact by phase: where it leads, `=` stays, `.` may not follow (engine/README.md).
TABLE = """
                   a    g    b    bp   bu   p    pu   n    np   nu   u    c
generated          g    .    .    .    .    .    .    .    .    .    .    .
bound              .    b    .    .    .    .    .    .    .    .    b    .
consumer_joined    .    .    =    =    .    =    .    =    =    .    .    .
consumer_left      .    .    =    =    =    =    =    =    =    =    .    .
prepare_skipped    .    .    =    =    .    =    .    =    =    .    .    .
prepare_started    .    .    bp   .    .    .    .    np   .    .    .    .
driver_prepared    .    .    .    =    .    .    .    .    =    .    .    .
driver_failed      .    .    .    =    =    .    =    .    =    =    .    .
prepared           .    .    p    p    .    .    .    p    p    .    .    .
reprepare_needed   .    .    =    b    .    n    .    =    n    .    .    .
unprepare_started  .    .    bu   bu   .    pu   .    nu   nu   .    .    .
driver_unprepared  .    .    .    .    =    .    =    .    .    =    .    .
debt_waived        .    .    .    .    =    .    =    .    .    =    .    .
unprepared         .    .    u    .    u    .    u    .    .    u    .    .
object_lost        .    .    =    =    =    =    =    =    =    =    .    .
deallocated        .    .    .    .    .    .    .    .    .    .    g    .
deleted            .    c    .    .    .    .    .    .    .    .    c    .
retired            .    c    .    .    .    .    .    .    .    .    c    .
restored           n    n    n    n    n    n    n    n    n    n    n    .
anomaly_found      .    =    =    =    =    =    =    =    =    =    =    .
"""


def expected() -> dict[tuple[Phase, str], Phase | None]:
    """Return the table's cells: where each fact leads, None where it may not follow."""
    header, *rows = (line.split() for line in TABLE.strip().splitlines())
    cells: dict[tuple[Phase, str], Phase | None] = {}
    for word, *row in rows:
        for column, cell in zip(header, row, strict=True):
            phase = COLUMNS[column]
            target = None if cell == "." else phase if cell == "=" else COLUMNS[cell]
            cells[phase, word] = target
    return cells


CELLS = expected()
LEGAL = [cell for cell, target in CELLS.items() if target is not None]
ILLEGAL = [cell for cell, target in CELLS.items() if target is None]


def name(value: object) -> str:
    return value.value if isinstance(value, Phase) else str(value)


class TestTable:
    def test_covers_every_phase_with_every_fact(self) -> None:
        """The table of this test has a cell for each of the 12 phases with each of the 20 facts."""
        assert len(CELLS) == 12 * 20
        assert {phase for phase, _ in CELLS} == set(Phase)
        assert {word for _, word in CELLS} == set(CLAIM_FACTS)

    @pytest.mark.parametrize(("phase", "word"), LEGAL, ids=name)
    def test_leads_where_the_design_says(self, phase: Phase, word: str) -> None:
        """A fact that may follow leads to the same phase in the machine and in the fold."""
        assert advance(phase, word) is CELLS[phase, word]
        assert FOLD[phase, word] is CELLS[phase, word]

    @pytest.mark.parametrize(("phase", "word"), ILLEGAL, ids=name)
    def test_refuses_what_may_not_follow(self, phase: Phase, word: str) -> None:
        """A fact that may not follow raises, naming phase and fact, and is not in the fold."""
        with pytest.raises(IllegalFactError) as caught:
            advance(phase, word)

        assert (caught.value.phase, caught.value.word) == (phase.value, word)
        assert (phase, word) not in FOLD

    @pytest.mark.parametrize("phase", Phase, ids=name)
    def test_possible_lists_the_column(self, phase: Phase) -> None:
        """`possible` names exactly the facts that may follow in a phase."""
        assert set(possible(phase)) == {word for at, word in LEGAL if at is phase}

    def test_refuses_an_unknown_word(self) -> None:
        """A word that is no claim fact may follow nowhere."""
        with pytest.raises(IllegalFactError):
            advance(Phase.BOUND, "exploded")

    def test_closed_is_the_end(self) -> None:
        """Nothing follows a closed claim; a later fact of that UID starts from absent."""
        assert possible(Phase.CLOSED) == ()


class TestMachine:
    def test_never_moves(self) -> None:
        """The shared machine holds no claim: neither legal nor illegal facts move it."""
        for phase, word in CELLS:
            try:
                advance(phase, word)
            except IllegalFactError:
                assert CELLS[phase, word] is None

        assert MACHINE.models == []
        assert MACHINE.initial == Phase.ABSENT.name

    def test_a_refusal_leaves_the_next_answer_alone(self) -> None:
        """After an illegal fact the same legal one leads where it led before."""
        before = advance(Phase.BOUND, "prepare_started")
        with pytest.raises(IllegalFactError):
            advance(Phase.BOUND, "driver_prepared")

        assert advance(Phase.BOUND, "prepare_started") is before

    def test_has_one_event_for_each_claim_fact(self) -> None:
        """The machine's triggers are the claim facts' words, no more and no less."""
        assert set(MACHINE.events) == set(EDGES) == set(CLAIM_FACTS)

    def test_has_no_callbacks_and_no_conditions(self) -> None:
        """Guards are decisions and effects are steps: nothing hangs on the machine."""
        for event in MACHINE.events.values():
            for rows in event.transitions.values():
                for row in rows:
                    assert (row.conditions, row.prepare, row.before, row.after) == ([], [], [], [])
        for state in MACHINE.states.values():
            assert (state.on_enter, state.on_exit) == ([], [])
        assert not MACHINE.before_state_change
        assert not MACHINE.after_state_change
        assert not MACHINE.prepare_event
        assert not MACHINE.finalize_event

    def test_is_plain(self) -> None:
        """The machine is transitions' plain one, without a queue: others swallow cancellation."""
        assert type(MACHINE) is Machine
        assert MACHINE.has_queue is False

    def test_lists_sources_one_by_one(self) -> None:
        """No row of the table has a wildcard or a missing source, which transitions would widen."""
        sources = [source for rows in EDGES.values() for group, _ in rows for source in group]
        assert {Phase(source) for source in sources} == set(Phase) - {Phase.CLOSED}

    def test_the_fold_is_read_back_from_the_machine(self) -> None:
        """A machine built anew gives the same fold."""
        assert dict(derive_fold(build_machine())) == dict(FOLD)

    def test_the_fold_cannot_be_changed(self) -> None:
        """The fold is read only."""
        with pytest.raises(TypeError):
            FOLD[Phase.BOUND, "retired"] = Phase.CLOSED  # type: ignore[index]


class TestPhases:
    def test_conditions_are_the_four_of_the_design(self) -> None:
        """Four facts want more than their row."""
        assert set(CONDITIONS) == {
            "unprepare_started",
            "unprepared",
            "prepared",
            "debt_waived",
        }

    @pytest.mark.parametrize(
        ("phase", "shown"),
        [
            (Phase.GENERATED, "generated"),
            (Phase.BOUND, "bound"),
            (Phase.BOUND_PREPARING, "bound"),
            (Phase.BOUND_UNPREPARING, "bound"),
            (Phase.PREPARED, "prepared"),
            (Phase.PREPARED_UNPREPARING, "prepared"),
            (Phase.NEEDS, "needs-reprepare-after-boot"),
            (Phase.NEEDS_PREPARING, "needs-reprepare-after-boot"),
            (Phase.NEEDS_UNPREPARING, "needs-reprepare-after-boot"),
            (Phase.UNPREPARED, "unprepared"),
        ],
        ids=name,
    )
    def test_shows_one_of_five_states(self, phase: Phase, shown: str) -> None:
        """A phase shows the public state that it started from."""
        assert public_state(phase) == shown

    def test_open_intents(self) -> None:
        """The phases with an open intent are those whose names say so."""
        assert {p for p in Phase if p.value.endswith("_preparing")} == PREPARING
        assert {p for p in Phase if p.value.endswith("_unpreparing")} == UNPREPARING
