"""
The bytes of the driver protocol: the only module that knows protobuf.

Messages live in a descriptor pool of our own, so that a third party's generated modules with the
same symbols can be loaded in this process, and no generated code has to match a protobuf version.
Calls carry bytes; encoding and decoding is done here, by hand-written method tables, so that an
answer that cannot be decoded is an error with a name and not a lost result.
It bounds what it turns into values (events/README.md); what an answer *means* is for `answers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ...engine.answers import ANSWER_BYTES_MAX, DEVICES_MAX
from ...events.values import ClaimRef, ClaimUid, PreparedDevice

__all__ = [
    "APIS",
    "GET_INFO",
    "NOTIFY",
    "V1",
    "V1BETA1",
    "ClaimAnswer",
    "DraApi",
    "PluginInfo",
    "RegistrationStatus",
    "WireError",
    "decode_claims",
    "decode_info",
    "decode_prepare",
    "decode_status",
    "decode_unprepare",
    "encode_claims",
    "encode_info",
    "encode_prepare",
    "encode_status",
    "encode_unprepare",
]

#: Entries of an answer that nobody asked for are looked at up to here, the rest is dropped; no UID
#: is longer than this.
UNASKED_MAX = 16
_UID_CHARACTERS_MAX = 253

_INFO_BYTES_MAX = 64 * 1024

GET_INFO = "/pluginregistration.Registration/GetInfo"
NOTIFY = "/pluginregistration.Registration/NotifyRegistrationStatus"


class WireError(Exception):
    """Bytes of a peer that are not the message they should be."""


class DraApi(msgspec.Struct, frozen=True):
    """One version of the driver API: its names on the wire and in `supported_versions`."""

    #: The short name, as people and facts see it.
    name: str
    #: The name that drivers announce; it is not the gRPC name.
    announced: str
    package: str
    has_share_id: bool

    @property
    def service(self) -> str:
        """Return the gRPC name of the service."""
        return f"{self.package}.DRAPlugin"

    @property
    def prepare(self) -> str:
        """Return the path of the prepare call."""
        return f"/{self.service}/NodePrepareResources"

    @property
    def unprepare(self) -> str:
        """Return the path of the unprepare call."""
        return f"/{self.service}/NodeUnprepareResources"


V1 = DraApi("v1", "v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1", has_share_id=True)
V1BETA1 = DraApi(
    "v1beta1", "v1beta1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1", has_share_id=False
)

#: What this node manager can speak, by the name that drivers announce.
APIS: Mapping[str, DraApi] = {api.announced: api for api in (V1, V1BETA1)}


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver says about itself."""

    type: str
    name: str
    endpoint: str = ""
    supported_versions: tuple[str, ...] = ()


class RegistrationStatus(msgspec.Struct, frozen=True):
    """What the node manager made of it."""

    registered: bool
    error: str = ""


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's answer for one claim: devices, or its error, or why it is too large to be read."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""
    too_large: str = ""


def _load() -> Mapping[str, Any]:
    data = resources.files(f"{__package__}.proto").joinpath("descriptors.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    for file in files:
        pool.Add(file)
    names = [f"{file.package}.{message.name}" for file in files for message in file.message_type]
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(n)) for n in names}


_MESSAGES = _load()


def _decode(name: str, data: bytes) -> Any:
    try:
        return _MESSAGES[name].FromString(data)
    except DecodeError:
        raise WireError(f"{len(data)} bytes that are no {name.rpartition('.')[2]}") from None


# --- registration -------------------------------------------------------------------------------


def encode_info(info: PluginInfo) -> bytes:
    """Return the answer to GetInfo."""
    return bytes(_MESSAGES["pluginregistration.PluginInfo"](**_fields(info)).SerializeToString())


def decode_info(data: bytes) -> PluginInfo:
    """
    Return what a driver says about itself.

    Raises:
        WireError: The bytes are no PluginInfo.
    """
    if len(data) > _INFO_BYTES_MAX:
        raise WireError(f"{len(data)} bytes about a plugin, at most {_INFO_BYTES_MAX}")
    message = _decode("pluginregistration.PluginInfo", data)
    return PluginInfo(
        type=message.type,
        name=message.name,
        endpoint=message.endpoint,
        supported_versions=tuple(message.supported_versions),
    )


def encode_status(status: RegistrationStatus) -> bytes:
    """Return the request of NotifyRegistrationStatus."""
    kind = _MESSAGES["pluginregistration.RegistrationStatus"]
    message = kind(plugin_registered=status.registered, error=status.error)
    return bytes(message.SerializeToString())


def decode_status(data: bytes) -> RegistrationStatus:
    """
    Return what a node manager made of a registration.

    Raises:
        WireError: The bytes are no RegistrationStatus.
    """
    message = _decode("pluginregistration.RegistrationStatus", data)
    return RegistrationStatus(message.plugin_registered, message.error)


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


# --- claims -------------------------------------------------------------------------------------


def encode_claims(api: DraApi, claims: Iterable[ClaimRef]) -> bytes:
    """Return the request for *claims*; both calls have the same."""
    request = _MESSAGES[f"{api.package}.NodePrepareResourcesRequest"]()
    for claim in claims:
        request.claims.add(namespace=claim.namespace, uid=claim.uid, name=claim.name)
    return bytes(request.SerializeToString())


def decode_claims(api: DraApi, data: bytes) -> tuple[ClaimRef, ...]:
    """
    Return the claims of a request.

    Raises:
        WireError: The bytes are no such request.
    """
    request = _decode(f"{api.package}.NodePrepareResourcesRequest", data)
    return tuple(
        ClaimRef(uid=ClaimUid(claim.uid), namespace=claim.namespace, name=claim.name)
        for claim in request.claims
    )


def encode_prepare(api: DraApi, answers: Mapping[str, ClaimAnswer]) -> bytes:
    """Return the answer to a prepare call."""
    response = _MESSAGES[f"{api.package}.NodePrepareResourcesResponse"]()
    for claim_uid, answer in answers.items():
        entry = response.claims[claim_uid]
        entry.error = answer.error
        for device in answer.devices:
            message = entry.devices.add(
                request_names=device.requests,
                pool_name=device.pool,
                device_name=device.device,
                cdi_device_ids=device.cdi_device_ids,
            )
            if api.has_share_id and device.share_id is not None:
                message.share_id = device.share_id
    return bytes(response.SerializeToString())


def decode_prepare(
    api: DraApi, data: bytes, asked: Iterable[ClaimUid]
) -> dict[ClaimUid, ClaimAnswer]:
    """
    Return the answers for the *asked* claims, and some of what else came, under its UID.

    Raises:
        WireError: The bytes are no such answer.
    """
    response = _decode(f"{api.package}.NodePrepareResourcesResponse", data)
    uids = _uids(response.claims, asked)
    return {_bounded(uid): _claim_answer(api, response.claims[uid]) for uid in uids}


def encode_unprepare(api: DraApi, errors: Mapping[str, str]) -> bytes:
    """Return the answer to an unprepare call; an empty error means done."""
    response = _MESSAGES[f"{api.package}.NodeUnprepareResourcesResponse"]()
    for claim_uid, error in errors.items():
        response.claims[claim_uid].error = error
    return bytes(response.SerializeToString())


def decode_unprepare(api: DraApi, data: bytes, asked: Iterable[ClaimUid]) -> dict[ClaimUid, str]:
    """
    Return the error of each *asked* claim, empty where it is done, and some of what else came.

    Raises:
        WireError: The bytes are no such answer.
    """
    response = _decode(f"{api.package}.NodeUnprepareResourcesResponse", data)
    uids = _uids(response.claims, asked)
    return {_bounded(uid): response.claims[uid].error for uid in uids}


def _uids(claims: Any, asked: Iterable[ClaimUid]) -> list[ClaimUid]:
    # A map of a million entries is legal on the wire: only so many that nobody asked for are read.
    found = [uid for uid in asked if uid in claims]
    room = len(found) + UNASKED_MAX
    known = set(found)
    for uid in claims:
        if len(found) >= room:
            break
        if uid not in known:
            found.append(ClaimUid(uid))
    return found


def _bounded(claim_uid: ClaimUid) -> ClaimUid:
    return ClaimUid(claim_uid[:_UID_CHARACTERS_MAX])


def _claim_answer(api: DraApi, entry: Any) -> ClaimAnswer:
    if entry.error:
        return ClaimAnswer(error=entry.error)
    # Looked at here as well, before anything is made of it: megabytes are not worth the time.
    if len(entry.devices) > DEVICES_MAX:
        return ClaimAnswer(too_large=f"{len(entry.devices)} devices, more than {DEVICES_MAX}")
    if entry.ByteSize() > ANSWER_BYTES_MAX:
        return ClaimAnswer(too_large=f"{entry.ByteSize()} bytes, more than {ANSWER_BYTES_MAX}")
    return ClaimAnswer(devices=tuple(_device(api, device) for device in entry.devices))


def _device(api: DraApi, device: Any) -> PreparedDevice:
    has_share_id = api.has_share_id and device.HasField("share_id")
    return PreparedDevice(
        pool=device.pool_name,
        device=device.device_name,
        requests=tuple(device.request_names),
        cdi_device_ids=tuple(device.cdi_device_ids),
        share_id=device.share_id if has_share_id else None,
    )
