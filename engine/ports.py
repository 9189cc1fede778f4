"""
What the engine needs from the world outside, as Protocols and frozen types.

Adapters implement these; third parties import them from `claimlet.adapters`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec

from ..events.errors import ClaimletError
from ..events.values import (
    Allocation,
    ClaimRef,
    ClaimUid,
    ContainerUse,
    DriverName,
    FailureOutcome,
    PodRef,
    PreparedDevice,
)
from ..events.world import Task, World

__all__ = [
    "CdiFault",
    "Claim",
    "ClaimObject",
    "DriverAdapter",
    "DriverCallError",
    "DriverInstance",
    "DriverListener",
    "Drivers",
    "Failed",
    "KubeApi",
    "PodClaimObject",
    "PodObject",
    "PodSource",
    "Prepared",
    "Task",
    "World",
]

#: No file defines the id, or two of one directory do, which runtimes take for none.
CdiFault = Literal["cdi_unresolved", "cdi_conflict"]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim as a driver adapter gets it: identity, allocation, and its own last answer."""

    ref: ClaimRef
    allocation: Allocation
    #: What this driver answered last, to be undone by unprepare (rule R10).
    devices: tuple[PreparedDevice, ...] = ()
    #: Opaque driver parameters of the allocation as JSON, as they were at prepare; often none.
    config: bytes = b""

    @property
    def uid(self) -> ClaimUid:
        """Return the claim's UID."""
        return self.ref.uid


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's yes for one claim: the devices that it prepared."""

    devices: tuple[PreparedDevice, ...] = ()
    #: Of their CDI ids those that no container could use now, and why, where that was looked at.
    cdi_faults: dict[str, CdiFault] = {}


class Failed(msgspec.Struct, frozen=True):
    """A driver's no for one claim, in its own words."""

    text: str
    outcome: FailureOutcome = "refused"
    code: str = ""


class DriverCallError(ClaimletError):
    """The call as a whole went wrong; it says nothing about any single claim."""

    def __init__(self, text: str, *, outcome: FailureOutcome, code: str = "") -> None:
        super().__init__(text)
        self.outcome: FailureOutcome = outcome
        self.code = code


class DriverAdapter(Protocol):
    """
    Something that prepares claims of one driver: a DRA driver over gRPC, or your own class.

    Both methods must be idempotent: a call without a recorded outcome is made again.
    """

    @property
    def driver(self) -> str:
        """Return the driver's name, as allocations spell it."""
        ...

    async def prepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Prepared | Failed]:
        """
        Prepare *claims* and answer for each; a claim without an answer counts as failed.

        An answer for a claim that was not asked for is reported under its UID as it came.

        Raises:
            DriverCallError: The whole call went wrong.
        """
        ...

    async def unprepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Failed | None]:
        """
        Undo what was prepared for *claims*; None means done, also for claims that are not known.

        Raises:
            DriverCallError: The whole call went wrong.
        """
        ...


class DriverInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One running instance of a driver, as the registration found it."""

    driver: DriverName
    #: Unique for each registration: a socket that was replaced is another instance.
    instance: str
    endpoint: str
    adapter: DriverAdapter
    api: str = ""
    supported_versions: tuple[str, ...] = ()


class Drivers(Protocol):
    """The drivers that are there now."""

    def find(self, driver: DriverName) -> DriverInstance | None:
        """Return the newest connected instance of *driver*, else the newest, else None."""
        ...


class PodClaimObject(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `pod.spec.resourceClaims`, resolved as far as the pod itself tells."""

    name: str
    #: The claim's name; None with `needed` means that it does not exist yet.
    claim_name: str | None = None
    #: False where the pod status says that no claim is needed (rule R7).
    needed: bool = True
    #: The claim was made for this pod, so its owner must be checked.
    from_template: bool = False
    #: Set where the entry itself is wrong: neither name nor template, for example.
    problem: str = ""


class PodObject(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as a source reports it, with all that the node needs of it."""

    ref: PodRef
    claims: tuple[PodClaimObject, ...] = ()
    containers: tuple[ContainerUse, ...] = ()
    #: Mappings of `pod.status.extendedResourceClaimStatus`, without the claim's UID.
    extended: tuple[tuple[str, str, str], ...] = ()
    extended_claim_name: str | None = None


class ClaimObject(msgspec.Struct, frozen=True, kw_only=True):
    """A ResourceClaim as a source reports it."""

    ref: ClaimRef
    allocation: Allocation | None = None
    #: UIDs of the pods in `status.reservedFor`.
    reserved_for: tuple[str, ...] = ()
    #: UID of the controlling owner, if it has one.
    owner_uid: str | None = None
    owner_kind: str = ""
    #: The annotation `resource.kubernetes.io/pod-claim-name`; with an owner and without it: legacy.
    pod_claim_name: str = ""
    #: Opaque driver parameters as JSON, for the private subject only.
    config: bytes = b""
    attributes: dict[str, dict[str, str]] = {}


class PodSource(Protocol):
    """Somebody who says which pods are wanted here, and alone says that one is gone (rule 9)."""

    @property
    def name(self) -> str:
        """Return the source's name: `control`, `manifest`, `kubernetes`."""
        ...

    async def __aenter__(self) -> Self:
        """Begin to report pods to the loop."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Report no more; silence means nothing."""
        ...


class KubeApi(Protocol):
    """What a Kubernetes source needs of the API server; implemented with that source."""

    async def claim(self, namespace: str, name: str) -> ClaimObject | None:
        """Return the claim, or None where it does not exist."""
        ...


class DriverListener(Protocol):
    """Whoever wants to know which driver instances come and go; neither call may block."""

    def registered(self, instance: DriverInstance) -> None:
        """Hear that *instance* answers."""
        ...

    def gone(self, driver: DriverName, instance: str, reason: str) -> None:
        """Hear that the instance does not answer any more."""
        ...
