"""Texts of peers, made fit to store and to compare."""

from __future__ import annotations

import re

__all__ = ["TEXT_BYTES_MAX", "cut", "masked"]

#: Texts of others are cut to this many bytes (events/README.md).
TEXT_BYTES_MAX = 4 * 1024

_CUT_MARK = "… (cut)"
_HEX_RUN = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|(?:0x)?[0-9a-f]+", re.IGNORECASE
)
#: A run without a digit may be a word: `dead` is one, `deadbeef` is not.
_WORD_CHARACTERS_MAX = 7


def cut(text: str) -> str:
    """Return *text* with at most `TEXT_BYTES_MAX` bytes, marked where something is missing."""
    data = text.encode(errors="replace")
    if len(data) <= TEXT_BYTES_MAX:
        return data.decode()
    room = TEXT_BYTES_MAX - len(_CUT_MARK.encode())
    return data[:room].decode(errors="ignore") + _CUT_MARK


def masked(text: str) -> str:
    """Return *text* without numbers and hex runs, so that repeats compare equal (rule 16)."""
    return _HEX_RUN.sub(_masked_run, text)


def _masked_run(run: re.Match[str]) -> str:
    found = run[0]
    is_number = len(found) > _WORD_CHARACTERS_MAX or any(c.isdecimal() for c in found)
    return "#" if is_number else found
