"""``claimlet replay``: fold the log again, to compare, or to see what each fact did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ...engine.errors import NotFoundError, NotReadyError
from ..service.points import Point
from .errors import AnsweredError
from .names import split_name
from .options import Invocation, PointType, group, output_option, pass_invocation
from .output import Output, draw_table, paint
from .service import ask
from .state import CHANGE_COLUMNS, change_cell
from .text import counted, printable

if TYPE_CHECKING:
    from ...events.record import Record
    from ..control.protocol import StateReply
    from ..service.timetravel import Step
    from ..service.verifying import Comparison, Verification

__all__ = ["command"]

#: Of a mismatch the first differences say what is wrong.
_CHANGES_MAX = 20


@group("replay")
def command() -> None:
    """Fold the log again, to compare, or to see what each fact did."""


@command.command("verify")
@output_option("table", "json", "yaml")
@pass_invocation
def verify(invocation: Invocation, output: Output) -> None:
    """
    Replay the whole log and compare with the newest snapshot and the running service.

    Every sequence and every link of the chain is checked on the way.  Exit 1 where a state differs.
    """
    from ..service.verifying import verify as verify_log

    found = asyncio.run(verify_log(invocation.settings, _live(invocation)))
    output.one(found, lambda: _verification_text(found, output))
    if not found.is_good:
        raise AnsweredError


def _live(invocation: Invocation) -> StateReply | None:
    from ..control.protocol import StateReply

    try:
        return ask(invocation, "state", StateReply)
    except NotReadyError:
        return None


def _verification_text(found: Verification, output: Output) -> str:
    speed = f" ({found.facts / found.seconds:,.0f}/s)" if found.seconds else ""
    head = (
        f"log of {found.node}   seq {found.first}–{found.last}   replayed {found.facts} facts"  # noqa: RUF001 -- a range
        f" in {found.seconds:.2f} s{speed}\n"
        f"{counted(found.claims, 'claim')}, {counted(found.pods, 'pod')};"
        " every sequence and every link of the chain is there\n"
    )
    rows = [
        (c.what, f"at {c.sequence}" if c.sequence else "", _digests(c), c.result.upper())
        for c in found.comparisons
    ]
    draw = paint if output.colour else None
    text = head + draw_table(rows, paint=(None, None, None, draw))
    for comparison in found.comparisons:
        if comparison.changes:
            text += "\n" + output.table(comparison.changes[:_CHANGES_MAX], CHANGE_COLUMNS)
    return text


def _digests(comparison: Comparison) -> str:
    if comparison.result == "none":
        return f"nothing to compare: {comparison.reason}"
    sign = "=" if comparison.result == "match" else "≠"
    return f"sha256:{comparison.digest[:12]}…  {sign}  sha256:{comparison.replayed[:12]}…"


@command.command("step")
@click.option("--from", "since", type=PointType(), metavar="TIME", help="From then: 2h, seq:1202.")
@click.option("--to", "until", type=PointType(), metavar="TIME", help="Up to then.")
@click.option("--claim", metavar="NS/NAME", help="Only facts about this claim.")
@output_option("table", "json", "jsonl", "yaml")
@pass_invocation
def step(
    invocation: Invocation,
    output: Output,
    *,
    since: Point | None,
    until: Point | None,
    claim: str | None,
) -> None:
    """Show the facts one by one, each with every field that it changed."""
    from ..service.history import between
    from ..service.reading import records_of_log
    from ..service.timetravel import steps

    settings = invocation.settings
    records = asyncio.run(records_of_log(settings))
    chosen = between(_about(records, claim), records, since=since, until=until)
    found = list(steps(records, chosen, settings=settings))
    if output.format == "table":
        click.echo(_steps_text(found), nl=False)
    else:
        output.items([_document(one) for one in found], (), kind="StepList")


def _about(records: list[Record], claim: str | None) -> Sequence[Record]:
    """Return the facts about the claim of that name, of whatever UID; without a name all."""
    if claim is None:
        return records
    name = split_name(claim, None)
    found = [r for r in records if r.claim and (r.claim.namespace, r.claim.name) == name]
    if not found:
        raise NotFoundError(
            f"the log knows no claim {'/'.join(name)}", hint="claimlet history node shows all facts"
        )
    return found


def _steps_text(found: Sequence[Step]) -> str:
    lines = []
    for one in found:
        record = one.record
        about = str(record.claim or (f"pod {record.pod}" if record.pod else ""))
        head = f"{record.sequence}   {record.time}   {record.word}   {about}"
        lines.append(printable(head.rstrip()))
        rows = [
            (f"    {change.kind} {change.name}".rstrip(), change.field, _arrow(change))
            for change in one.changes
        ]
        lines += draw_table(rows).splitlines()
    return "".join(f"{line}\n" for line in lines)


def _arrow(change: Any) -> str:
    return f"{change_cell(change.before)} → {change_cell(change.after)}"


def _document(one: Step) -> dict[str, Any]:
    from ..service.history import as_document

    return {**as_document(one.record), "changes": one.changes}
