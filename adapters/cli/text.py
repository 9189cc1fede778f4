"""
Text for terminals: what comes from drivers and objects is shown, never obeyed.

Control characters would let a driver's error text move the cursor or forge a line.
"""

from __future__ import annotations

import unicodedata

__all__ = ["counted", "one_line", "printable"]

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """Return *text* with every control and format character shown as an escape."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in _UNSEEN
        else character
        for character in text
    )


def one_line(text: str) -> str:
    """Return *text* as one printable line; its line breaks become semicolons."""
    return "; ".join(printable(line.strip()) for line in text.splitlines() if line.strip())


def counted(number: int, noun: str) -> str:
    """Return *number* and *noun*, in the plural where it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
