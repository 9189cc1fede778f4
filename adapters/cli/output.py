"""
What commands write: tables as kubectl draws them, and the same data as json, jsonl, yaml or names.

Data goes to stdout, all else to stderr.  Colour marks status words alone: on a terminal, unless
``NO_COLOR`` or ``--color never`` say otherwise; ``FORCE_COLOR`` and ``--color always`` force it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import click
import msgspec

from .text import printable

__all__ = [
    "NONE",
    "Column",
    "Format",
    "Output",
    "colour_wanted",
    "draw_table",
    "encode_json",
    "paint",
]

NONE = "<none>"
_GAP = "   "

Format = Literal["table", "wide", "json", "jsonl", "yaml", "name", "mermaid", "dot", "text"]
T = TypeVar("T")

_COLOURS = {
    **dict.fromkeys(("prepared", "connected", "ok", "pass", "yes", "match"), "32"),
    **dict.fromkeys(("failed", "refused", "error", "fail", "suspect", "no"), "31"),
    **dict.fromkeys(
        ("needs-reprepare-after-boot", "preparing", "unpreparing", "pending", "waiting", "warn"),
        "33",
    ),
}


class Column(msgspec.Struct, Generic[T], frozen=True):
    """One column of a table: its header, its text for an item, and when it is shown."""

    header: str
    text: Callable[[T], object]
    #: Shown with ``-o wide`` only.
    wide: bool = False
    #: Its words may be coloured.
    status: bool = False


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """How this run writes: what ``-o``, ``--no-headers`` and ``--color`` asked for."""

    format: str = "table"
    headers: bool = True
    colour: bool = False

    def items(
        self,
        items: Sequence[T],
        columns: Sequence[Column[T]],
        *,
        kind: str,
        name: Callable[[T], str] = str,
        empty: str = "",
    ) -> None:
        """Write a list; *kind* is its name in json, *empty* is said where there is none."""
        match self.format:
            case "table" | "wide":
                if not items and empty:
                    click.echo(empty, err=True)
                else:
                    click.echo(self.table(items, columns), nl=False, color=self.colour)
            case "jsonl":
                for item in items:
                    click.echo(msgspec.json.encode(item))
            case "name":
                for item in items:
                    click.echo(printable(name(item)))
            case _:
                self.document({"kind": kind, "items": list(items)})

    def one(self, value: T, text: Callable[[], str], *, name: Callable[[T], str] = str) -> None:
        """Write one object; *text* makes what people read."""
        match self.format:
            case "name":
                click.echo(printable(name(value)))
            case "json" | "yaml" | "jsonl":
                self.document(value)
            case _:
                click.echo(text().rstrip("\n"), color=self.colour)

    def document(self, value: object) -> None:
        """Write *value* as one json or yaml document."""
        match self.format:
            case "yaml":
                import yaml

                click.echo(
                    yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True),
                    nl=False,
                )
            case "jsonl":
                click.echo(msgspec.json.encode(value))
            case _:
                click.echo(encode_json(value))

    def table(self, items: Sequence[T], columns: Sequence[Column[T]]) -> str:
        """Return the table of *items* as text."""
        shown = [column for column in columns if self.format == "wide" or not column.wide]
        rows = [[_cell(column.text(item)) for column in shown] for item in items]
        painters = [paint if self.colour and column.status else None for column in shown]
        return draw_table(
            rows,
            headers=[column.header for column in shown] if self.headers else [],
            paint=painters,
        )


def draw_table(
    rows: Sequence[Sequence[str]],
    *,
    headers: Sequence[str] = (),
    paint: Sequence[Callable[[str], str] | None] = (),
) -> str:
    """Return *rows* in columns three spaces apart, without anything after the last one."""
    shown = [[printable(cell) for cell in row] for row in rows]
    lines = [list(headers), *shown] if headers else shown
    if not lines:
        return ""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    painters = list(paint) or [None] * len(widths)
    text = ""
    for number, line in enumerate(lines):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        cells[-1] = cells[-1].rstrip()
        if number or not headers:
            cells = [
                draw(cell) if draw else cell for cell, draw in zip(cells, painters, strict=True)
            ]
        text += _GAP.join(cells).rstrip() + "\n"
    return text


def paint(cell: str) -> str:
    """Return *cell* in the colour of its status word, if it is one."""
    word = cell.rstrip()
    code = _COLOURS.get(word.lower())
    return f"\x1b[{code}m{word}\x1b[0m{cell[len(word) :]}" if code else cell


def encode_json(value: object) -> str:
    """Return *value* as indented json."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def colour_wanted(
    choice: str, *, environ: Mapping[str, str] | None = None, is_terminal: bool | None = None
) -> bool:
    """Return whether to colour: what ``--color`` says, else the environment, else the terminal."""
    environ = os.environ if environ is None else environ
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() if is_terminal is None else is_terminal


def _cell(value: Any) -> str:
    if value is None or value == "":
        return NONE
    return str(value)
