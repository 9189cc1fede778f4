"""
Values that facts carry: references, allocations, devices, calls.

All are frozen and small; unknown fields are ignored on decoding (events/README.md).
"""

from __future__ import annotations

from typing import Literal, NewType

import msgspec

__all__ = [
    "AllocatedDevice",
    "Allocation",
    "Call",
    "ClaimRef",
    "ClaimUid",
    "ContainerUse",
    "DriverName",
    "ExtendedMapping",
    "FailureOutcome",
    "Link",
    "PodClaim",
    "PodRef",
    "PodUid",
    "PreparedDevice",
    "Value",
]

ClaimUid = NewType("ClaimUid", str)
PodUid = NewType("PodUid", str)
DriverName = NewType("DriverName", str)

#: How a call to a driver went wrong.  `refused`: the driver said no; `unreachable`: it never got
#: the call; `unknown`: it may have acted; `invalid`: its answer breaks the contract.
FailureOutcome = Literal["refused", "unreachable", "unknown", "invalid"]


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all values; a field with its default is not written."""


class ClaimRef(Value, frozen=True):
    """A ResourceClaim by identity (`uid`) and label (`namespace`, `name`)."""

    uid: ClaimUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodRef(Value, frozen=True):
    """A pod by identity (`uid`) and label (`namespace`, `name`)."""

    uid: PodUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class AllocatedDevice(Value, frozen=True):
    """One result of an allocation: a device given to one request of the claim."""

    driver: DriverName
    pool: str
    device: str
    request: str
    share_id: str | None = None
    admin_access: bool = False
    #: KEP-5945: the driver needs no NodePrepareResources for this device.
    skip_prepare: bool = False
    #: KEP-5945: the driver needs no NodeUnprepareResources for this device.
    skip_unprepare: bool = False


class Allocation(Value, frozen=True):
    """
    What the scheduler gave a claim: the decoded results and the JSON they were decoded from.

    `verbatim` is `status.allocation` with opaque parameters replaced by their digest; `digest` is
    the sha256 of the original, the claim's *allocation hash* (rule 4).  It is empty where the
    original is not known: a kubelet checkpoint holds no more than the devices.
    """

    digest: str
    devices: tuple[AllocatedDevice, ...] = ()
    verbatim: msgspec.Raw = msgspec.Raw(b"{}")


class PreparedDevice(Value, frozen=True):
    """One device of a driver's answer; no `requests` means all requests of the claim."""

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi_device_ids: tuple[str, ...] = ()
    share_id: str | None = None


class Call(Value, frozen=True):
    """A call that an intent announces: to which driver, through which instance."""

    driver: DriverName
    instance: str = ""
    endpoint: str = ""


class PodClaim(Value, frozen=True):
    """An entry of `pod.spec.resourceClaims`; without a `claim_uid` no claim is needed (rule R7)."""

    name: str
    claim_uid: ClaimUid | None = None


class Link(Value, frozen=True):
    """A container's use of a pod claim, narrowed to one request where `request` is given."""

    name: str
    request: str = ""


class ContainerUse(Value, frozen=True):
    """A container of the pod and the pod claims it names."""

    name: str
    kind: Literal["init", "sidecar", "regular"] = "regular"
    claims: tuple[Link, ...] = ()


class ExtendedMapping(Value, frozen=True):
    """An extended resource of a container that a request of the pod's special claim backs."""

    container: str
    resource: str
    request: str
    claim_uid: ClaimUid
