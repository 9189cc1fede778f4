"""
Pods and ResourceClaims as Kubernetes writes them, decoded into what the engine takes.

Unknown fields are ignored, wrong types are told with their path.  Where an object has no UID yet,
its decoded form has none either; `sources` fill it in.  An allocation is taken from
`status.allocation`, or simulated where the claim's own annotation names the devices; nobody
schedules here.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from ...engine.errors import UsageError
from ...engine.ports import PodClaimObject
from ...events.values import (
    AllocatedDevice,
    Allocation,
    ContainerUse,
    DriverName,
    Link,
)

__all__ = [
    "DEVICES_ANNOTATION",
    "ClaimDocument",
    "PodDocument",
    "decode_claim",
    "decode_pod",
]

#: `driver/pool/device` of each device to simulate, by commas; `request=driver/pool/device` names
#: the request.
DEVICES_ANNOTATION = "claimlet.dev/devices"
_POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"


class _Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the shapes that are decoded; unknown fields are ignored."""


class OwnerReference(_Shape, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(_Shape, frozen=True):
    name: str = ""
    namespace: str = "default"
    uid: str = ""
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class _PodClaim(_Shape, frozen=True):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _ClaimLink(_Shape, frozen=True):
    name: str
    request: str = ""


class _Resources(_Shape, frozen=True):
    claims: list[_ClaimLink] | None = None


class _Container(_Shape, frozen=True):
    name: str = ""
    resources: _Resources | None = None
    restart_policy: str = ""


class _PodSpec(_Shape, frozen=True):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[_PodClaim] | None = None


class _ClaimStatus(_Shape, frozen=True):
    name: str
    resource_claim_name: str | None = None


class _RequestMapping(_Shape, frozen=True):
    container_name: str
    resource_name: str
    request_name: str


class _ExtendedStatus(_Shape, frozen=True):
    resource_claim_name: str
    request_mappings: list[_RequestMapping] | None = None


class _PodStatus(_Shape, frozen=True):
    resource_claim_statuses: list[_ClaimStatus] | None = None
    extended_resource_claim_status: _ExtendedStatus | None = None


class _Pod(_Shape, frozen=True):
    metadata: Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus | None = None


class _Result(_Shape, frozen=True):
    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(default=None, name="shareID")
    admin_access: bool | None = None
    skip_node_operations: list[str] | None = None


class _Opaque(_Shape, frozen=True):
    driver: str = ""
    parameters: Any = None


class _Config(_Shape, frozen=True):
    opaque: _Opaque | None = None


class _Devices(_Shape, frozen=True):
    results: list[_Result] | None = None
    config: list[_Config] | None = None


class _AllocationShape(_Shape, frozen=True):
    devices: _Devices = _Devices()


class _Reservation(_Shape, frozen=True):
    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""


class _ResourceClaimStatus(_Shape, frozen=True):
    allocation: _AllocationShape | None = None
    reserved_for: list[_Reservation] | None = None


class _ResourceClaim(_Shape, frozen=True):
    metadata: Metadata
    status: _ResourceClaimStatus | None = None


class PodDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as written; `uid` is empty where it has none yet."""

    namespace: str
    name: str
    uid: str
    claims: tuple[PodClaimObject, ...]
    containers: tuple[ContainerUse, ...]
    extended: tuple[tuple[str, str, str], ...] = ()
    extended_claim_name: str | None = None


class ClaimDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A ResourceClaim as written; `uid` is empty where it has none yet."""

    namespace: str
    name: str
    uid: str
    allocation: Allocation | None
    #: The allocation comes from the annotation, so its reservations are simulated too.
    is_simulated: bool
    #: UID → name of the pods in `status.reservedFor`.
    reserved_for: Mapping[str, str]
    owner: OwnerReference | None
    pod_claim_name: str
    config: bytes


def decode_pod(document: Mapping[str, Any]) -> PodDocument:
    """
    Return *document*, a Pod.

    Raises:
        UsageError: It is none, with the path of what is wrong.
    """
    pod = _convert(document, _Pod, "Pod")
    extended = pod.status.extended_resource_claim_status if pod.status else None
    containers = [
        _container(c, "sidecar" if c.restart_policy == "Always" else "init")
        for c in pod.spec.init_containers or ()
    ]
    containers += [_container(c, "regular") for c in pod.spec.containers or ()]
    mappings = (extended.request_mappings if extended else None) or ()
    return PodDocument(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        claims=tuple(_pod_claim(claim, pod) for claim in pod.spec.resource_claims or ()),
        containers=tuple(containers),
        extended=tuple((m.container_name, m.resource_name, m.request_name) for m in mappings),
        extended_claim_name=extended.resource_claim_name if extended else None,
    )


def _container(container: _Container, kind: Any) -> ContainerUse:
    links = (container.resources.claims if container.resources else None) or ()
    return ContainerUse(
        name=container.name,
        kind=kind,
        claims=tuple(Link(name=link.name, request=link.request) for link in links),
    )


def _pod_claim(claim: _PodClaim, pod: _Pod) -> PodClaimObject:
    """Resolve the entry's name as far as the pod itself tells."""
    if claim.resource_claim_name:
        return PodClaimObject(name=claim.name, claim_name=claim.resource_claim_name)
    if not claim.resource_claim_template_name:
        return PodClaimObject(
            name=claim.name, problem="it has neither a claim name nor a template name"
        )
    statuses = (pod.status.resource_claim_statuses if pod.status else None) or ()
    for status in statuses:
        if status.name == claim.name:
            return PodClaimObject(
                name=claim.name,
                claim_name=status.resource_claim_name,
                needed=status.resource_claim_name is not None,
                from_template=True,
            )
    return PodClaimObject(name=claim.name, from_template=True)


def decode_claim(document: Mapping[str, Any], *, honour_skips: bool) -> ClaimDocument:
    """
    Return *document*, a ResourceClaim; *honour_skips* takes its `skipNodeOperations` (KEP-5945).

    Raises:
        UsageError: It is none, with the path of what is wrong.
    """
    claim = _convert(document, _ResourceClaim, "ResourceClaim")
    annotations = claim.metadata.annotations or {}
    status = claim.status or _ResourceClaimStatus()
    name = f"{claim.metadata.namespace}/{claim.metadata.name}"
    simulated = annotations.get(DEVICES_ANNOTATION)
    raw: dict[str, Any] | None = None
    if status.allocation is not None:
        raw = dict(document["status"]["allocation"])
    elif simulated is not None:
        raw = _simulated(simulated, name)
    owners = claim.metadata.owner_references or []
    return ClaimDocument(
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        allocation=_allocation(raw, honour_skips=honour_skips) if raw is not None else None,
        is_simulated=status.allocation is None and simulated is not None,
        reserved_for={
            r.uid: r.name
            for r in status.reserved_for or ()
            if r.resource == "pods" and not r.api_group and r.uid
        },
        owner=next((o for o in owners if o.controller), None),
        pod_claim_name=annotations.get(_POD_CLAIM_ANNOTATION, ""),
        config=_parameters(status.allocation),
    )


def _simulated(text: str, claim: str) -> dict[str, Any]:
    """Return the allocation that the annotation asks for."""
    results = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        request, _, path = item.rpartition("=")
        # A pool's name may have slashes itself.
        parts = path.strip().split("/")
        if len(parts) < 3 or not all(parts):
            raise UsageError(
                f"claim {claim}: {item[:80]!r} in {DEVICES_ANNOTATION} is no driver/pool/device"
            )
        place = {"driver": parts[0], "pool": "/".join(parts[1:-1]), "device": parts[-1]}
        results.append({"request": request.strip() or "devices"} | place)
    return {"devices": {"results": results}}


def _allocation(raw: dict[str, Any], *, honour_skips: bool) -> Allocation:
    """Return *raw* decoded, and verbatim but for its opaque parameters."""
    shape = msgspec.convert(raw, _AllocationShape)
    results = shape.devices.results or ()
    digest = sha256(msgspec.json.encode(raw, order="sorted")).hexdigest()
    devices = dict(raw.get("devices") or {})
    if devices.get("config"):
        devices["config"] = [_without_parameters(entry) for entry in devices["config"]]
    verbatim = raw | {"devices": devices} if "devices" in raw else raw
    return Allocation(
        digest=digest,
        devices=tuple(_device(result, honour_skips=honour_skips) for result in results),
        verbatim=msgspec.Raw(msgspec.json.encode(verbatim, order="sorted")),
    )


def _device(result: _Result, *, honour_skips: bool) -> AllocatedDevice:
    skips = set(result.skip_node_operations or ()) if honour_skips else set()
    # Upstream takes the first only together with the second.
    skip_unprepare = bool(skips & {"*", "NodeUnprepareResources"})
    return AllocatedDevice(
        driver=DriverName(result.driver),
        pool=result.pool,
        device=result.device,
        request=result.request,
        share_id=result.share_id,
        admin_access=bool(result.admin_access),
        skip_prepare="*" in skips or ("NodePrepareResources" in skips and skip_unprepare),
        skip_unprepare=skip_unprepare,
    )


def _parameters(allocation: _AllocationShape | None) -> bytes:
    """Return the opaque parameters, an entry each and null where there are none, as JSON."""
    entries = (allocation.devices.config if allocation else None) or ()
    found = [entry.opaque.parameters if entry.opaque else None for entry in entries]
    return msgspec.json.encode(found) if any(p is not None for p in found) else b""


def _without_parameters(entry: dict[str, Any]) -> dict[str, Any]:
    if not entry.get("opaque"):
        return entry
    opaque = dict(entry["opaque"])
    parameters = msgspec.json.encode(opaque.pop("parameters", None), order="sorted")
    return entry | {"opaque": opaque | {"parametersDigest": sha256(parameters).hexdigest()}}


def _convert(document: Mapping[str, Any], kind: type[Any], name: str) -> Any:
    try:
        found = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        metadata = document.get("metadata")
        label = metadata.get("name", "?") if isinstance(metadata, dict) else "?"
        raise UsageError(f"{name} {str(label)[:80]}: {error}") from None
    if not found.metadata.name:
        raise UsageError(f"a {name} without metadata.name")
    return found
