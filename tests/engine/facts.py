"""Records for tests of the fold: the next fact of one claim, stamped by a fixed process."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.rig import allocation, device

from claimlet.engine.claim import evolve
from claimlet.engine.lifecycle import Phase
from claimlet.engine.state import ClaimState
from claimlet.events import facts as f
from claimlet.events.record import Draft, Record, Stamp, stamp
from claimlet.events.values import Call, ClaimRef, ClaimUid, DriverName, PodRef, PodUid

__all__ = [
    "BOUND",
    "GENERATED",
    "GPU",
    "NEEDS",
    "NIC",
    "PREPARED",
    "REF",
    "STARTED",
    "UNPREPARING",
    "at",
    "folded",
    "joined",
    "left",
    "pod_ref",
    "record",
    "yes",
]

GPU = DriverName("gpu.example.com")
NIC = DriverName("nic.example.com")
REF = ClaimRef(uid=ClaimUid("c1-uid"), namespace="ml", name="c1")


def pod_ref(name: str) -> PodRef:
    return PodRef(uid=PodUid(name), namespace="ml", name=name)


def joined(name: str) -> f.ConsumerJoined:
    return f.ConsumerJoined(pod=pod_ref(name))


def left(name: str) -> f.ConsumerLeft:
    return f.ConsumerLeft(pod_uid=PodUid(name), reason="deleted")


def yes(driver: DriverName) -> f.DriverPrepared:
    return f.DriverPrepared(driver=driver, boot="boot-1")


GENERATED = f.Generated(origin="template", pod_claim="gpu")
_BOUND = f.Bound(
    pod=pod_ref("p1"), allocation=allocation(device(f"{GPU}/gpu-0"), device(f"{NIC}/nic-0"))
)
_STARTED = f.PrepareStarted(
    operation="op-1", pod_uid=PodUid("p1"), calls=(Call(driver=GPU), Call(driver=NIC))
)
#: Histories that lead into a phase.
BOUND: tuple[f.ClaimFact, ...] = (GENERATED, _BOUND)
STARTED: tuple[f.ClaimFact, ...] = (*BOUND, _STARTED)
PREPARED: tuple[f.ClaimFact, ...] = (*STARTED, yes(GPU), yes(NIC), f.Prepared())
UNPREPARING: tuple[f.ClaimFact, ...] = (
    *PREPARED,
    left("p1"),
    f.UnprepareStarted(operation="op-2", calls=(Call(driver=GPU), Call(driver=NIC))),
)
NEEDS: tuple[f.ClaimFact, ...] = (*PREPARED, f.ReprepareNeeded(why="boot"))

_PATHS: dict[Phase, tuple[f.ClaimFact, ...]] = {
    Phase.ABSENT: (),
    Phase.GENERATED: (GENERATED,),
    Phase.BOUND: BOUND,
    Phase.BOUND_PREPARING: STARTED,
    Phase.BOUND_UNPREPARING: (*STARTED, left("p1"), f.UnprepareStarted(operation="op-2")),
    Phase.PREPARED: PREPARED,
    Phase.PREPARED_UNPREPARING: UNPREPARING,
    Phase.NEEDS: NEEDS,
    Phase.NEEDS_PREPARING: (*NEEDS, _STARTED),
    Phase.NEEDS_UNPREPARING: (*NEEDS, left("p1"), f.UnprepareStarted(operation="op-2")),
    Phase.UNPREPARED: (*BOUND, left("p1"), f.Unprepared()),
    Phase.CLOSED: (GENERATED, f.Retired()),
}


def record(fact: f.Fact, sequence: int, *, boot: str = "boot-1", writer: str = "w-1") -> Record:
    """Return *fact* about the claim as the record at *sequence*."""
    by = Stamp(node="node-a", boot=boot, writer=writer)
    draft = Draft(fact=fact, claim=REF)
    wall_time_ns = 1_800_000_000_000_000_000 + sequence * 1_000_000_000
    return stamp(draft, by, sequence=sequence, record_id=f"r{sequence}", wall_time_ns=wall_time_ns)


def folded(
    facts: Iterable[f.Fact], *, start: ClaimState | None = None, boot: str = "boot-1"
) -> ClaimState:
    """Return the claim after *facts*."""
    claim = start or ClaimState(ref=REF)
    for fact in facts:
        claim = evolve(claim, record(fact, claim.last_sequence + 1, boot=boot))
    return claim


def at(phase: Phase) -> ClaimState:
    """Return a sound claim in *phase*."""
    claim = folded(_PATHS[phase])
    assert claim.phase is phase
    assert not claim.suspect
    return claim
