"""
Bring suspect claims back: what can be known of each, as the `restored` that ends its suspicion.

The fold takes nothing from a fact that cannot follow.  Here every fact of a claim counts, whatever
its phase: who joined and did not leave, whose pod is not closed, which drivers were called.  What
is restored owes an unprepare to every driver that may hold something; asking one that holds nothing
is harmless.  Facts that are lost are not guessed: a claim that is in none of the others stays
unknown, and a consumer whose leaving is lost stays until its source says so again.
"""

from __future__ import annotations

import msgspec

from ..events import facts as f
from ..events.record import Draft, Record
from ..events.values import (
    Allocation,
    ClaimUid,
    DriverName,
    PodRef,
    PodUid,
    PreparedDevice,
)
from .node import Node
from .restore import allocation_of_answers
from .state import ClaimState

__all__ = ["Salvage"]

_ENDED = frozenset({"deleted", "retired"})


class _Trace(msgspec.Struct, kw_only=True):
    """What the facts of one claim leave, in the order of the log."""

    allocation: Allocation | None = None
    attributes: dict[str, dict[str, str]] = {}
    consumers: dict[PodUid, PodRef] = {}
    drivers: dict[DriverName, None] = {}
    devices: dict[str, tuple[PreparedDevice, ...]] = {}

    def take(self, fact: f.Fact | None) -> None:
        """Take the claim's next fact in."""
        match fact:
            case f.Bound():
                self.begin(fact.allocation, fact.attributes)
                self.consumers[fact.pod.uid] = fact.pod
            case f.Restored():
                self.begin(fact.allocation, fact.attributes)
                self.consumers.update({pod.uid: pod for pod in fact.consumers})
                self.drivers.update(dict.fromkeys(fact.debts))
                self.devices.update(fact.devices)
            case f.ConsumerJoined():
                self.consumers[fact.pod.uid] = fact.pod
            case f.ConsumerLeft():
                self.consumers.pop(fact.pod_uid, None)
            case f.PrepareStarted() | f.UnprepareStarted():
                self.drivers.update(dict.fromkeys(call.driver for call in fact.calls))
            case f.DriverPrepared():
                self.drivers[fact.driver] = None
                self.devices[fact.driver] = fact.devices
            case f.Unprepared() | f.Deallocated():
                self.consumers.clear()

    def begin(self, allocation: Allocation, attributes: dict[str, dict[str, str]]) -> None:
        """Begin a stay: what is left of the last one does not count."""
        self.allocation, self.attributes = allocation, attributes
        self.consumers, self.drivers, self.devices = {}, {}, {}

    def fact(self, claim: ClaimState, *, why: str) -> f.Restored:
        """Return the claim as it is known now."""
        allocation = self.allocation or allocation_of_answers(self.devices)
        owing = ClaimState(ref=claim.ref, allocation=allocation).unprepare_drivers
        return f.Restored(
            allocation=allocation,
            consumers=tuple(self.consumers.values()),
            debts=tuple(dict.fromkeys((*owing, *self.drivers))),
            devices=dict(self.devices),
            attributes=self.attributes,
            why=why,
        )


class Salvage:
    """Follows a whole replay beside the fold, and then restores what the fold holds suspect."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._traces: dict[ClaimUid, _Trace] = {}

    def fold(self, record: Record) -> None:
        """Take the next record in, and have the node fold it."""
        if record.pod is not None:
            self._take_pod(record.fact, record.pod)
        elif isinstance(record.fact, f.ClaimFact) and record.claim is not None:
            if record.word in _ENDED:
                self._traces.pop(record.claim.uid, None)
            else:
                self._traces.setdefault(record.claim.uid, _Trace()).take(record.fact)
        self._node.fold(record)

    def _take_pod(self, fact: f.Fact | None, pod: PodRef) -> None:
        if isinstance(fact, f.PrepareRequested):
            # That it has joined may be lost; that it was asked for is not.
            for claim in fact.claims:
                if claim.claim_uid is not None:
                    trace = self._traces.setdefault(claim.claim_uid, _Trace())
                    trace.consumers[pod.uid] = pod
        elif isinstance(fact, f.PodClosed):
            for trace in self._traces.values():
                trace.consumers.pop(pod.uid, None)

    def drafts(self, *, actor: str) -> list[Draft]:
        """Return the facts that make every suspect claim sound."""
        suspects = [claim for claim in self._node.claims.values() if claim.suspect]
        return [
            Draft(
                fact=self._traces.get(claim.uid, _Trace()).fact(claim, why=claim.suspect),
                claim=claim.ref,
                cause=claim.last_id,
                actor=actor,
            )
            for claim in sorted(suspects, key=lambda claim: (str(claim.ref), claim.uid))
        ]
