"""
The handshake with one registration socket: who is there, is it acceptable, and telling it so.

A driver is asked and judged as the kubelet does it.  A plugin of
another type hears nothing at all, because other registrars end on a refusal (rule 10).
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ...engine.ports import DriverCallError
from ...engine.texts import cut
from ...events.errors import TemporaryError
from .channel import DriverChannel
from .sockets import SocketPathError, check_socket_path, rewrite
from .wire import (
    APIS,
    GET_INFO,
    NOTIFY,
    DraApi,
    PluginInfo,
    RegistrationStatus,
    WireError,
    decode_info,
    encode_status,
)

__all__ = [
    "DRA_PLUGIN",
    "NotRegisteredError",
    "Offer",
    "OtherTypeError",
    "ask",
    "examine",
    "notify",
]

DRA_PLUGIN = "DRAPlugin"

DIAL_SECONDS = 10.0
GET_INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0

VERSIONS_MAX = 64
_NAME_CHARACTERS_MAX = 253
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DRIVER_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)


class NotRegisteredError(TemporaryError):
    """The driver is not registered now; the same socket is asked again."""


class OtherTypeError(TemporaryError):
    """The socket belongs to a plugin that is none of our business."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What an acceptable driver offers: its name, where it serves, and the version to speak."""

    driver: str
    endpoint: str
    api: DraApi
    supported_versions: tuple[str, ...]


async def ask(channel: DriverChannel) -> PluginInfo:
    """
    Return what the peer of *channel* says about itself.

    Raises:
        NotRegisteredError: It does not answer, or not with what it should.
        OtherTypeError: It is no DRA driver.
    """
    if not await channel.try_to_connect(within_seconds=DIAL_SECONDS):
        raise NotRegisteredError("nobody answers on the registration socket")
    try:
        info = decode_info(await channel.call(GET_INFO, b"", timeout_seconds=GET_INFO_SECONDS))
    except (DriverCallError, WireError) as error:
        raise NotRegisteredError(f"GetInfo failed: {error}") from None
    if info.type != DRA_PLUGIN:
        raise OtherTypeError(f"a plugin of type {_shown(info.type)}, not {DRA_PLUGIN}")
    return info


def examine(info: PluginInfo, *, socket: str, endpoint_map: Mapping[str, str]) -> Offer:
    """
    Return what the driver behind *socket* offers.

    Raises:
        NotRegisteredError: It cannot be accepted, and why.
    """
    if len(info.name) > _NAME_CHARACTERS_MAX or not _DRIVER_NAME.fullmatch(info.name):
        raise NotRegisteredError(f"the driver name {_shown(info.name)} is no DNS subdomain")
    return Offer(
        driver=info.name,
        endpoint=_endpoint(info.endpoint, socket=socket, endpoint_map=endpoint_map),
        api=_choose(info.supported_versions),
        supported_versions=info.supported_versions,
    )


async def notify(channel: DriverChannel, status: RegistrationStatus) -> None:
    """
    Tell the driver what became of its registration.

    Raises:
        NotRegisteredError: It did not take the answer.
    """
    try:
        await channel.call(NOTIFY, encode_status(status), timeout_seconds=NOTIFY_SECONDS)
    except DriverCallError as error:
        raise NotRegisteredError(f"NotifyRegistrationStatus failed: {error}") from None


def _endpoint(endpoint: str, *, socket: str, endpoint_map: Mapping[str, str]) -> str:
    if not endpoint:
        return socket
    path = rewrite(endpoint, endpoint_map)
    try:
        check_socket_path(path)
        is_other = not stat.S_ISSOCK(Path(path).stat().st_mode)
    except SocketPathError as error:
        raise NotRegisteredError(f"the endpoint cannot be used: {error}") from None
    except OSError:
        return path  # it may open later
    if is_other:
        raise NotRegisteredError(f"the endpoint {_shown(path)} is no socket")
    return path


def _choose(versions: tuple[str, ...]) -> DraApi:
    if not versions:
        raise NotRegisteredError("the driver announces no services in supported_versions")
    if len(versions) > VERSIONS_MAX or any(len(v) > _NAME_CHARACTERS_MAX for v in versions):
        raise NotRegisteredError("the driver announces more services than anybody has")
    for version in versions:
        if version in APIS:
            return APIS[version]
    offered = cut(", ".join(_shown(version) for version in versions))
    raise NotRegisteredError(
        f"none of the driver's services is known here: it announces {offered}; "
        f"known are {', '.join(APIS)}"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "…")
