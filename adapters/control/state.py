"""
All that a node holds, as one reply: from the running loop, or from a replay where none runs.

A replay gives the same claims and pods (rule R12); it knows neither when the next call is due nor
which drivers are connected now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from ...engine.lifecycle import Phase
from ...engine.node import Node
from ...engine.streaks import streaks
from ...engine.views import Live, claim_views, pod_state, pod_view
from ...events.values import DriverName, PodUid
from ...events.world import World
from .protocol import BootView, DriverRow, PodRow, StateReply, WaiverRow

if TYPE_CHECKING:
    from ...engine.loop import NodeLoop

__all__ = [
    "boot_view",
    "driver_rows",
    "live",
    "of_loop",
    "of_node",
    "pod_rows",
    "pod_state",
    "waiver_rows",
]


def live(loop: NodeLoop, world: World) -> Live:
    """Return what only the running loop knows about a call."""

    def find(operation: str, driver: DriverName) -> tuple[int, float | None] | None:
        call = loop.call_state(operation, driver)
        if call is None:
            return None
        return call.attempts, None if call.is_running else call.due - world.monotonic()

    return find


def of_loop(loop: NodeLoop, world: World) -> StateReply:
    """Return the state of the running service."""
    return of_node(loop.node, now_ns=world.wall_time_ns(), live=live(loop, world))


def of_node(node: Node, *, now_ns: int = 0, live: Live | None = None) -> StateReply:
    """Return the state of a fold."""
    return StateReply(
        node=node.name,
        sequence=node.sequence,
        digest=node.digest(),
        boot=boot_view(node),
        synced=sorted(node.synced),
        claims=claim_views(node, now_ns=now_ns, live=live),
        pods=pod_rows(node),
        drivers=driver_rows(node, is_live=live is not None),
        waivers=waiver_rows(node),
        is_live=live is not None,
    )


def boot_view(node: Node) -> BootView:
    """Return the boot that the node is in."""
    return BootView(
        boot=node.boot,
        since=node.boot_time,
        writer=node.writer,
        reprepare_on=node.policy.reprepare_on,
    )


def pod_rows(node: Node, uids: Collection[PodUid] | None = None) -> list[PodRow]:
    """Return the pods of *uids*, by default all: those that are wanted and those refused."""
    rows = []
    for uid, pod in node.pods.items():
        if uids is not None and uid not in uids:
            continue
        view = pod_view(node, pod)
        rows.append(
            PodRow(
                namespace=view.namespace,
                name=view.name,
                uid=view.uid,
                state=view.state,
                reasons=view.reasons,
                source=view.source,
                requested=view.requested,
                claims=view.claims,
            )
        )
    rows += [
        PodRow(
            namespace=r.pod.namespace,
            name=r.pod.name,
            uid=r.pod.uid,
            state="refused",
            reasons=list(r.reasons),
            source=r.source,
            requested=r.time,
            claims=[],
        )
        for uid, r in node.refusals.items()
        if uid not in node.pods and (uids is None or uid in uids)
    ]
    return sorted(rows, key=lambda row: (row.namespace, row.name, row.uid))


def waiver_rows(node: Node) -> list[WaiverRow]:
    """Return the debts that were waived, oldest first."""
    return [
        WaiverRow(
            namespace=w.claim.namespace,
            name=w.claim.name,
            claim_uid=w.claim.uid,
            driver=w.driver,
            who=w.who,
            why=w.why,
            last_error=w.last_error,
            time=w.time,
        )
        for w in sorted(node.waivers.values(), key=lambda w: w.sequence)
    ]


def driver_rows(node: Node, *, is_live: bool = False) -> list[DriverRow]:
    """Return the instances that are registered, and the drivers that are owed to and are not."""
    failing = streaks(node)
    waived = Counter(waiver.driver for waiver in node.waivers.values())
    return [
        DriverRow(
            driver=driver,
            instance=found.instance if found else "",
            endpoint=found.endpoint if found else "",
            api=found.api if found else "",
            since=found.time if found else "",
            state="gone" if found is None else "connected" if is_live else "registered",
            failing_claims=failing[driver].claims if driver in failing else 0,
            last_error=failing[driver].text if driver in failing else "",
            waived_debts=waived[driver],
        )
        for driver in sorted({*node.drivers, *_named(node)})
        for found in node.drivers.get(driver, (None,))
    ]


def _named(node: Node) -> set[DriverName]:
    """Return the drivers that claims which are not over, or waived debts, name."""
    ended = (Phase.GENERATED, Phase.UNPREPARED)
    held = {d for c in node.claims.values() if c.phase not in ended for d in c.prepare_drivers}
    return held | {waiver.driver for waiver in node.waivers.values()}
