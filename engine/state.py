"""
What the node knows, as frozen values: claims, pods, drivers, and the policy it decides by.

They are made by folding facts (`engine.claim`, `engine.node`) and by nothing else.  A `sequence` is
that of the fact a value comes from; a `time` is the record's, for display only (rule 15).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..events.values import (
    Allocation,
    Call,
    ClaimRef,
    ClaimUid,
    ContainerUse,
    DriverName,
    ExtendedMapping,
    FailureOutcome,
    PodClaim,
    PodRef,
    PodUid,
    PreparedDevice,
)
from .lifecycle import Phase

__all__ = [
    "Answer",
    "ClaimState",
    "Consumer",
    "Debt",
    "Failure",
    "Operation",
    "Overlap",
    "PodState",
    "Policy",
    "Refusal",
    "RegisteredDriver",
    "Request",
    "TakenSnapshot",
    "Waiver",
]


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the state's values; one with a new field keeps the digest of an old history."""


class Policy(_Value, frozen=True):
    """The settings that decisions depend on."""

    reprepare_on: Literal["boot", "start"] = "boot"
    unused_claims: Literal["skip", "prepare"] = "skip"
    #: Overrides `unused_claims` for a driver; a claim is skipped only if all its drivers say so.
    unused_claims_by_driver: dict[str, str] = {}
    overlap: Literal["wait", "record"] = "wait"
    unprepared_retention_seconds: float = 600.0


class Consumer(_Value, frozen=True):
    """A pod that holds the claim; a `skipped` one never causes a prepare (rule R8)."""

    pod: PodRef
    joined_sequence: int
    writer: str
    skipped: str = ""
    #: Came with `restored`, so that no request of its pod need be in the log.
    restored: bool = False


class Answer(_Value, frozen=True):
    """A driver's last answer for this stay; a `void` one no longer lets a container start."""

    driver: DriverName
    boot: str
    writer: str
    sequence: int
    time: str
    devices: tuple[PreparedDevice, ...] = ()
    duration_seconds: float = 0.0
    changed: bool = False
    void: bool = False


class Debt(_Value, frozen=True):
    """A driver may hold something for the claim since `since`."""

    driver: DriverName
    since: str
    sequence: int
    #: The boot of the last prepare intent: in another boot nothing of it can act any more.
    boot: str
    #: The last prepare intent of this driver has a recorded answer (rule 1).
    answered: bool = False
    #: A prepare call in that boot ended without a known outcome: it may act until its deadline.
    unsettled: bool = False
    #: An unprepare succeeded while an earlier prepare might still have acted.
    provisional: bool = False


class Operation(_Value, frozen=True):
    """An open intent: one pod's prepare or unprepare, covering all its retries."""

    id: str
    kind: Literal["prepare", "unprepare"]
    pod_uid: PodUid
    sequence: int
    time: str
    boot: str
    writer: str
    #: The id of the fact that opened it, the cause of all its outcomes.
    started_id: str
    calls: tuple[Call, ...] = ()
    why: str = ""


class Failure(_Value, frozen=True):
    """The last recorded failure of one driver in the open operation."""

    driver: DriverName
    operation: str
    outcome: FailureOutcome
    code: str
    text: str
    attempts: int
    first_seen: str
    time: str
    sequence: int
    retry_delay_seconds: float = 0.0
    #: How many facts of this operation and driver said something new (at most 8 are appended).
    changes: int = 0


class Overlap(_Value, frozen=True):
    """A device that this claim shares with another although neither may."""

    driver: DriverName
    pool: str
    device: str
    other_claim_uid: ClaimUid


class ClaimState(_Value, frozen=True):
    """One claim on this node; `phase` says what may follow, the rest what is owed."""

    ref: ClaimRef
    phase: Phase = Phase.ABSENT
    #: Sequence and time of the fact that led to this phase.
    phase_sequence: int = 0
    phase_time: str = ""
    origin: str = ""
    pod_claim: str = ""
    generated_time: str = ""
    bound_sequence: int = 0
    bound_time: str = ""
    allocation: Allocation | None = None
    attributes: dict[str, dict[str, str]] = {}
    consumers: tuple[Consumer, ...] = ()
    #: The last consumer that left; its pod owns the unprepare.
    released: PodRef | None = None
    answers: tuple[Answer, ...] = ()
    debts: tuple[Debt, ...] = ()
    operation: Operation | None = None
    failures: tuple[Failure, ...] = ()
    #: Set by `object_lost`: deleted, deallocated, reallocated.
    lost: str = ""
    #: Why the answers were voided last: boot, start, operator, restored.
    voided: str = ""
    overlaps: tuple[Overlap, ...] = ()
    anomalies: int = 0
    #: Why nothing may be called for the claim (rule 12); empty for a sound one.
    suspect: str = ""
    last_sequence: int = 0
    last_id: str = ""
    last_time: str = ""

    @property
    def uid(self) -> ClaimUid:
        """Return the claim's UID."""
        return self.ref.uid

    @property
    def drivers(self) -> tuple[DriverName, ...]:
        """Return the drivers of the allocation, in its order, each once."""
        devices = self.allocation.devices if self.allocation else ()
        return tuple(dict.fromkeys(device.driver for device in devices))

    @property
    def prepare_drivers(self) -> tuple[DriverName, ...]:
        """Return the drivers that must be asked to prepare: not all their devices skip it (K01)."""
        devices = self.allocation.devices if self.allocation else ()
        return tuple(dict.fromkeys(d.driver for d in devices if not d.skip_prepare))

    @property
    def unprepare_drivers(self) -> tuple[DriverName, ...]:
        """Return the drivers that must be asked to unprepare once they were asked to prepare."""
        devices = self.allocation.devices if self.allocation else ()
        return tuple(dict.fromkeys(d.driver for d in devices if not d.skip_unprepare))

    def answer(self, driver: str) -> Answer | None:
        """Return the last answer of *driver*, void or not."""
        return next((answer for answer in self.answers if answer.driver == driver), None)

    def debt(self, driver: str) -> Debt | None:
        """Return what *driver* owes, if anything."""
        return next((debt for debt in self.debts if debt.driver == driver), None)

    def failure(self, driver: str) -> Failure | None:
        """Return the last recorded failure of *driver* in this stay."""
        return next((failure for failure in self.failures if failure.driver == driver), None)

    def consumer(self, pod_uid: str) -> Consumer | None:
        """Return the consumer with *pod_uid*, if it holds the claim."""
        return next((c for c in self.consumers if c.pod.uid == pod_uid), None)

    def unanswered(self) -> tuple[DriverName, ...]:
        """Return the drivers that must still answer before the claim is prepared."""
        valid = {answer.driver for answer in self.answers if not answer.void}
        return tuple(driver for driver in self.prepare_drivers if driver not in valid)


class Request(_Value, frozen=True):
    """The last `prepare_requested` of a pod."""

    sequence: int
    id: str
    time: str
    boot: str
    writer: str
    source: str
    claims: tuple[PodClaim, ...] = ()
    containers: tuple[ContainerUse, ...] = ()
    extended: tuple[ExtendedMapping, ...] = ()


class PodState(_Value, frozen=True):
    """A pod that was asked for and is not closed yet."""

    ref: PodRef
    request: Request | None = None
    #: Why the pod is gone (`pod_finished`, `unprepare_requested`); empty while it is wanted.
    ended: str = ""
    ended_sequence: int = 0
    ended_time: str = ""
    last_id: str = ""


class Refusal(_Value, frozen=True):
    """The last refusal of a pod that holds nothing because of it."""

    pod: PodRef
    source: str
    reasons: tuple[str, ...]
    attempts: int
    sequence: int
    time: str
    #: How many of the refusals said something new (at most 8 are appended).
    changes: int = 0


class RegisteredDriver(_Value, frozen=True):
    """An instance of a driver that answers, according to the log."""

    driver: DriverName
    instance: str
    endpoint: str
    api: str
    sequence: int
    time: str


class Waiver(_Value, frozen=True):
    """A debt that an operator waived; it outlives the claim (rule 8)."""

    claim: ClaimRef
    driver: DriverName
    who: str
    why: str
    last_error: str
    sequence: int
    time: str


class TakenSnapshot(_Value, frozen=True):
    """The last snapshot that a fact tells of; whether it can be used is not known here."""

    fact_sequence: int
    #: What it holds: everything up to here.
    sequence: int
    digest: str
    fold_version: int
    slot: str
    time: str
