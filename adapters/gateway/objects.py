"""
A ResourceSlice in either encoding, protobuf or JSON.

A slice is kept in the encoding that its driver wrote, because the partial schema cannot translate.
Only names, versions and what decides about permission are read; the rest passes through.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import msgspec

from .wire import WireError, message, open_envelope, parse, seal, watch_frame

__all__ = [
    "InvalidObjectError",
    "Media",
    "Preconditions",
    "Slice",
    "Stamp",
    "bookmark",
    "read_preconditions",
    "read_slice",
    "slice_body",
    "slice_event",
    "slice_list",
    "stamped",
]

API_VERSION = "resource.k8s.io/v1"
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class InvalidObjectError(Exception):
    """A body that is not the object it should be."""


class Media(Enum):
    """The encodings of objects."""

    JSON = "application/json"
    PROTOBUF = "application/vnd.kubernetes.protobuf"


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A ResourceSlice: what is read of it, and all of it as `data` (without envelope)."""

    media: Media
    data: bytes
    name: str = ""
    generate_name: str = ""
    uid: str = ""
    resource_version: str = ""
    created_seconds: int = 0
    driver: str = ""
    node: str = ""
    pool: str = ""


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What the server sets when it stores an object."""

    name: str
    uid: str
    resource_version: int
    created_seconds: int


class Preconditions(msgspec.Struct, frozen=True):
    """What must still hold for a deletion; empty means anything."""

    uid: str = ""
    resource_version: str = ""


def read_slice(body: bytes, media: Media) -> Slice:
    """
    Return the slice in *body*.

    Raises:
        InvalidObjectError: It is none.
    """
    try:
        return _read_protobuf(body) if media is Media.PROTOBUF else _read_json(body)
    except (WireError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidObjectError(f"the body is no ResourceSlice: {error}") from error


def _read_protobuf(body: bytes) -> Slice:
    kind, raw = open_envelope(body)
    if kind != "ResourceSlice":
        raise WireError("the object is of another kind")
    item = parse("ResourceSlice", raw)
    return Slice(
        media=Media.PROTOBUF,
        data=raw,
        name=item.metadata.name,
        generate_name=item.metadata.generateName,
        uid=item.metadata.uid,
        resource_version=item.metadata.resourceVersion,
        driver=item.spec.driver,
        node=item.spec.nodeName,
        pool=item.spec.pool.name,
    )


class _Metadata(msgspec.Struct, rename="camel"):
    name: str | None = None
    generate_name: str | None = None
    uid: str | None = None
    resource_version: str | None = None


class _Pool(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    driver: str = ""
    node_name: str | None = None
    pool: _Pool = msgspec.field(default_factory=_Pool)


class _JsonSlice(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    kind: str | None = None


_json_slices = msgspec.json.Decoder(_JsonSlice)


def _read_json(body: bytes) -> Slice:
    item = _json_slices.decode(body)
    if item.kind not in {None, "ResourceSlice"}:
        raise WireError("the object is of another kind")
    return Slice(
        media=Media.JSON,
        data=body,
        name=item.metadata.name or "",
        generate_name=item.metadata.generate_name or "",
        uid=item.metadata.uid or "",
        resource_version=item.metadata.resource_version or "",
        driver=item.spec.driver,
        node=item.spec.node_name or "",
        pool=item.spec.pool.name,
    )


def stamped(item: Slice, stamp: Stamp) -> Slice:
    """Return *item* as it is stored under *stamp*."""
    data = (
        _stamp_protobuf(item, stamp) if item.media is Media.PROTOBUF else _stamp_json(item, stamp)
    )
    return msgspec.structs.replace(
        item,
        data=data,
        name=stamp.name,
        uid=stamp.uid,
        resource_version=str(stamp.resource_version),
        created_seconds=stamp.created_seconds,
    )


def _stamp_protobuf(item: Slice, stamp: Stamp) -> bytes:
    stored = parse("ResourceSlice", item.data)
    stored.metadata.name = stamp.name
    stored.metadata.uid = stamp.uid
    stored.metadata.resourceVersion = str(stamp.resource_version)
    stored.metadata.creationTimestamp.seconds = stamp.created_seconds
    return bytes(stored.SerializeToString())


def _stamp_json(item: Slice, stamp: Stamp) -> bytes:
    stored: dict[str, Any] = msgspec.json.decode(item.data)
    created = datetime.fromtimestamp(stamp.created_seconds, UTC)
    stored |= {"apiVersion": API_VERSION, "kind": "ResourceSlice"}
    stored["metadata"] = {
        **stored["metadata"],
        "name": stamp.name,
        "uid": stamp.uid,
        "resourceVersion": str(stamp.resource_version),
        "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return msgspec.json.encode(stored)


def slice_body(item: Slice) -> bytes:
    """Return *item* as the body of an answer."""
    if item.media is Media.PROTOBUF:
        return seal("ResourceSlice", item.data, api_version=API_VERSION)
    return item.data


def slice_list(items: Iterable[Slice], media: Media, *, resource_version: int) -> bytes:
    """Return the list of *items*, all of encoding *media*."""
    if media is Media.PROTOBUF:
        listed = message("ResourceSliceList")
        listed.metadata.resourceVersion = str(resource_version)
        listed.items.extend(item.data for item in items)
        raw = bytes(listed.SerializeToString())
        return seal("ResourceSliceList", raw, api_version=API_VERSION)
    return msgspec.json.encode(
        {
            "apiVersion": API_VERSION,
            "kind": "ResourceSliceList",
            "metadata": {"resourceVersion": str(resource_version)},
            "items": [msgspec.Raw(item.data) for item in items],
        }
    )


def slice_event(kind: str, item: Slice) -> bytes:
    """Return the frame of a watch event of *kind* about *item*."""
    if item.media is Media.PROTOBUF:
        return watch_frame(kind, slice_body(item))
    return msgspec.json.encode({"type": kind, "object": msgspec.Raw(item.data)}) + b"\n"


def bookmark(media: Media, *, resource_version: int) -> bytes:
    """Return the frame that ends the initial events of a watch."""
    version = str(resource_version)
    if media is Media.PROTOBUF:
        item = message("ResourceSlice")
        item.metadata.resourceVersion = version
        item.metadata.annotations.add(key=_INITIAL_EVENTS_END, value="true")
        raw = bytes(item.SerializeToString())
        return watch_frame("BOOKMARK", seal("ResourceSlice", raw, api_version=API_VERSION))
    metadata = {"resourceVersion": version, "annotations": {_INITIAL_EVENTS_END: "true"}}
    body = {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata}
    return msgspec.json.encode({"type": "BOOKMARK", "object": body}) + b"\n"


class _JsonPreconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _JsonDeleteOptions(msgspec.Struct):
    preconditions: _JsonPreconditions | None = None


def read_preconditions(body: bytes, media: Media) -> Preconditions:
    """
    Return the preconditions of the delete options in *body*, which may be empty.

    Raises:
        InvalidObjectError: The body is something else.
    """
    if not body:
        return Preconditions()
    try:
        if media is Media.PROTOBUF:
            found = parse("DeleteOptions", open_envelope(body)[1]).preconditions
            return Preconditions(found.uid, found.resourceVersion)
        options = msgspec.json.decode(body, type=_JsonDeleteOptions)
    except (WireError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidObjectError(f"the body is no DeleteOptions: {error}") from error
    wanted = options.preconditions or _JsonPreconditions()
    return Preconditions(wanted.uid or "", wanted.resource_version or "")
