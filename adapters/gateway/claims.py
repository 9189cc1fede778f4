"""
Claims as a driver may see them: from the log, and only those that name the driver.

A driver on upstream's helper reads each claim from an API server before it prepares it.  What it
gets here is the allocation that this stay is about, not today's object (rule R10): identity,
results, the driver's own configuration, and the pods that use the claim.  Requests are not in the
log, so `spec` is empty.  Another driver's opaque parameters may hold secrets and are left out.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Protocol

import msgspec

from ...events.values import Allocation, ClaimRef, PodRef
from .status import ApiError

__all__ = ["ClaimsView", "GatewayClaim", "claim_body"]

#: Which pod claim a generated claim was made for; upstream's helper copies it into device metadata.
_POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"

#: What stands in the log in the place of opaque parameters, and what for none.
_DIGEST = "parametersDigest"
_DIGEST_OF_NONE = sha256(b"null").hexdigest()


class GatewayClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim as the node's state knows it."""

    ref: ClaimRef
    allocation: Allocation
    #: A JSON array beside `devices.config` of the allocation: the opaque parameters of each entry,
    #: null for an entry without them.  They replace the digests that the allocation carries.  Empty
    #: where no entry has any.
    config: bytes = b""
    #: The pods that use the claim now.
    consumers: tuple[PodRef, ...] = ()
    #: The name in the pod of a claim that was made from a template.
    pod_claim_name: str = ""

    def names_driver(self, driver: str) -> bool:
        """Return whether *driver* has a part in the allocation."""
        return any(device.driver == driver for device in self.allocation.devices)


class ClaimsView(Protocol):
    """The claims of this node that a driver may ask for; it must not block."""

    def claim(self, namespace: str, name: str) -> GatewayClaim | None:
        """Return the open claim of this name, or None."""
        ...


def claim_body(claim: GatewayClaim, *, driver: str) -> bytes:
    """
    Return the ResourceClaim as JSON, for *driver*.

    Raises:
        ApiError: The driver's opaque parameters are not known.
    """
    metadata: dict[str, Any] = {
        "name": claim.ref.name,
        "namespace": claim.ref.namespace,
        "uid": claim.ref.uid,
    }
    if claim.pod_claim_name:
        metadata["annotations"] = {_POD_CLAIM_ANNOTATION: claim.pod_claim_name}
    consumers = [{"resource": "pods", "name": pod.name, "uid": pod.uid} for pod in claim.consumers]
    return msgspec.json.encode(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": {"devices": {}},
            "status": {"allocation": _allocation(claim, driver), "reservedFor": consumers},
        }
    )


def _allocation(claim: GatewayClaim, driver: str) -> dict[str, Any]:
    allocation: dict[str, Any] = msgspec.json.decode(claim.allocation.verbatim, type=dict[str, Any])
    devices = allocation.get("devices")
    config = devices.get("config") if isinstance(devices, dict) else None
    if not isinstance(devices, dict) or not isinstance(config, list):
        return allocation
    recorded = msgspec.json.decode(claim.config or b"[]", type=list[msgspec.Raw])
    entries: list[Any] = []
    for index, entry in enumerate(config):
        opaque = entry.get("opaque") if isinstance(entry, dict) else None
        if not isinstance(opaque, dict):
            entries.append(entry)
        elif opaque.get("driver") == driver:
            parameters = recorded[index] if index < len(recorded) else None
            if parameters is None and opaque.get(_DIGEST, _DIGEST_OF_NONE) != _DIGEST_OF_NONE:
                raise ApiError(503, f"the configuration of claim {claim.ref} is not known")
            restored = {name: value for name, value in opaque.items() if name != _DIGEST}
            entries.append(entry | {"opaque": restored | {"parameters": parameters}})
    return allocation | {"devices": devices | {"config": entries}}
