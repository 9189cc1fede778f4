"""``claimlet history``: what happened to a claim, a pod or the node, from the log."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ...engine.errors import NotFoundError, UsageError
from ..service.points import Point
from .names import Target, target_argument
from .options import (
    Invocation,
    group,
    output_option,
    pass_invocation,
    time_options,
    watch_option,
)
from .output import Column, Output

if TYPE_CHECKING:
    from ...events.record import Record
    from ..service.history import History

__all__ = ["command"]

#: How many rows before it a row that is added later lines up with.
_ALIGNED_ROWS = 100
_FORMATS = ("table", "wide", "json", "jsonl", "yaml")


@group("history")
def command() -> None:
    """Show what happened to a claim, a pod or the node."""


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a history is wanted, and how."""

    since: Point | None
    until: Point | None
    reverse: bool
    watch: bool
    output: Output


def _history_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what all histories have; the command gets `wanted: _Wanted`."""

    @functools.wraps(function)
    def call(*args: Any, **values: Any) -> Any:
        wanted = {name: values.pop(name) for name in _Wanted.__struct_fields__}
        return function(*args, wanted=_checked(_Wanted(**wanted)), **values)

    reverse = click.option("--reverse", is_flag=True, help="Newest first.")
    return reverse(time_options(watch_option(output_option(*_FORMATS)(call))))


def _checked(wanted: _Wanted) -> _Wanted:
    if wanted.watch and (wanted.reverse or wanted.until is not None):
        raise UsageError(
            "--watch shows what is to come: no --reverse, no --until", hint="leave it out"
        )
    if wanted.watch and wanted.output.format in ("json", "yaml"):
        raise UsageError("--watch has no end, and a document has one", hint="-o jsonl")
    return wanted


@command.command("claim")
@target_argument("claim")
@_history_options
@pass_invocation
def claim(invocation: Invocation, *, target: Target, wanted: _Wanted) -> None:
    """Show every fact about a claim, also long after it is gone."""
    from ..service.history import ClaimHistory

    history = ClaimHistory(target.namespace, target.name, uid=target.uid)
    _show(invocation, history, wanted, missing=f"the log knows no claim {target}")


@command.command("pod")
@target_argument("pod")
@_history_options
@pass_invocation
def pod(invocation: Invocation, *, target: Target, wanted: _Wanted) -> None:
    """Show every fact about a pod, and about its claims while it held them."""
    from ..service.history import PodHistory

    history = PodHistory(target.namespace, target.name, uid=target.uid)
    _show(invocation, history, wanted, missing=f"the log knows no pod {target}")


@command.command("node")
@_history_options
@pass_invocation
def node(invocation: Invocation, *, wanted: _Wanted) -> None:
    """Show every fact of the node."""
    from ..service.history import NodeHistory

    _show(invocation, NodeHistory(), wanted, missing="the log holds nothing")


def _show(invocation: Invocation, history: History, wanted: _Wanted, *, missing: str) -> None:
    from ..service.history import between
    from ..service.reading import follow_log, records_of_log

    settings = invocation.settings
    records = asyncio.run(records_of_log(settings))
    chosen = history.select(records)
    if not chosen:
        raise NotFoundError(missing, hint="claimlet history node shows everything")
    shown = between(chosen, records, since=wanted.since, until=wanted.until)
    _write(list(reversed(shown)) if wanted.reverse else shown, wanted.output)
    if wanted.watch:

        def received(record: Record) -> None:
            records.append(record)
            if any(r.sequence == record.sequence for r in history.select(records)):
                shown.append(record)
                _write_last(shown, wanted.output)

        after = records[-1].sequence + 1
        asyncio.run(follow_log(settings, from_sequence=after, received=received))


def _write(records: list[Record], output: Output) -> None:
    if output.format in ("table", "wide"):
        output.items(records, _COLUMNS, kind="FactList", empty="nothing in that time")
        return
    from ..service.history import as_document

    output.items([as_document(record) for record in records], (), kind="FactList")


def _write_last(records: list[Record], output: Output) -> None:
    """Write the last of *records*; in a table, under the columns of those before it."""
    if output.format in ("table", "wide"):
        text = output.table(records[-_ALIGNED_ROWS:], _COLUMNS).splitlines()[-1]
        click.echo(text, color=output.colour)
        return
    from ..service.history import as_document

    output.document(as_document(records[-1]))


def _subject(record: Record) -> str:
    if record.claim:
        return str(record.claim)
    return f"pod {record.pod}" if record.pod else ""


def _detail(record: Record) -> str:
    from ..service.history import detail

    return detail(record)


_COLUMNS: tuple[Column[Any], ...] = (
    Column("SEQ", lambda r: r.sequence),
    Column("TIME", lambda r: r.time),
    Column("FACT", lambda r: r.word),
    Column("ABOUT", _subject),
    Column("ACTOR", lambda r: r.actor, wide=True),
    Column("OPERATION", lambda r: r.corr, wide=True),
    Column("DETAIL", _detail),
)
