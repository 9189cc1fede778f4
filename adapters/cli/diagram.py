"""
``claimlet diagram``: the lifecycle of a claim, drawn from the machine that runs.

The drawings show what moves: facts that leave the phase as it is are left out, and so is
`restored`, which leads from every phase to `needs`; the text has them all.  `absent` and `closed`
are the dots at the start and the end.  (The drawing of transitions' own GraphMachine has neither
choice.)
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from .options import command as make_command
from .options import output_option
from .output import Output, draw_table

__all__ = ["command", "draw"]

_START, _END = "absent", "closed"
_UNDRAWN = "restored"


@make_command("diagram")
@output_option("mermaid", "dot", "text")
def command(output: Output) -> None:
    """Draw the lifecycle of a claim."""
    click.echo(draw(output.format), nl=False)


def draw(form: str) -> str:
    """Return the lifecycle as ``mermaid``, ``dot`` or ``text``."""
    match form:
        case "mermaid":
            return _mermaid()
        case "dot":
            return _dot()
        case _:
            return _text()


def _rows() -> Iterator[tuple[str, str, str]]:
    """Yield (source, fact, destination) of each row of the machine, in its order."""
    from ...engine.lifecycle import FOLD

    for (source, word), destination in FOLD.items():
        yield source.value, word, destination.value


def _arrows() -> dict[tuple[str, str], list[str]]:
    """Return (source, destination) → the facts that lead there, of the rows that are drawn."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for source, word, destination in _rows():
        if source != destination and word != _UNDRAWN:
            arrows.setdefault((source, destination), []).append(word)
    return arrows


def _mermaid() -> str:
    def dot(phase: str) -> str:
        return "[*]" if phase in (_START, _END) else phase

    lines = ["stateDiagram-v2", '  state "needs-reprepare-after-boot" as needs']
    for (source, destination), words in _arrows().items():
        lines.append(f"  {dot(source)} --> {dot(destination)}: {', '.join(words)}")
    return "\n".join(lines) + "\n"


def _dot() -> str:
    lines = ["digraph claim {", "  node [shape=box, style=rounded];"]
    lines.append(f'  {_START} [shape=circle, label="", style=filled, fillcolor=black, width=0.2];')
    lines.append(
        f'  {_END} [shape=doublecircle, label="", style=filled, fillcolor=black, width=0.15];'
    )
    for (source, destination), words in _arrows().items():
        lines.append(f'  {source} -> {destination} [label="{", ".join(words)}"];')
    return "\n".join([*lines, "}"]) + "\n"


def _text() -> str:
    rows = [
        (word, source, "=" if source == destination else destination)
        for source, word, destination in _rows()
    ]
    return draw_table(rows, headers=("FACT", "FROM", "TO"))
