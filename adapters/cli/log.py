"""``claimlet log``: the log itself, what it holds, and what of it is damaged and given up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...engine.errors import UsageError
from .errors import AnsweredError
from .options import Invocation, group, output_option, pass_invocation
from .output import Column, Output
from .text import counted

if TYPE_CHECKING:
    from ..service.gaps import Acknowledged, GapRow
    from ..service.log_view import LogView

__all__ = ["command"]


@group("log")
def command() -> None:
    """Show the log itself: what it holds, and what of it is damaged."""


@command.command("info")
@output_option("table", "json", "yaml")
@pass_invocation
def info(invocation: Invocation, output: Output) -> None:
    """
    Show what the log holds and how it is: exit 1 if it is damaged.

    All of it is read and checked.
    """
    from ..service.log_view import view_log

    view = asyncio.run(view_log(invocation.settings))
    output.one(view, lambda: _text(view))
    if view.condition != "whole":
        raise AnsweredError


def _text(view: LogView) -> str:
    rows = [
        ("Node", view.node),
        ("Stream", f"{view.stream} at {view.server}, nats-server {view.server_version}"),
        ("Facts", f"{view.facts}, {view.first_sequence} to {view.last_sequence}"),
        ("Space", f"{view.bytes} of {view.bytes_max} bytes ({view.percent:.1f} %)"),
        ("Synced", view.sync),
        ("Snapshot", view.snapshot or "none"),
        ("Archive", ", ".join(view.archive) or "empty"),
        ("Gaps", f"{counted(view.gaps, 'gap')} acknowledged" if view.gaps else "none"),
        ("Condition", view.condition),
    ]
    return "".join(f"{name + ':':<11}{text}\n" for name, text in rows)


@command.group("gap")
def gap() -> None:
    """Show what of the log is damaged, and acknowledge it."""


@gap.command("list")
@output_option("table", "json", "jsonl", "yaml")
@pass_invocation
def list_gaps(invocation: Invocation, output: Output) -> None:
    """
    List the damaged and the acknowledged parts of the log, while no service runs.

    Exit 1 if anything is damaged: the service does not start until it is acknowledged.
    """
    from ..service.gaps import rows_of, survey_log

    async def run() -> list[GapRow]:
        async with survey_log(invocation.settings) as found:
            return rows_of(found)

    rows = asyncio.run(run())
    columns: tuple[Column[GapRow], ...] = (
        Column("FROM", lambda r: r.from_sequence),
        Column("TO", lambda r: r.to_sequence),
        Column("MISSING", lambda r: r.missing),
        Column("STATE", lambda r: r.state, status=True),
        Column("COPY", lambda r: r.copy),
        Column("WHAT", lambda r: "; ".join([r.problem, *r.subjects])),
    )
    output.items(rows, columns, kind="GapList", empty="the log is whole")
    if damaged := [row for row in rows if row.state == "damaged"]:
        _advise(damaged)
        raise AnsweredError


@gap.command("acknowledge")
@click.option("--from", "first", type=click.IntRange(min=1), required=True, help="First record.")
@click.option("--to", "last", type=click.IntRange(min=1), required=True, help="Last record.")
@click.option("--why", required=True, metavar="TEXT", help="Why they are lost; it is recorded.")
@click.option(
    "--copy",
    "copy",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Another copy of the log: a file of records, or a directory of such (*.jsonl).",
)
@output_option("table", "json", "yaml")
@pass_invocation
def acknowledge(
    invocation: Invocation, output: Output, *, first: int, last: int, why: str, copy: Path | None
) -> None:
    """
    Give up exactly these records, so that the log can be used again.

    Only a damage as `log gap list` shows it, and only while no service runs.  Copies are tried
    first, also those in the archive: with one that fits nothing is lost.  Without, every claim that
    there was is recorded as restored: its drivers are asked again, and each owes its unprepare.
    Doing it again goes on where it was cut.
    """
    from ..control.client import actor
    from ..service.gaps import GapOrder, acknowledge_gap

    if not why.strip():
        raise UsageError("an acknowledgement needs a reason", hint="--why TEXT")
    order = GapOrder(first=first, last=last, why=why, actor=actor(), copies=_copies(copy))
    done = asyncio.run(acknowledge_gap(invocation.settings, order))
    output.one(done, lambda: _told(done))
    if done.left:
        _advise(done.left)
        raise AnsweredError


def _copies(path: Path | None) -> tuple[Path, ...]:
    if path is None:
        return ()
    if not path.is_dir():
        return (path,)
    files = tuple(sorted(path.glob("*.jsonl")))
    if not files:
        raise UsageError(f"there is no *.jsonl in {path}")
    return files


def _told(done: Acknowledged) -> str:
    text = f"acknowledged: records {done.from_sequence} to {done.to_sequence}"
    if done.copy:
        return f"{text}; they are kept in the archive, {done.copy}"
    if done.left:
        return text
    return f"{text}; restored: {', '.join(done.restored) or 'no claim'}"


def _advise(damaged: Sequence[GapRow]) -> None:
    row = damaged[0]
    click.echo(
        f"hint: claimlet log gap acknowledge --from {row.from_sequence} --to {row.to_sequence}"
        " --why TEXT [--copy PATH]",
        err=True,
    )
