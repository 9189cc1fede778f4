"""
What client and service say to each other: one JSON request and one JSON reply for each verb.

Subjects are ``claimlet.<node>.<verb>``.  A reply holds either a result or a `Fault`, which becomes
the same error on the client's side, with its hint and exit code.  Unknown fields are ignored, so
that an older client works with a newer service.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...engine.errors import (
    ClaimletError,
    NotFoundError,
    NotReadyError,
    RefusedError,
    UsageError,
)
from ...engine.restore import ForeignClaim
from ...engine.views import ClaimView, ObjectView
from ...events.subjects import node_token

__all__ = [
    "ACTOR_HEADER",
    "HOLD_SECONDS_MAX",
    "VERBS",
    "BootView",
    "Count",
    "DriverRow",
    "Fault",
    "Hello",
    "ImportRequest",
    "Imported",
    "ObjectRequest",
    "PodClaims",
    "PodRow",
    "PrepareRequest",
    "ReplayView",
    "Reply",
    "RotateRequest",
    "StateReply",
    "TeardownRequest",
    "WaiveRequest",
    "WaiverRow",
    "error_of",
    "fault_of",
    "subject_of",
]

#: Who asks, as the client says it; the account's key is what the server has checked.
ACTOR_HEADER = "Claimlet-Actor"

#: The longest that the service holds one reply back, so that a client hears of a dead service.
HOLD_SECONDS_MAX = 30.0

VERBS = (
    "hello",
    "prepare",
    "unprepare",
    "state",
    "reprepare",
    "replay",
    "waive",
    "settle",
    "rotate",
    "import",
)


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the messages."""


class Fault(_Message, frozen=True):
    """Why a request failed, as the client raises it again."""

    message: str
    hint: str = ""
    exit_code: int = 1
    reasons: list[str] = []


class Reply(_Message, frozen=True):
    """The answer to any request: a result or a fault."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    fault: Fault | None = None


class ReplayView(_Message, frozen=True):
    """How the service has folded the log when it started."""

    #: full, snapshot.
    kind: str
    facts: int
    #: Up to where the snapshot reaches that was used or compared.
    snapshot_sequence: int
    #: Why the newest snapshot could not be used.
    problem: str
    #: The alarm: a snapshot that is not what the log says.
    mismatch: str


class Hello(_Message, frozen=True):
    """Who answers."""

    node: str
    version: str
    writer: str
    boot: str
    sequence: int
    is_log_available: bool
    replay: ReplayView | None = None


class PrepareRequest(_Message, frozen=True):
    """Ask for the pods of `documents`; hold the reply until they are prepared, at most so long."""

    documents: list[dict[str, Any]]
    wait_seconds: float = 0.0


class TeardownRequest(_Message, frozen=True):
    """Say that a pod is gone; hold the reply until its claims are unprepared, at most so long."""

    namespace: str
    name: str
    uid: str = ""
    reason: str = "deleted"
    wait_seconds: float = 0.0


class ObjectRequest(_Message, frozen=True):
    """A claim by name and, where the name means several, by UID; or a driver by `name` alone."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class WaiveRequest(_Message, frozen=True):
    """Give up, or settle, what a driver owes for a claim."""

    namespace: str
    name: str
    driver: str
    reason: str = ""
    uid: str = ""


class RotateRequest(_Message, frozen=True):
    """Give users of the log's own server new keys; none: all of them."""

    users: list[str] = []


class ImportRequest(_Message, frozen=True):
    """Take over what a kubelet held, all of it or nothing."""

    claims: list[ForeignClaim]
    #: sha256 of the file that it comes from.
    digest: str


class Imported(_Message, frozen=True):
    """What an import came to."""

    claims: int
    #: Those that were imported before, just as they are in the file.
    known: int


class Count(_Message, frozen=True):
    """How many things a request touched."""

    count: int


class PodClaims(_Message, frozen=True):
    """A pod and its claims."""

    pod: ObjectView
    #: pending, prepared, request-again, refused, unpreparing, closed.
    state: str
    reasons: list[str]
    claims: list[ClaimView]
    kind: str = "PodClaims"


class PodRow(_Message, frozen=True):
    """A pod in a state reply."""

    namespace: str
    name: str
    uid: str
    state: str
    reasons: list[str]
    source: str
    requested: str
    claims: list[str]


class DriverRow(_Message, frozen=True):
    """An instance of a driver, or a driver that claims name and that is not there."""

    driver: str
    instance: str
    endpoint: str
    api: str
    since: str
    #: connected, registered (according to the log, where no service runs), gone.
    state: str
    #: How many claims it fails with one text, and that text.
    failing_claims: int
    last_error: str
    #: Debts that were given up while it was away.
    waived_debts: int


class WaiverRow(_Message, frozen=True):
    """A debt that was waived."""

    namespace: str
    name: str
    claim_uid: str
    driver: str
    who: str
    why: str
    last_error: str
    time: str


class BootView(_Message, frozen=True):
    """The boot that the node is in."""

    boot: str
    since: str
    writer: str
    reprepare_on: str


class StateReply(_Message, frozen=True):
    """All that the node holds now."""

    node: str
    sequence: int
    digest: str
    boot: BootView
    synced: list[str]
    claims: list[ClaimView]
    pods: list[PodRow]
    drivers: list[DriverRow]
    waivers: list[WaiverRow]
    is_live: bool = True


def subject_of(node: str, verb: str) -> str:
    """Return the subject of *verb* at *node*."""
    return f"claimlet.{node_token(node)}.{verb}"


def fault_of(error: ClaimletError) -> Fault:
    """Return *error* as it is sent."""
    reasons = list(error.reasons) if isinstance(error, RefusedError) else []
    return Fault(message=str(error), hint=error.hint, exit_code=error.exit_code, reasons=reasons)


def error_of(fault: Fault) -> ClaimletError:
    """Return the error that *fault* stands for."""
    if fault.reasons:
        return RefusedError(fault.reasons, hint=fault.hint)
    kinds = {2: UsageError, 3: NotFoundError, 4: NotReadyError}
    error = kinds.get(fault.exit_code, ClaimletError)(fault.message, hint=fault.hint)
    error.exit_code = fault.exit_code
    return error
