"""``claimlet history``: what happened to a claim, a pod or the node, from the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...engine.errors import NotFoundError
from .names import split_name
from .options import (
    Invocation,
    group,
    output_option,
    pass_invocation,
    time_options,
    watch_option,
)
from .output import Column, Output
from .times import Point

if TYPE_CHECKING:
    from ...events.record import Record

__all__ = ["command"]

_FORMATS = ("table", "wide", "json", "jsonl", "yaml")


@group("history")
def command() -> None:
    """Show what happened to a claim, a pod or the node."""


@command.command("claim")
@click.argument("name", metavar="NS/NAME")
@click.option("-n", "--namespace", metavar="NS", help="The namespace of a bare NAME.")
@click.option("--uid", default="", help="The claim's UID, where the name means several.")
@click.option("--reverse", is_flag=True, help="Newest first.")
@time_options
@watch_option
@output_option(*_FORMATS)
@pass_invocation
def claim(
    invocation: Invocation,
    output: Output,
    *,
    name: str,
    namespace: str | None,
    uid: str,
    reverse: bool,
    since: Point | None,
    until: Point | None,
    watch: bool,
) -> None:
    """Show every fact about a claim, also long after it is gone."""
    from ..service.history import ClaimHistory

    where, claim_name = split_name(name, namespace)
    _show(
        invocation,
        output,
        ClaimHistory(where, claim_name, uid=uid),
        missing=f"the log knows no claim {where}/{claim_name}",
        since=since,
        until=until,
        reverse=reverse,
        watch=watch,
    )


@command.command("pod")
@click.argument("name", metavar="NS/NAME")
@click.option("-n", "--namespace", metavar="NS", help="The namespace of a bare NAME.")
@click.option("--uid", default="", help="The pod's UID, where the name means several.")
@click.option("--reverse", is_flag=True, help="Newest first.")
@time_options
@watch_option
@output_option(*_FORMATS)
@pass_invocation
def pod(
    invocation: Invocation,
    output: Output,
    *,
    name: str,
    namespace: str | None,
    uid: str,
    reverse: bool,
    since: Point | None,
    until: Point | None,
    watch: bool,
) -> None:
    """Show every fact about a pod, and about its claims while it held them."""
    from ..service.history import PodHistory

    where, pod_name = split_name(name, namespace)
    _show(
        invocation,
        output,
        PodHistory(where, pod_name, uid=uid),
        missing=f"the log knows no pod {where}/{pod_name}",
        since=since,
        until=until,
        reverse=reverse,
        watch=watch,
    )


@command.command("node")
@click.option("--reverse", is_flag=True, help="Newest first.")
@time_options
@watch_option
@output_option(*_FORMATS)
@pass_invocation
def node(
    invocation: Invocation,
    output: Output,
    *,
    reverse: bool,
    since: Point | None,
    until: Point | None,
    watch: bool,
) -> None:
    """Show every fact of the node."""
    from ..service.history import NodeHistory

    _show(
        invocation,
        output,
        NodeHistory(),
        missing="the log holds nothing",
        since=since,
        until=until,
        reverse=reverse,
        watch=watch,
    )


def _show(
    invocation: Invocation,
    output: Output,
    history: Any,
    *,
    missing: str,
    since: Point | None,
    until: Point | None,
    reverse: bool,
    watch: bool,
) -> None:
    from ..service.history import between
    from ..service.reading import follow_log, records_of_log

    settings = invocation.settings
    records = asyncio.run(records_of_log(settings))
    chosen = history.select(records)
    if not chosen:
        raise NotFoundError(missing, hint="claimlet history node shows everything")
    shown = between(chosen, records, since=since, until=until)
    _write(list(reversed(shown)) if reverse else shown, output)
    if watch:
        last = records[-1].sequence if records else 0
        asyncio.run(
            follow_log(settings, from_sequence=last + 1, received=_tail(history, records, output))
        )


def _tail(history: Any, records: list[Record], output: Output) -> Callable[[Record], None]:
    """Return what writes each further record that belongs to *history*."""

    def received(record: Record) -> None:
        records.append(record)
        if any(r.sequence == record.sequence for r in history.select(records)):
            _write_one(record, output)

    return received


def _write(records: list[Record], output: Output) -> None:
    if output.format in ("table", "wide"):
        click.echo(output.table(records, _COLUMNS), nl=False)
        return
    from ..service.history import as_document

    output.items([as_document(record) for record in records], (), kind="FactList")


def _write_one(record: Record, output: Output) -> None:
    from ..service.history import as_document, detail

    if output.format in ("table", "wide"):
        cells = (record.sequence, record.time, record.word, _subject(record), detail(record))
        click.echo("   ".join(str(cell) for cell in cells))
    else:
        output.document(as_document(record))


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
