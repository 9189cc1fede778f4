"""
The facts: everything that can have happened on a node, in the past tense.

The class name in snake case is the fact's *word*: the record's `t`, the trigger of the machine, the
last token of the subject and the event of the log line (engine/README.md).  A fact holds the
body only; whom it is about stands in the record.  Meanings never change; fields are only ever
added.

Claim facts drive `engine.lifecycle`; pod and node facts say what was asked for and what the node
is.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

import msgspec

from .values import (
    Allocation,
    Call,
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

__all__ = [
    "CLAIM_FACTS",
    "FACTS",
    "NODE_FACTS",
    "POD_FACTS",
    "AnomalyFound",
    "Booted",
    "Bound",
    "ClaimFact",
    "ConfigRecorded",
    "ConsumerJoined",
    "ConsumerLeft",
    "Deallocated",
    "DebtWaived",
    "Deleted",
    "DriverFailed",
    "DriverGone",
    "DriverPrepared",
    "DriverRegistered",
    "DriverUnprepared",
    "Fact",
    "Generated",
    "NodeFact",
    "ObjectLost",
    "PodClosed",
    "PodFact",
    "PodFinished",
    "PrepareRefused",
    "PrepareRequested",
    "PrepareSkipped",
    "PrepareStarted",
    "Prepared",
    "ReprepareNeeded",
    "Restored",
    "Retired",
    "SettingsChanged",
    "SnapshotTaken",
    "SourceSynced",
    "Stopped",
    "UnprepareRequested",
    "UnprepareStarted",
    "Unprepared",
    "WaiverSettled",
    "WriterStarted",
]


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all facts."""

    #: The word, set for each subclass from its name.
    word: ClassVar[str] = ""
    #: The version of the body, beside the word in the record.
    version: ClassVar[int] = 1
    #: Whether a reader that does not know the word must stop (unknown uncritical facts are not
    #: folded).
    critical: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.word = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class ClaimFact(Fact, frozen=True):
    """A fact about one claim on this node."""


class PodFact(Fact, frozen=True):
    """A fact about one pod on this node."""


class NodeFact(Fact, frozen=True):
    """A fact about the node itself."""


# --- claims -------------------------------------------------------------------------------------


class Generated(ClaimFact, frozen=True):
    """The node learned of the claim."""

    origin: Literal["template", "user", "extended", "legacy"] = "user"
    #: The claim is asked for under this name by the pod that brought it.
    pod_claim: str = ""


class Bound(ClaimFact, frozen=True):
    """The claim has its first consumer, and with it the allocation that this stay is about."""

    pod: PodRef
    allocation: Allocation
    #: Known attributes of the allocated devices, by `driver/pool/device`.
    attributes: dict[str, dict[str, str]] = {}


class ConsumerJoined(ClaimFact, frozen=True):
    """A further pod uses the claim; for a pod that is a consumer already its skip is cleared."""

    pod: PodRef


class ConsumerLeft(ClaimFact, frozen=True):
    """The pod is known to be gone; its devices are not needed for it any more."""

    pod_uid: PodUid
    reason: str


class PrepareSkipped(ClaimFact, frozen=True):
    """The consumer does not need the claim prepared (rule R8)."""

    pod_uid: PodUid
    reason: Literal["unused", "driver"] = "unused"


class PrepareStarted(ClaimFact, frozen=True):
    """The intent, and the debt: from here on these drivers may have acted."""

    operation: str
    pod_uid: PodUid
    calls: tuple[Call, ...]
    why: Literal["request", "reprepare"] = "request"


class DriverPrepared(ClaimFact, frozen=True):
    """One driver has prepared its part of the claim; its answer replaces any earlier one."""

    driver: DriverName
    boot: str
    devices: tuple[PreparedDevice, ...] = ()
    duration_seconds: float = 0.0
    #: The answer differs from the last one of this stay.
    changed: bool = False


class DriverFailed(ClaimFact, frozen=True):
    """A call to one driver went wrong for this claim; it will be made again."""

    driver: DriverName
    outcome: FailureOutcome
    #: A gRPC status name, or claimlet's own word in lower case.
    code: str = ""
    text: str = ""
    attempts: int = 1
    #: RFC 3339; when the first of these attempts failed.
    first_seen: str = ""
    #: How long until the next attempt, for display.
    retry_delay_seconds: float = 0.0


class Prepared(ClaimFact, frozen=True):
    """All drivers have answered: containers may start."""


class ReprepareNeeded(ClaimFact, frozen=True):
    """All answers are void and an open prepare is closed; debts and device lists stay."""

    why: Literal["boot", "start", "operator"]


class UnprepareStarted(ClaimFact, frozen=True):
    """The intent to give the devices back."""

    operation: str
    calls: tuple[Call, ...] = ()


class DriverUnprepared(ClaimFact, frozen=True):
    """One driver has unprepared its part; not `final` while an earlier prepare may still act."""

    driver: DriverName
    duration_seconds: float = 0.0
    final: bool = True


class DebtWaived(ClaimFact, frozen=True):
    """An operator gave up what this driver owes."""

    driver: DriverName
    who: str
    why: str
    last_error: str = ""


class Unprepared(ClaimFact, frozen=True):
    """Nobody owes anything for this claim: the stay is over."""


class ObjectLost(ClaimFact, frozen=True):
    """The claim object is not what it was; its devices stay until the last consumer leaves."""

    how: Literal["deleted", "deallocated", "reallocated"]


class Deallocated(ClaimFact, frozen=True):
    """The unprepared claim lost its allocation and may be bound again."""


class Deleted(ClaimFact, frozen=True):
    """The unprepared claim's object is gone: the claim is closed."""


class Retired(ClaimFact, frozen=True):
    """Nothing refers to the claim any more: it is closed."""


class Restored(ClaimFact, frozen=True):
    """A whole claim, from an acknowledged gap or a kubelet checkpoint; its answers are void."""

    allocation: Allocation
    consumers: tuple[PodRef, ...] = ()
    #: Drivers that may hold something for this claim.
    debts: tuple[DriverName, ...] = ()
    devices: dict[str, tuple[PreparedDevice, ...]] = {}
    #: Known attributes of the allocated devices, by `driver/pool/device`.
    attributes: dict[str, dict[str, str]] = {}
    #: Where the claim is known from.
    why: str = ""


class AnomalyFound(ClaimFact, frozen=True):
    """Something that should not be; it names nothing of another namespace."""

    kind: Literal[
        "device_overlap",
        "unknown_device",
        "cdi_unresolved",
        "cdi_conflict",
        "orphan",
        "protocol_violation",
    ]
    driver: DriverName
    text: str
    pool: str = ""
    device: str = ""
    #: The other claim of an overlap, by UID only.
    other_claim_uid: ClaimUid | None = None


class ConfigRecorded(Fact, frozen=True):
    """Opaque driver parameters of a claim; on the private subject, in no output."""

    config: msgspec.Raw


# --- pods ---------------------------------------------------------------------------------------


class PrepareRequested(PodFact, frozen=True):
    """A source wants this pod's claims prepared; the last fact of its group."""

    source: str
    claims: tuple[PodClaim, ...] = ()
    containers: tuple[ContainerUse, ...] = ()
    extended: tuple[ExtendedMapping, ...] = ()


class PrepareRefused(PodFact, frozen=True):
    """The request did not pass validation; nothing else was stored for the pod."""

    source: str
    reasons: tuple[str, ...]
    attempts: int = 1


class PodFinished(PodFact, frozen=True):
    """The pod's containers have ended for good."""

    phase: Literal["Succeeded", "Failed"]


class UnprepareRequested(PodFact, frozen=True):
    """The pod's source says that the pod is gone."""

    reason: str
    source: str = ""


class PodClosed(PodFact, frozen=True):
    """No claim holds the ended pod any more."""


# --- the node -----------------------------------------------------------------------------------


class WriterStarted(NodeFact, frozen=True):
    """A process took the log over: it sets boot and writer, and forgets drivers and sources."""

    writer: str
    boot: str
    claimlet_version: str = ""
    pid: int = 0


class SourceSynced(NodeFact, frozen=True):
    """A pod source has told this process all it knows."""

    source: str


class Booted(NodeFact, frozen=True):
    """The node runs in another boot than the one the log knew."""

    boot: str
    previous: str = ""


class Stopped(NodeFact, frozen=True):
    """The writer stopped in good order."""

    reason: str = ""


class DriverRegistered(NodeFact, frozen=True):
    """An instance of a driver answers on its socket."""

    critical = False
    driver: DriverName
    instance: str
    endpoint: str
    api: str = ""
    supported_versions: tuple[str, ...] = ()


class DriverGone(NodeFact, frozen=True):
    """An instance of a driver does not answer any more."""

    critical = False
    driver: DriverName
    instance: str
    reason: str = ""


class WaiverSettled(NodeFact, frozen=True):
    """An operator took a waived debt off the node's list."""

    claim_uid: ClaimUid
    driver: DriverName
    who: str = ""
    why: str = ""


class SettingsChanged(NodeFact, frozen=True):
    """The settings that decisions depend on, as this process found them."""

    critical = False
    settings: dict[str, str]


class SnapshotTaken(NodeFact, frozen=True):
    """What the log says up to `sequence` lies folded in the stream SNAPSHOTS; a cache, no more."""

    critical = False
    sequence: int
    #: The digest of the public state at `sequence`, as a replay gives it.
    digest: str
    #: The fold that made it; another one does not read it.
    fold_version: int
    #: Where its chunks lie: `snapshots.<node>.<slot>.<number>`, the first being 0.
    slot: Literal["a", "b"]
    chunks: int
    size_bytes: int
    #: sha256 of the chunks joined.
    content_digest: str
    #: The sequence of the `snapshot_taken` before, where there is one.
    previous: int = 0


CLAIM_FACTS: dict[str, type[ClaimFact]] = {c.word: c for c in ClaimFact.__subclasses__()}
POD_FACTS: dict[str, type[PodFact]] = {c.word: c for c in PodFact.__subclasses__()}
NODE_FACTS: dict[str, type[NodeFact]] = {c.word: c for c in NodeFact.__subclasses__()}
FACTS: dict[str, type[Fact]] = {
    **CLAIM_FACTS,
    **POD_FACTS,
    **NODE_FACTS,
    ConfigRecorded.word: ConfigRecorded,
}
