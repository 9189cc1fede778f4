"""
What was asked of the driver and what it answered: one JSON line each, on disk before it goes on.

A call has a line when it arrives and one when it is answered, under one number, so that a test can
count calls that never got an answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ....events.values import ClaimRef

__all__ = ["Ledger"]


class Ledger:
    """Appends to the file at *path*, which instances may share; without one it is silent."""

    def __init__(self, path: Path | None, *, instance: str) -> None:
        self._instance = instance
        self._calls = 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = None if path is None else os.open(path, flags, 0o644)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def arrived(self, method: str, claims: Sequence[ClaimRef], **details: Any) -> str:
        """Note a call and return its number."""
        self._calls += 1
        call = f"{os.getpid()}-{self._calls}"
        self._append(call=call, event="arrived", method=method, claims=claims, **details)
        return call

    def answered(self, call: str, method: str, answer: Any) -> None:
        """Note what *call* was answered."""
        self._append(call=call, event="answered", method=method, answer=answer)

    def _append(self, **line: Any) -> None:
        if self._file is None:
            return
        line |= {"time": datetime.now(UTC).isoformat(), "instance": self._instance}
        os.write(self._file, msgspec.json.encode(line) + b"\n")
        os.fsync(self._file)
