"""
The scenarios of `tests/scenarios`: what is owed after which facts, as text.

`CLAIMLET_REWRITE_SCENARIOS=1 pytest tests/engine/test_scenarios.py` writes the answers anew; commit
only what you can explain.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.engine.interaction import Interaction

FOLDER = Path(__file__).parent.parent / "scenarios"
MARK = "----"


def blocks(text: str) -> list[list[str]]:
    """Return the lines of each block; an empty line ends one."""
    return [part.splitlines() for part in text.strip().split("\n\n")]


def played(text: str) -> str:
    """Return the scenario *text* with the answers that the engine gives."""
    interaction = Interaction()
    parts = []
    for block in blocks(text):
        comments = [line for line in block if line.startswith("#")]
        commands = block[len(comments) : block.index(MARK)] if MARK in block else []
        answer = [MARK, *interaction.block(commands)] if commands else []
        parts.append("\n".join([*comments, *commands, *answer]))
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """Each block of a scenario leads to what stands under its mark."""
    text = path.read_text()
    answered = played(text)
    if os.environ.get("CLAIMLET_REWRITE_SCENARIOS"):
        path.write_text(answered)

    assert answered == text


def test_there_are_scenarios() -> None:
    """A folder that moved away does not pass for a folder of passing scenarios."""
    assert len(list(FOLDER.glob("*.txt"))) >= 12
