"""
kubelet's checkpoint of its DRA manager, the file `dra_manager_state`: read and written.

It is JSON in JSON with a CRC-32, in kubelet's own order and spelling of names; lists and share ids
may be null.  A checksum that does not fit is never overlooked: kubelet would not start on it
either.  The files of 1.31 and older have another form and are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import msgspec

from ...engine.errors import UsageError
from ...engine.restore import ForeignClaim
from ...engine.views import ClaimView
from ...events.values import ClaimRef, ClaimUid, PodUid, PreparedDevice

__all__ = ["CHECKPOINT_BYTES_MAX", "read_checkpoint", "write_checkpoint"]

#: kubelet's own file takes some 400 bytes for a claim.
CHECKPOINT_BYTES_MAX = 32 * 1024**2

_KIND = "DRACheckpoint"
_API_VERSION = "checkpoint.dra.kubelet.k8s.io/v1"

#: Phases in which kubelet has no entry for the claim either.
_NOT_HELD = frozenset({"absent", "generated", "unprepared", "closed"})


class _Upstream(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """Base of kubelet's values: Go writes the names of its fields."""


class _Device(_Upstream, frozen=True):
    pool_name: str = ""
    device_name: str = ""
    #: kubelet writes null since 1.35 and nothing before; it reads both.
    share_id: str | msgspec.UnsetType | None = msgspec.field(default=msgspec.UNSET, name="ShareID")
    request_names: list[str] | None = None
    cdi_device_ids: list[str] | None = msgspec.field(default=None, name="CDIDeviceIDs")


class _DriverState(_Upstream, frozen=True):
    devices: list[_Device] | None = None


class _Claim(_Upstream, frozen=True):
    claim_uid: str = msgspec.field(name="ClaimUID")
    claim_name: str
    namespace: str
    pod_uids: dict[str, Any] | None = msgspec.field(default=None, name="PodUIDs")
    driver_state: dict[str, _DriverState] | None = None


class _Inner(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    api_version: str = msgspec.field(name="apiVersion")
    claims: list[_Claim] | None = msgspec.field(name="ClaimInfoStateList")


class _Outer(_Upstream, frozen=True):
    data: str
    checksum: int


def read_checkpoint(content: bytes) -> list[ForeignClaim]:
    """
    Return the claims that a kubelet's checkpoint holds.

    Raises:
        UsageError: It is none of a version that is known, or its checksum does not fit.
    """
    if len(content) > CHECKPOINT_BYTES_MAX:
        raise UsageError(f"the checkpoint has more than {CHECKPOINT_BYTES_MAX} bytes")
    outer = _decoded(content, _Outer, hint="kubelet 1.31 and older wrote another form")
    found = crc32(outer.data.encode())
    if found != outer.checksum:
        raise UsageError(
            f"the checkpoint is damaged: its checksum is {found}, not the {outer.checksum}"
            " that it names",
            hint="kubelet would not start on it either; take it from a backup, or start without",
        )
    inner = _decoded(outer.data.encode(), _Inner, hint="is it kubelet's dra_manager_state?")
    if (inner.kind, inner.api_version) != (_KIND, _API_VERSION):
        raise UsageError(
            f"this is a {inner.api_version[:80]} {inner.kind[:80]}, not a {_API_VERSION} {_KIND}"
        )
    return [_foreign(claim) for claim in inner.claims or ()]


def write_checkpoint(claims: Iterable[ClaimView]) -> bytes:
    """Return the checkpoint of those of *claims* that a kubelet would hold."""
    held = sorted(
        (claim for claim in claims if claim.phase not in _NOT_HELD),
        key=lambda claim: (claim.namespace, claim.name, claim.uid),
    )
    inner = _Inner(kind=_KIND, api_version=_API_VERSION, claims=[_upstream(c) for c in held])
    data = msgspec.json.encode(inner)
    return msgspec.json.encode(_Outer(data=data.decode(), checksum=crc32(data)))


def _decoded(content: bytes, kind: type[Any], *, hint: str) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"the checkpoint cannot be read: {error}", hint=hint) from None


def _foreign(claim: _Claim) -> ForeignClaim:
    return ForeignClaim(
        ref=ClaimRef(
            uid=ClaimUid(claim.claim_uid), namespace=claim.namespace, name=claim.claim_name
        ),
        pods=tuple(PodUid(uid) for uid in sorted(claim.pod_uids or ())),
        drivers={
            driver: _devices(state) for driver, state in sorted((claim.driver_state or {}).items())
        },
    )


def _devices(state: _DriverState) -> tuple[PreparedDevice, ...]:
    devices = (
        PreparedDevice(
            pool=device.pool_name,
            device=device.device_name,
            requests=tuple(device.request_names or ()),
            cdi_device_ids=tuple(device.cdi_device_ids or ()),
            share_id=device.share_id or None,
        )
        for device in state.devices or ()
    )
    # Some kubelets appended a driver's answers instead of replacing them.
    return tuple({msgspec.json.encode(device): device for device in devices}.values())


def _upstream(claim: ClaimView) -> _Claim:
    devices = {
        driver.name: [
            _Device(
                pool_name=device.pool,
                device_name=device.device,
                share_id=device.share_id or msgspec.UNSET,
                request_names=device.requests or None,
                cdi_device_ids=device.cdi_device_ids or None,
            )
            for device in driver.devices
        ]
        for driver in claim.drivers
    }
    names = sorted({*devices, *claim.debts})
    return _Claim(
        claim_uid=claim.uid,
        claim_name=claim.name,
        namespace=claim.namespace,
        pod_uids={uid: {} for uid in sorted({pod.uid for pod in claim.pods})},
        driver_state={name: _DriverState(devices=devices.get(name) or None) for name in names},
    )
