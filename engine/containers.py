"""
What a container gets: the devices of the claims that it names, as CDI ids (rule R13).

Two readers ask two questions.  *Which devices are attached?* (`container_devices`, for
PodResources) is answered from the log as it stands, also while a claim is not prepared.  *May it
start, and with what?* (`start_device_ids`, for a runtime) is answered only when every claim that
the container names is prepared in this boot: an answer of an earlier boot never satisfies a start,
not even before the log says that it is void.

Nothing is asked of a driver or an API here, nothing is stored: ids are derived on request.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..events.values import ClaimRef, ClaimUid, DriverName, PodUid, PreparedDevice
from .errors import NotFoundError, RefusedError
from .lifecycle import Phase
from .node import Node
from .plan import is_prepared
from .state import ClaimState, Request

__all__ = [
    "ContainerDevice",
    "ContainerStart",
    "cdi_device_ids",
    "container_devices",
    "start_device_ids",
]


#: The last answers are still there, the devices are not.
_GIVEN_BACK = (Phase.GENERATED, Phase.UNPREPARED)


class ContainerDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One prepared device of a container, by the link that brought it."""

    claim: ClaimRef
    #: The pod claim that the container names; empty for an extended resource.
    pod_claim: str
    driver: DriverName
    device: PreparedDevice


class ContainerStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a container starts with."""

    #: Each id once, in the order of claims, drivers and devices.
    cdi_device_ids: tuple[str, ...]
    #: What the container names and gets nothing for: worth a word, though some drivers need no CDI.
    empty: tuple[str, ...]


class _Use(msgspec.Struct, frozen=True, kw_only=True):
    """A container's use of a claim; without a request it uses all of it."""

    pod_claim: str
    request: str
    claim_uid: ClaimUid

    def __str__(self) -> str:
        return f"{self.pod_claim}/{self.request}" if self.request else self.pod_claim


def container_devices(node: Node, pod_uid: PodUid, container: str) -> tuple[ContainerDevice, ...]:
    """
    Return the container's devices as the log has them, prepared or not.

    A device that two requests of the container share is there twice.  The order is that of the
    container's links, then of the drivers in the allocation, then of the driver's answer.

    Raises:
        NotFoundError: There is no such pod or container, or a claim that it names is not here.
    """
    return tuple(
        found for use in _uses(node, pod_uid, container) for found in _devices_of(node, use)
    )


def cdi_device_ids(node: Node, pod_uid: PodUid, container: str) -> tuple[str, ...]:
    """
    Return the container's CDI ids as the log has them, an id that came twice twice.

    Raises:
        NotFoundError: There is no such pod or container, or a claim that it names is not here.
    """
    found = container_devices(node, pod_uid, container)
    return tuple(cdi_id for entry in found for cdi_id in entry.device.cdi_device_ids)


def start_device_ids(node: Node, pod_uid: PodUid, container: str) -> ContainerStart:
    """
    Return what a runtime needs to start the container.

    Raises:
        NotFoundError: There is no such pod or container, or a claim that it names is not here.
        RefusedError: The pod has ended, or a claim that it names is not prepared.
    """
    pod = node.pods.get(pod_uid)
    reasons = [f"the pod has ended ({pod.ended})"] if pod and pod.ended else []
    ids: dict[str, None] = {}
    empty: list[str] = []
    for use in _uses(node, pod_uid, container):
        claim = _claim(node, use)
        if not is_prepared(node, claim) or claim.consumer(pod_uid) is None:
            reasons.append(f"claim {claim.ref} is not prepared for this pod ({claim.phase.value})")
        found = [i for entry in _devices_of(node, use) for i in entry.device.cdi_device_ids]
        ids |= dict.fromkeys(found)
        if not found:
            empty.append(str(use))
    if reasons:
        raise RefusedError(reasons, hint="claimlet pod prepare --wait")
    return ContainerStart(cdi_device_ids=tuple(ids), empty=tuple(empty))


def _uses(node: Node, pod_uid: PodUid, container: str) -> Iterator[_Use]:
    """Return the claims that the container names; entries that need no claim are skipped (R7)."""
    request = _request(node, pod_uid)
    use = next((c for c in request.containers if c.name == container), None)
    mappings = [m for m in request.extended if m.container == container]
    if use is None and not mappings:
        raise NotFoundError(f"pod {node.pods[pod_uid].ref} has no container {container!r}")
    claims = {claim.name: claim.claim_uid for claim in request.claims}
    for link in use.claims if use else ():
        if uid := claims.get(link.name):
            yield _Use(pod_claim=link.name, request=link.request, claim_uid=uid)
    for mapping in mappings:
        yield _Use(pod_claim="", request=mapping.request, claim_uid=mapping.claim_uid)


def _request(node: Node, pod_uid: PodUid) -> Request:
    pod = node.pods.get(pod_uid)
    if pod is None or pod.request is None:
        raise NotFoundError(f"there is no pod with UID {pod_uid} on this node")
    return pod.request


def _claim(node: Node, use: _Use) -> ClaimState:
    claim = node.claims.get(use.claim_uid)
    if claim is None:
        raise NotFoundError(f"claim {use.claim_uid} for {use} is not on this node")
    return claim


def _devices_of(node: Node, use: _Use) -> Iterator[ContainerDevice]:
    claim = _claim(node, use)
    if claim.phase in _GIVEN_BACK:
        return
    for driver in claim.drivers:
        answer = claim.answer(driver)
        for device in answer.devices if answer else ():
            if _is_for(device, use.request):
                yield ContainerDevice(
                    claim=claim.ref, pod_claim=use.pod_claim, driver=driver, device=device
                )


def _is_for(device: PreparedDevice, request: str) -> bool:
    """Return whether the device belongs to *request*; `a` also names its subrequests `a/b`."""
    if not request or not device.requests:
        return True
    return any(request in (name, name.partition("/")[0]) for name in device.requests)
