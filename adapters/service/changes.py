"""
What differs between two states of a node, field by field, as people name things.

A state is laid out as things (a claim, a pod, a driver, a waived debt, the node) with flat fields.
Whatever only a running service knows is left out, so that live and replayed states are comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...engine.node import Node
from ...engine.views import ClaimView, claim_view
from ...events.record import Record
from ..control.protocol import BootView, DriverRow, PodRow, StateReply, WaiverRow
from ..control.state import boot_view, driver_rows, of_node, pod_rows, waiver_rows

__all__ = ["Change", "Things", "changes", "things", "things_around"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One field of one thing, before and after; a thing that is not there has no fields."""

    #: claim, pod, driver, waiver, node.
    kind: str
    name: str
    uid: str
    field: str
    before: Any = None
    after: Any = None


#: (kind, name, uid) → its fields.
Things = Mapping[tuple[str, str, str], Mapping[str, Any]]


def changes(before: Things, after: Things) -> list[Change]:
    """Return what differs, thing by thing."""
    found = []
    for kind, name, uid in dict.fromkeys([*before, *after]):
        old, new = before.get((kind, name, uid), {}), after.get((kind, name, uid), {})
        found += [
            Change(
                kind=kind,
                name=name,
                uid=uid,
                field=field,
                before=old.get(field),
                after=new.get(field),
            )
            for field in dict.fromkeys([*old, *new])
            if (old.get(field) or None) != (new.get(field) or None)
        ]
    return found


def things(state: Node | StateReply) -> Things:
    """Return all that *state* holds."""
    reply = of_node(state) if isinstance(state, Node) else state
    return {
        **_node(reply.boot, reply.synced),
        **_drivers(reply.drivers),
        **_claims(reply.claims),
        **_pods(reply.pods),
        **_waivers(reply.waivers),
    }


def things_around(node: Node, record: Record) -> Things:
    """Return what *record* may change of *node*: whom it is about, and the node itself."""
    claims = (
        [node.claims[record.claim.uid]] if record.claim and record.claim.uid in node.claims else []
    )
    uids = {consumer.pod.uid for claim in claims for consumer in claim.consumers}
    uids |= {record.pod.uid} if record.pod else set()
    return {
        **_claims(claim_view(node, claim) for claim in claims),
        **_pods(pod_rows(node, uids)),
        **_node(boot_view(node), node.synced),
        **_drivers(driver_rows(node)),
        **_waivers(waiver_rows(node)),
    }


def _node(boot: BootView, synced: Iterable[str]) -> Things:
    fields = {
        "boot": boot.boot,
        "since": boot.since,
        "writer": boot.writer,
        "synced": sorted(synced),
    }
    return {("node", "", ""): fields}


def _drivers(rows: Iterable[DriverRow]) -> Things:
    return {
        ("driver", row.driver, row.instance): {
            "endpoint": row.endpoint,
            "api": row.api,
            "since": row.since,
        }
        for row in rows
        if row.instance
    }


def _claims(views: Iterable[ClaimView]) -> Things:
    return {("claim", f"{v.namespace}/{v.name}", v.uid): _claim(v) for v in views}


def _claim(view: ClaimView) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "state": view.state,
        "phase": view.phase,
        "origin": view.origin,
        "pods": [f"{pod.namespace}/{pod.name}" for pod in view.pods],
        "skipped_pods": view.skipped_pods,
        "devices": view.devices,
        "debts": view.debts,
        "lost": view.lost,
        "suspect": view.suspect,
        "overlaps": view.overlaps,
        "last_error": f"{view.last_error.driver}: {view.last_error.text}"
        if view.last_error
        else "",
    }
    for driver in view.drivers:
        fields[f"drivers.{driver.name}.state"] = driver.state
        fields[f"drivers.{driver.name}.cdi_device_ids"] = [
            cdi_id for device in driver.devices for cdi_id in device.cdi_device_ids
        ]
    return fields


def _pods(rows: Iterable[PodRow]) -> Things:
    return {
        ("pod", f"{row.namespace}/{row.name}", row.uid): {
            "state": row.state,
            "source": row.source,
            "requested": row.requested,
            "claims": row.claims,
            "reasons": row.reasons,
        }
        for row in rows
    }


def _waivers(rows: Iterable[WaiverRow]) -> Things:
    return {
        ("waiver", f"{row.namespace}/{row.name}", f"{row.claim_uid} {row.driver}"): {
            "driver": row.driver,
            "who": row.who,
            "why": row.why,
        }
        for row in rows
    }
