"""
Errors, by what the caller should do about them.

::

    ClaimletError
    ├── TemporaryError              ask again later, nothing was done
    │   ├── LogUnavailableError     the log does not answer; what was issued is folded if it lands
    │   └── ServerUnavailableError  the log's own server does not start or does not answer
    └── PermanentError              asking again gives the same answer
        ├── FencedError             another writer owns the log: stop, exit 6
        ├── LockHeldError           another process owns the state directory or the root: exit 6
        ├── LogSetupError           no server program, unusable directory, loose keys, other stream
        ├── LogDamagedError         a hole, a foreign record or a broken chain: never fold over it
        ├── UnknownFactError        a critical fact of a newer version: read only
        ├── InvalidRecordError      bytes that are no record, or a fact too large to store
        └── InvalidSnapshotError    no snapshot that can be used here: costs the time of a replay

Every error is one line for people (`str(error)`) and may carry a `hint`, what to do about it.
"""

from __future__ import annotations

__all__ = [
    "ClaimletError",
    "FencedError",
    "InvalidRecordError",
    "InvalidSnapshotError",
    "LockHeldError",
    "LogDamagedError",
    "LogSetupError",
    "LogUnavailableError",
    "PermanentError",
    "ServerUnavailableError",
    "TemporaryError",
    "UnknownFactError",
]


class ClaimletError(Exception):
    """Anything that claimlet tells its callers; one line, and a hint where there is one."""

    #: The exit code of a command that ends with this error.
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TemporaryError(ClaimletError):
    """Nothing was done; the same call may succeed later."""

    exit_code = 4


class PermanentError(ClaimletError):
    """The same call will fail again until something else changes."""


class LogUnavailableError(TemporaryError):
    """The log did not answer in time; what was issued is folded if it lands after all."""


class ServerUnavailableError(TemporaryError):
    """The log's own server does not start, or is there and does not answer."""


class FencedError(PermanentError):
    """Another writer has taken the log over; this one must stop."""

    exit_code = 6


class LockHeldError(PermanentError):
    """Another process owns what only one may own."""

    exit_code = 6


class LogSetupError(PermanentError):
    """The log cannot be used as it is set up: an operator has to change something."""

    exit_code = 4


class LogDamagedError(PermanentError):
    """The log has a hole, a foreign record or a broken chain at *sequence*."""

    exit_code = 4

    def __init__(self, message: str, *, sequence: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sequence = sequence


class InvalidAnchorError(PermanentError):
    """The file that says where the log ends is not as it was written."""

    exit_code = 4


class UnknownFactError(PermanentError):
    """The log holds, at *sequence*, a critical fact that this version does not know."""

    exit_code = 4

    def __init__(self, message: str, *, sequence: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sequence = sequence


class InvalidRecordError(PermanentError):
    """The bytes at *sequence* are no record of this log, or the fact is too large to be one."""

    exit_code = 4

    def __init__(self, message: str, *, sequence: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sequence = sequence


class InvalidSnapshotError(PermanentError):
    """A snapshot that cannot be used here; the log is replayed instead."""
