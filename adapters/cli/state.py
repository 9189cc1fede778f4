"""``claimlet state``: what the node held at any time, and what changed between two."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..service.points import Point
from .options import Invocation, PointType, group, output_option, pass_invocation
from .output import Column, Output

if TYPE_CHECKING:
    from ..control.protocol import StateReply
    from ..service.changes import Change

__all__ = ["CHANGE_COLUMNS", "change_cell", "command"]


@group("state")
def command() -> None:
    """Show what the node held at any time, and what changed since."""


@command.command("show")
@click.option("--at", type=PointType(), metavar="TIME", help="Then: 2h, 14:05Z, boot-1, seq:1202.")
@output_option("table", "wide", "json", "yaml")
@pass_invocation
def show(invocation: Invocation, output: Output, *, at: Point | None) -> None:
    """
    Show claims, pods, drivers and waived debts as they were, from the log alone.

    TIME is as for `history`: the facts up to then count, the one at seq:N included.  Without --at
    it is the end of the log.
    """
    from ..control.state import of_node
    from ..service.reading import records_of_log
    from ..service.timetravel import nodes_at

    settings = invocation.settings
    records = asyncio.run(records_of_log(settings))
    [(node, time)] = nodes_at(records, at, settings=settings)
    state = of_node(node)
    output.one(state, lambda: _state_text(state, time, output))


@command.command("diff")
@click.option("--from", "since", type=PointType(), metavar="TIME", required=True, help="From then.")
@click.option("--to", "until", type=PointType(), metavar="TIME", help="To then; else: the end.")
@output_option("table", "json", "jsonl", "yaml")
@pass_invocation
def diff(invocation: Invocation, output: Output, *, since: Point, until: Point | None) -> None:
    """
    Show every field that differs between two times of the node.

    TIME is as for `history`: the facts up to then count, the one at seq:N included.
    """
    from ..service.changes import changes, things
    from ..service.reading import records_of_log
    from ..service.timetravel import nodes_at

    settings = invocation.settings
    records = asyncio.run(records_of_log(settings))
    (before, _), (after, _) = nodes_at(records, since, until, settings=settings)
    found = changes(things(before), things(after))
    output.items(found, CHANGE_COLUMNS, kind="ChangeList", empty="nothing differs")


def _state_text(state: StateReply, time: str, output: Output) -> str:
    """Return the state for people: what it is of, and a table of each kind of things."""
    from .claims import columns

    place = f"fact {state.sequence}, {time}" if state.sequence else "before the first fact"
    head = (
        f"node     {state.node}\n"
        f"at       {place}\n"
        f"boot     {state.boot.boot or '<none>'}\n"
        f"digest   sha256:{state.digest}\n"
    )
    parts = [head]
    pods: tuple[Column[Any], ...] = (
        Column("NAMESPACE", lambda p: p.namespace),
        Column("POD", lambda p: p.name),
        Column("STATE", lambda p: p.state, status=True),
        Column("SOURCE", lambda p: p.source),
        Column("REASON", lambda p: "; ".join(p.reasons)),
        Column("UID", lambda p: p.uid, wide=True),
    )
    drivers: tuple[Column[Any], ...] = (
        Column("DRIVER", lambda d: d.driver),
        Column("STATE", lambda d: d.state, status=True),
        Column("ENDPOINT", lambda d: d.endpoint),
        Column("INSTANCE", lambda d: d.instance, wide=True),
    )
    waivers: tuple[Column[Any], ...] = (
        Column("WAIVED", lambda w: f"{w.namespace}/{w.name}"),
        Column("DRIVER", lambda w: w.driver),
        Column("WHO", lambda w: w.who),
        Column("WHY", lambda w: w.why),
    )

    def show(items: Sequence[Any], shown: Sequence[Column[Any]]) -> None:
        if items:
            parts.append(output.table(items, shown))

    show(state.claims, columns())
    show(state.pods, pods)
    show(state.drivers, drivers)
    show(state.waivers, waivers)
    return "\n".join(parts)


def change_cell(value: Any) -> str:
    """Return a value of a change for people."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "<none>"
    return "<none>" if value in (None, "") else str(value)


def _about(change: Change) -> str:
    return f"{change.kind} {change.name}".rstrip()


CHANGE_COLUMNS: tuple[Column[Any], ...] = (
    Column("ABOUT", _about),
    Column("FIELD", lambda c: c.field),
    Column("BEFORE", lambda c: change_cell(c.before)),
    Column("AFTER", lambda c: change_cell(c.after)),
)
