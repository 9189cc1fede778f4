"""
The lifecycle of one claim on one node: the table, the machine built from it, the fold read back.

`EDGES` is the one place that says which fact may follow in which phase (engine/README.md).  One
plain `transitions` machine is built from it; it checks each new fact before it is appended
(`advance`), explains what is possible (`possible`) and draws the diagram.  `FOLD` is read back out
of that machine, so that what replay does and what the machine allows cannot drift apart.

No callbacks, no guards, no models: guards are decisions (`CONDITIONS` beside the table, asked by
`engine.claim`), effects are steps of the plan.  Nothing here knows a claim's contents.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

from transitions import Machine, MachineError

from .errors import IllegalFactError

__all__ = [
    "CONDITIONS",
    "EDGES",
    "FOLD",
    "MACHINE",
    "PREPARING",
    "UNPREPARING",
    "Phase",
    "advance",
    "build_machine",
    "derive_fold",
    "possible",
    "public_state",
]

# transitions writes two lines per trigger through the root logger.
logging.getLogger("transitions").setLevel(logging.WARNING)


class Phase(Enum):
    """A claim's phase: its public state, and the intent that is open in it."""

    ABSENT = "absent"
    GENERATED = "generated"
    BOUND = "bound"
    BOUND_PREPARING = "bound_preparing"
    BOUND_UNPREPARING = "bound_unpreparing"
    PREPARED = "prepared"
    PREPARED_UNPREPARING = "prepared_unpreparing"
    NEEDS = "needs"
    NEEDS_PREPARING = "needs_preparing"
    NEEDS_UNPREPARING = "needs_unpreparing"
    UNPREPARED = "unprepared"
    CLOSED = "closed"


#: A prepare operation is open.
PREPARING = frozenset({Phase.BOUND_PREPARING, Phase.NEEDS_PREPARING})
#: An unprepare operation is open; the claim only goes on unpreparing.
UNPREPARING = frozenset(
    {Phase.BOUND_UNPREPARING, Phase.PREPARED_UNPREPARING, Phase.NEEDS_UNPREPARING}
)

#: Stay in the phase.
_STAY = "="

_BOUND = ("bound", "bound_preparing", "bound_unpreparing")
_PREPARED = ("prepared", "prepared_unpreparing")
_NEEDS = ("needs", "needs_preparing", "needs_unpreparing")
_HELD = (*_BOUND, *_PREPARED, *_NEEDS)
_JOINABLE = ("bound", "bound_preparing", "prepared", "needs", "needs_preparing")
_PREPARING = ("bound_preparing", "needs_preparing")
_UNPREPARING = ("bound_unpreparing", "prepared_unpreparing", "needs_unpreparing")
_OPEN = ("generated", *_HELD, "unprepared")

#: fact → ((sources, destination), …); sources are listed one by one, `=` stays.
EDGES: Mapping[str, tuple[tuple[tuple[str, ...], str], ...]] = MappingProxyType(
    {
        "generated": ((("absent",), "generated"),),
        "bound": ((("generated", "unprepared"), "bound"),),
        "consumer_joined": ((_JOINABLE, _STAY),),
        "consumer_left": ((_HELD, _STAY),),
        "prepare_skipped": ((_JOINABLE, _STAY),),
        "prepare_started": ((("bound",), "bound_preparing"), (("needs",), "needs_preparing")),
        "driver_prepared": ((_PREPARING, _STAY),),
        "driver_failed": (((*_PREPARING, *_UNPREPARING), _STAY),),
        "prepared": (((*_PREPARING, "bound", "needs"), "prepared"),),
        "reprepare_needed": (
            (("prepared", "needs_preparing"), "needs"),
            (("bound_preparing",), "bound"),
            (("bound", "needs"), _STAY),
        ),
        "unprepare_started": (
            (("bound", "bound_preparing"), "bound_unpreparing"),
            (("prepared",), "prepared_unpreparing"),
            (("needs", "needs_preparing"), "needs_unpreparing"),
        ),
        "driver_unprepared": ((_UNPREPARING, _STAY),),
        "debt_waived": ((_UNPREPARING, _STAY),),
        "unprepared": (((*_UNPREPARING, "bound"), "unprepared"),),
        "object_lost": ((_HELD, _STAY),),
        "deallocated": ((("unprepared",), "generated"),),
        "deleted": ((("generated", "unprepared"), "closed"),),
        "retired": ((("generated", "unprepared"), "closed"),),
        "restored": ((("absent", *_OPEN), "needs"),),
        "anomaly_found": ((_OPEN, _STAY),),
    }
)

#: What a fact wants beside its row (engine/README.md), asked by `engine.claim.broken_condition`.
CONDITIONS: Mapping[str, str] = MappingProxyType(
    {
        "unprepare_started": "no consumer that has not been released",
        "unprepared": "no debt, and from bound no consumer either",
        "prepared": "of each driver that must be called an answer that is not void",
        "debt_waived": "that driver's debt open",
    }
)


def build_machine(machine_class: type[Machine] = Machine, **options: Any) -> Machine:
    """Return the machine of `EDGES`; *options* go to `transitions` (used to draw it)."""
    machine = machine_class(
        model=options.pop("model", None),
        states=Phase,
        initial=Phase.ABSENT,
        auto_transitions=False,
        **options,
    )
    for word, rows in EDGES.items():
        for sources, destination in rows:
            for source in sources:
                target = source if destination == _STAY else destination
                machine.add_transition(word, Phase(source), Phase(target))
    return machine


def derive_fold(machine: Machine) -> Mapping[tuple[Phase, str], Phase]:
    """Return (phase, fact) → next phase, read back out of *machine*; one plain row per cell."""
    fold: dict[tuple[Phase, str], Phase] = {}
    for word, event in machine.events.items():
        for source, rows in event.transitions.items():
            assert len(rows) == 1, f"{word} has {len(rows)} rows in {source}"
            (row,) = rows
            callbacks = (row.conditions, row.prepare, row.before, row.after)
            assert not any(callbacks), f"{word} in {source} has callbacks or conditions"
            assert row.dest is not None, f"{word} in {source} is an internal transition"
            fold[Phase[row.source], word] = Phase[row.dest]
    return MappingProxyType(fold)


MACHINE = build_machine()
FOLD = derive_fold(MACHINE)


class _Cursor:
    """A throwaway model, so that the machine itself never holds a claim."""

    __slots__ = ("state",)

    def __init__(self, state: Phase) -> None:
        self.state = state


def advance(phase: Phase, word: str) -> Phase:
    """
    Return the phase after the fact *word*, as the machine decides it; nothing moves.

    Raises:
        IllegalFactError: The fact cannot follow in this phase.
    """
    event = MACHINE.events.get(word)
    cursor = _Cursor(phase)
    try:
        if event is None or not event.trigger(cursor):
            raise IllegalFactError(phase.value, word)
    except MachineError:
        raise IllegalFactError(phase.value, word) from None
    return cursor.state


def possible(phase: Phase) -> tuple[str, ...]:
    """Return the facts that may follow in *phase*, in the table's order."""
    return tuple(word for word in EDGES if (phase, word) in FOLD)


#: The five public states; the phases of an open intent show the state that it started from.
_PUBLIC = {
    "generated": "generated",
    "bound": "bound",
    "prepared": "prepared",
    "needs": "needs-reprepare-after-boot",
    "unprepared": "unprepared",
}


def public_state(phase: Phase) -> str:
    """Return the public state of *phase*; `absent` and `closed` have none and are never shown."""
    return _PUBLIC.get(phase.value.partition("_")[0], phase.value)
