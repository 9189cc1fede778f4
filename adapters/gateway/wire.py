"""
Kubernetes protobuf, as far as ResourceSlices need it.

The schema is partial on purpose: it names the few fields that are read or stamped here, and
protobuf keeps all others as they came, so that devices and their attributes pass untouched.  It
lives in a pool of its own, beside whatever else the process has loaded.  The envelope is `k8s`, a
zero byte and a `runtime.Unknown`; a watch sends a 4-byte length and a bare `WatchEvent` whose
object has the envelope.
"""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

__all__ = ["WireError", "message", "open_envelope", "parse", "seal", "watch_frame"]

_MAGIC = b"k8s\x00"
_PACKAGE = "claimlet.gateway"

#: message → field → (number, type); `*` repeats, a capital letter refers to another message.
_SCHEMA: dict[str, dict[str, tuple[int, str]]] = {
    "TypeMeta": {"apiVersion": (1, "string"), "kind": (2, "string")},
    "Unknown": {"typeMeta": (1, "TypeMeta"), "raw": (2, "bytes")},
    "RawExtension": {"raw": (1, "bytes")},
    "WatchEvent": {"type": (1, "string"), "object": (2, "RawExtension")},
    "Time": {"seconds": (1, "int64"), "nanos": (2, "int32")},
    "Annotation": {"key": (1, "string"), "value": (2, "string")},
    "ObjectMeta": {
        "name": (1, "string"),
        "generateName": (2, "string"),
        "uid": (5, "string"),
        "resourceVersion": (6, "string"),
        "creationTimestamp": (8, "Time"),
        "annotations": (12, "*Annotation"),
    },
    "ResourcePool": {"name": (1, "string")},
    "ResourceSliceSpec": {
        "driver": (1, "string"),
        "pool": (2, "ResourcePool"),
        "nodeName": (3, "string"),
    },
    "ResourceSlice": {"metadata": (1, "ObjectMeta"), "spec": (2, "ResourceSliceSpec")},
    "ListMeta": {"resourceVersion": (2, "string")},
    "ResourceSliceList": {"metadata": (1, "ListMeta"), "items": (2, "*bytes")},
    "Preconditions": {"uid": (1, "string"), "resourceVersion": (2, "string")},
    "DeleteOptions": {"preconditions": (2, "Preconditions")},
}

_TYPES: dict[str, FieldDescriptorProto.Type.ValueType] = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
}


class WireError(Exception):
    """Bytes that are no Kubernetes protobuf of the kind asked for."""


def _build() -> dict[str, Any]:
    file = FileDescriptorProto(name="claimlet_gateway.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _SCHEMA.items():
        kind = file.message_type.add(name=name)
        for field_name, (number, type_name) in fields.items():
            field = kind.field.add(name=field_name, number=number)
            repeated, base = type_name.startswith("*"), type_name.lstrip("*")
            field.label = (
                FieldDescriptorProto.LABEL_REPEATED
                if repeated
                else FieldDescriptorProto.LABEL_OPTIONAL
            )
            if base in _TYPES:
                field.type = _TYPES[base]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{base}"
    pool = DescriptorPool()
    pool.Add(file)
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _SCHEMA
    }


_MESSAGES = _build()


def message(kind: str) -> Any:
    """Return a new, empty message of *kind*."""
    return _MESSAGES[kind]()


def parse(kind: str, data: bytes) -> Any:
    """
    Return the message of *kind* in *data*.

    Raises:
        WireError: It is none.
    """
    try:
        return _MESSAGES[kind].FromString(data)
    except DecodeError as error:
        raise WireError(f"this is no {kind} in protobuf") from error


def seal(kind: str, raw: bytes, *, api_version: str) -> bytes:
    """Return *raw* in the envelope of an object of *kind*."""
    unknown = message("Unknown")
    unknown.typeMeta.apiVersion = api_version
    unknown.typeMeta.kind = kind
    unknown.raw = raw
    return _MAGIC + bytes(unknown.SerializeToString())


def open_envelope(data: bytes) -> tuple[str, bytes]:
    """
    Return the kind and the raw bytes of the object in *data*.

    Raises:
        WireError: It has no envelope.
    """
    if not data.startswith(_MAGIC):
        raise WireError("this has no envelope of Kubernetes protobuf")
    unknown = parse("Unknown", data[len(_MAGIC) :])
    return str(unknown.typeMeta.kind), bytes(unknown.raw)


def watch_frame(kind: str, sealed: bytes) -> bytes:
    """Return the frame of a watch event of *kind* (`ADDED`, …) about a sealed object."""
    event = message("WatchEvent")
    event.type = kind
    event.object.raw = sealed
    data = bytes(event.SerializeToString())
    return struct.pack(">I", len(data)) + data
