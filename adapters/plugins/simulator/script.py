"""
What the driver is to do wrong, and which devices it has: a JSON file that is read live.

A step names the calls it is about (`method`, `claim`), how often it happens (`times`) and what
happens.  Uses are counted on disk, so that a step that kills the process spares the next one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ....events.values import ClaimRef, PreparedDevice
from .files import write_whole

__all__ = ["Method", "Script", "ScriptFile", "Step"]

Method = Literal["prepare", "unprepare", "get_info", "notify"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Step(_Part, frozen=True, forbid_unknown_fields=True):
    """One thing that happens to the calls that it is about."""

    #: Tells equal steps apart, and makes a step that is written once more a new one.
    id: str = ""
    #: Empty: prepare and unprepare.
    method: Method | None = None
    #: A UID, a name or `namespace/name`; empty: all claims.
    claim: str = ""
    #: How many calls it happens to; None: all.
    times: int | None = None

    delay_seconds: float = 0.0
    #: Whether `hang`, `panic` and `status` happen before or after the driver has acted.
    when: Literal["before", "after"] = "before"
    hang: bool = False
    panic: bool = False
    #: The name of a gRPC status that the whole call ends with, and its text.
    status: str = ""
    text: str = ""
    #: The error text of each claim that the step is about; the driver does not act for it.
    fail: str = ""
    answer: (
        Literal[
            "missing",
            "unasked",
            "empty",
            "duplicate",
            "wrong_device",
            "bad_cdi",
            "many_cdi",
            "many_devices",
            "huge",
            "garbage",
        ]
        | None
    ) = None
    #: How many devices or CDI ids, where there are to be many.
    count: int = 300
    #: How large an answer is made that is to be huge.
    size_bytes: int = 1024 * 1024

    def is_about(self, method: Method, claims: Sequence[ClaimRef]) -> bool:
        """Return whether the step happens to a call of *method* with *claims*."""
        if self.method is None:
            if method not in {"prepare", "unprepare"}:
                return False
        elif self.method != method:
            return False
        return not self.claim or any(self.is_for(claim) for claim in claims)

    def is_for(self, claim: ClaimRef) -> bool:
        """Return whether the step is about *claim*."""
        return self.claim in {"", claim.uid, claim.name, str(claim)}


class Script(_Part, frozen=True, forbid_unknown_fields=True):
    """The steps, and the devices of claims by UID, name or `namespace/name`."""

    steps: tuple[Step, ...] = ()
    devices: dict[str, tuple[PreparedDevice, ...]] = {}
    #: One call after another, each taking this long.
    serialize_seconds: float | None = None

    def devices_of(self, claim: ClaimRef) -> tuple[PreparedDevice, ...] | None:
        """Return the devices that the table has for *claim*."""
        for name in (claim.uid, str(claim), claim.name):
            if name in self.devices:
                return self.devices[name]
        return None


class ScriptFile:
    """The script at *path*, as it is now; without a path it is empty."""

    def __init__(self, path: Path | None, *, uses: Path | None) -> None:
        self._path = path
        self._uses_path = uses
        self._uses: dict[str, int] = {}
        self._script = Script()
        self._version: tuple[int, int, int] | None = None
        if path is not None:
            self._script = self._read(path)
        if uses is not None and uses.exists():
            self._uses = msgspec.json.decode(uses.read_bytes(), type=dict[str, int])

    def now(self) -> Script:
        """Return the script; one that cannot be read leaves the last good one."""
        if self._path is not None:
            try:
                self._script = self._read(self._path)
            except (OSError, msgspec.MsgspecError) as error:
                print(f"{self._path}: {error}", file=sys.stderr)  # noqa: T201 -- a process for tests
        return self._script

    def take(self, method: Method, claims: Sequence[ClaimRef] = ()) -> tuple[Step, ...]:
        """Return the steps that happen to this call, and count them."""
        taken = [step for step in self.now().steps if step.is_about(method, claims)]
        limited = {self._name(step): step.times for step in taken if step.times is not None}
        spent = {name for name, times in limited.items() if self._uses.get(name, 0) >= times}
        if counted := limited.keys() - spent:
            self._uses |= {name: self._uses.get(name, 0) + 1 for name in counted}
            if self._uses_path is not None:
                write_whole(self._uses_path, msgspec.json.encode(self._uses))
        return tuple(step for step in taken if self._name(step) not in spent)

    def _read(self, path: Path) -> Script:
        found = path.stat()
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        if version != self._version:
            self._script = msgspec.json.decode(path.read_bytes(), type=Script)
            self._version = version
        return self._script

    @staticmethod
    def _name(step: Step) -> str:
        return step.id or msgspec.json.encode(step).decode()
