"""
What the engine tells its callers, by what they should do; the base stands in `events.errors`.

::

    ClaimletError
    ├── TemporaryError
    │   └── NotReadyError           the service replays, or the log is down: ask again
    └── PermanentError
        ├── IllegalFactError        this fact cannot follow in this phase: a bug or a damaged log
        ├── RefusedError            the request did not pass validation; `reasons` say why
        ├── NotFoundError           no such claim, pod or driver (exit code 3)
        ├── AmbiguousError          the name means several open objects (exit code 2)
        └── UsageError              the input cannot be used: broken YAML, a bad UID (exit code 2)
"""

from __future__ import annotations

from collections.abc import Sequence

from ..events.errors import ClaimletError, FencedError, PermanentError, TemporaryError

__all__ = [
    "AmbiguousError",
    "ClaimletError",
    "FencedError",
    "IllegalFactError",
    "NotFoundError",
    "NotReadyError",
    "PermanentError",
    "RefusedError",
    "TemporaryError",
    "UsageError",
]


class NotReadyError(TemporaryError):
    """The service cannot take requests now; nothing was stored."""


class IllegalFactError(PermanentError):
    """The fact *word* cannot follow in *phase*."""

    def __init__(self, phase: str, word: str, *, why: str = "") -> None:
        super().__init__(f"{word} cannot follow in phase {phase}" + (f": {why}" if why else ""))
        self.phase = phase
        self.word = word


class RefusedError(PermanentError):
    """The request did not pass validation; nothing of it was stored."""

    def __init__(self, reasons: Sequence[str], *, hint: str = "") -> None:
        super().__init__("; ".join(reasons), hint=hint)
        self.reasons = tuple(reasons)


class NotFoundError(PermanentError):
    """There is no such object here."""

    exit_code = 3


class AmbiguousError(PermanentError):
    """The name means several open objects; `--uid` chooses."""

    exit_code = 2


class UsageError(PermanentError):
    """The input cannot be used as it is."""

    exit_code = 2
