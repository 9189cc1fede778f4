"""
A node's whole fold as plain data: written, and read back into a node that is the same.

A snapshot is a cache of the log and never more than that.  It holds values, never machines, the
place of the last record that it has folded, and the version of the fold that made it: what another
fold made is not read.  `FOLD_VERSION` is raised whenever the shape below changes, or what a fact
does to it (tests/engine/test_snapshot.py holds the shape).  Opaque driver parameters are part of
it: a snapshot is as private as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..events.errors import InvalidSnapshotError
from ..events.facts import FACTS
from ..events.log import Head
from ..events.values import ClaimUid
from .node import Node
from .slices import slices
from .state import (
    ClaimState,
    PodState,
    Policy,
    Refusal,
    RegisteredDriver,
    TakenSnapshot,
    Waiver,
)

__all__ = [
    "FOLD_VERSION",
    "NodeSnapshots",
    "Snapshot",
    "dump",
    "freeze",
    "load",
    "pieces",
    "restore",
]

#: The version of the fold and of the shape that it is stored in.
FOLD_VERSION = 1


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a snapshot before anything else is believed of it."""

    fold_version: int
    #: Which facts the fold knew, where it has met others.
    vocabulary: str
    not_folded: int
    node: str


class Snapshot(_Header, frozen=True, omit_defaults=True):
    """All that a fold knows, in the order in which it came to know it."""

    sequence: int
    #: The id and the link of the chain of the record at `sequence`.
    record_id: str
    link: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    boot: str = ""
    boot_time: str = ""
    writer: str = ""
    writer_sequence: int = 0
    last_snapshot: TakenSnapshot | None = None
    recorded_policy: dict[str, str] = {}
    synced: tuple[str, ...] = ()
    drivers: tuple[RegisteredDriver, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    pods: tuple[PodState, ...] = ()
    claims: tuple[ClaimState, ...] = ()
    configs: dict[ClaimUid, bytes] = {}
    #: index → the order of the claims under each key that has several: not seen from the claims.
    orders: dict[str, tuple[tuple[tuple[str, ...], tuple[ClaimUid, ...]], ...]] = {}


#: The indexes of a node, which are derived from its claims but for the order under one key.
_INDEXES = ("by_name", "by_pod", "by_device", "by_operation")
_VOCABULARY = sha256(
    msgspec.json.encode(sorted((word, kind.version) for word, kind in FACTS.items()))
).hexdigest()[:16]

_headers = msgspec.json.Decoder(_Header)
_snapshots = msgspec.json.Decoder(Snapshot)


def freeze(node: Node, head: Head) -> Snapshot:
    """Return what *node* holds now; its values never change, so it costs no copy of them."""
    return Snapshot(
        fold_version=FOLD_VERSION,
        vocabulary=_VOCABULARY if node.not_folded else "",
        not_folded=node.not_folded,
        node=node.name,
        sequence=head.sequence,
        record_id=head.id,
        link=head.link.hex(),
        boot=node.boot,
        boot_time=node.boot_time,
        writer=node.writer,
        writer_sequence=node.writer_sequence,
        last_snapshot=node.last_snapshot,
        recorded_policy=dict(node.recorded_policy),
        synced=tuple(sorted(node.synced)),
        drivers=tuple(i for instances in node.drivers.values() for i in instances),
        waivers=tuple(node.waivers.values()),
        refusals=tuple(node.refusals.values()),
        pods=tuple(node.pods.values()),
        claims=tuple(node.claims.values()),
        configs=dict(node.configs),
        orders={name: orders for name in _INDEXES if (orders := _orders(getattr(node, name)))},
    )


def pieces(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the bytes of *snapshot* in pieces that are encoded soon."""
    fields = zip(
        snapshot.__struct_fields__,
        (getattr(snapshot, name) for name in snapshot.__struct_fields__),
        strict=True,
    )
    return slices(fields)


def dump(node: Node, head: Head) -> bytes:
    """Return all that *node* holds; *head* is the place of the last record that it has folded."""
    return b"".join(pieces(freeze(node, head)))


def load(content: bytes, policy: Policy | None = None) -> Node:
    """
    Return the node that *content* was dumped from; *policy* is what it decides by now.

    Raises:
        InvalidSnapshotError: It is no snapshot of this fold.
    """
    return _filled(_decoded(content), policy)


def restore(node: Node, content: bytes) -> Head:
    """
    Put what *content* holds into *node*, which is empty, and return the place it goes on from.

    Raises:
        InvalidSnapshotError: It is no snapshot of this fold and this node; *node* is as it was.
    """
    snapshot = _decoded(content)
    if snapshot.node != node.name:
        raise InvalidSnapshotError(f"it is of the node {snapshot.node}")
    vars(node).update(vars(_filled(snapshot, node.policy)))
    return _place(snapshot)


class NodeSnapshots:
    """Implements `events.log.Snapshots` for one node."""

    fold_version = FOLD_VERSION

    def __init__(self, node: Node) -> None:
        self._node = node

    def dump(self, head: Head) -> bytes:
        """Return the fold as it is; *head* is the place of the last record in it."""
        return dump(self._node, head)

    def place(self, content: bytes) -> Head:
        """
        Return the place of the last record that is folded in *content*.

        Raises:
            InvalidSnapshotError: It is no snapshot of this fold.
        """
        return _place(_decoded(content))

    def restore(self, content: bytes) -> Head:
        """
        Let the empty fold be what *content* holds, and return from where it goes on.

        Raises:
            InvalidSnapshotError: It cannot; the fold is still empty.
        """
        return restore(self._node, content)


def _decoded(content: bytes) -> Snapshot:
    try:
        header = _headers.decode(content)
        if header.fold_version != FOLD_VERSION:
            made_by = f"it was made by version {header.fold_version} of the fold"
            raise InvalidSnapshotError(f"{made_by}; this is {FOLD_VERSION}")
        if header.not_folded and header.vocabulary != _VOCABULARY:
            raise InvalidSnapshotError("it leaves out facts that its claimlet did not know")
        return _snapshots.decode(content)
    except (ValueError, RecursionError) as error:  # DecodeError and UnicodeDecodeError are such
        raise InvalidSnapshotError(f"it cannot be read: {error}") from None


def _place(snapshot: Snapshot) -> Head:
    link = bytes.fromhex(snapshot.link)
    return Head(sequence=snapshot.sequence, id=snapshot.record_id, link=link)


def _filled(snapshot: Snapshot, policy: Policy | None) -> Node:
    node = Node(snapshot.node, policy)
    node.sequence = snapshot.sequence
    node.boot = snapshot.boot
    node.boot_time = snapshot.boot_time
    node.writer = snapshot.writer
    node.writer_sequence = snapshot.writer_sequence
    node.not_folded = snapshot.not_folded
    node.last_snapshot = snapshot.last_snapshot
    node.recorded_policy = MappingProxyType(snapshot.recorded_policy)
    node.synced = frozenset(snapshot.synced)
    for instance in snapshot.drivers:
        node.drivers[instance.driver] = (*node.drivers.get(instance.driver, ()), instance)
    node.waivers.update({(w.claim.uid, w.driver): w for w in snapshot.waivers})
    node.refusals.update({r.pod.uid: r for r in snapshot.refusals})
    node.pods.update({p.ref.uid: p for p in snapshot.pods})
    node.configs.update(snapshot.configs)
    for claim in snapshot.claims:
        node.put(claim)
    for name, orders in snapshot.orders.items():
        index = getattr(node, name) if name in _INDEXES else {}
        for parts, uids in orders:
            key = parts if len(parts) > 1 else "".join(parts)
            if sorted(index.get(key, ())) != sorted(uids):
                raise InvalidSnapshotError(f"its order of {name} does not fit its claims")
            index[key] = uids
    return node


def _orders(index: Mapping[Any, tuple[ClaimUid, ...]]) -> tuple[Any, ...]:
    several = (
        ((key,) if isinstance(key, str) else key, uids)
        for key, uids in index.items()
        if len(uids) > 1
    )
    # The order of the keys themselves is nobody's, and not the same after a restore.
    return tuple(sorted(several))
