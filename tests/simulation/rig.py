"""
A simulated node for tests: the real engine on a simulated world, with fake drivers and a fake log.

`Rig` plays sources and operators; `FakeDriver` is a scriptable driver with a ledger.  The log's
storage and the drivers outlive `kill` and `restart`, as they would.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from claimlet.engine.errors import RefusedError
from claimlet.engine.loop import LoopSettings, NodeLoop
from claimlet.engine.node import Node
from claimlet.engine.plan import CallPrepare, CallUnprepare, Record, plan
from claimlet.engine.pod import PreparePod
from claimlet.engine.ports import ClaimObject, DriverInstance, PodClaimObject, PodObject
from claimlet.engine.state import ClaimState, Policy
from claimlet.events import facts as f
from claimlet.events.record import Draft, Stamp
from claimlet.events.values import (
    AllocatedDevice,
    Allocation,
    ClaimRef,
    ClaimUid,
    ContainerUse,
    DriverName,
    Link,
    PodRef,
    PodUid,
)

from .driver import FakeDriver
from .intents import Intents
from .memory_log import MemoryLog, Storage
from .virtual import SimulatedWorld

__all__ = ["NAMESPACE", "Rig", "allocation", "claim", "device", "pod"]

NAMESPACE = "ml"


def device(text: str, **more: Any) -> AllocatedDevice:
    """Return an allocated device from `driver/device`, in pool `node-a`, for request `gpu`."""
    driver, _, name = text.partition("/")
    fields: dict[str, Any] = {"request": "gpu"} | more
    return AllocatedDevice(driver=DriverName(driver), pool="node-a", device=name, **fields)


def allocation(*devices: AllocatedDevice | str) -> Allocation:
    """Return an allocation of *devices*."""
    decoded = tuple(device(d) if isinstance(d, str) else d for d in devices)
    data = msgspec.json.encode(decoded)
    return Allocation(digest=sha256(data).hexdigest(), devices=decoded, verbatim=msgspec.Raw(data))


def claim(
    name: str,
    *devices: AllocatedDevice | str,
    uid: str = "",
    reserved_for: Sequence[str] = ("p1", "p2", "p3"),
    **more: Any,
) -> ClaimObject:
    """Return a claim object with *devices*, by default with a UID made of its name."""
    fields: dict[str, Any] = {"allocation": allocation(*devices)} | more
    return ClaimObject(
        ref=ClaimRef(uid=ClaimUid(uid or f"{name}-uid"), namespace=NAMESPACE, name=name),
        reserved_for=tuple(reserved_for),
        **fields,
    )


def pod(
    name: str,
    *claims: ClaimObject,
    used: Sequence[str] | None = None,
    source: str = "control",
    **more: Any,
) -> PreparePod:
    """Return the wish for pod *name* (its UID too); all its claims are used unless *used* says."""
    names = [c.ref.name for c in claims]
    uses = tuple(Link(name=n) for n in (names if used is None else used))
    fields: dict[str, Any] = {
        "claims": tuple(PodClaimObject(name=n, claim_name=n) for n in names),
        "containers": (ContainerUse(name="main", claims=uses),),
    } | more
    ref = PodRef(uid=PodUid(name), namespace=NAMESPACE, name=name)
    return PreparePod(
        pod=PodObject(ref=ref, **fields),
        claims={c.ref.name: c for c in claims},
        source=source,
        actor="test",
    )


class _Drivers:
    def __init__(self, drivers: dict[str, FakeDriver]) -> None:
        self._drivers = drivers
        #: How often each has registered: every registration is another instance.
        self.arrivals: Counter[str] = Counter()

    def find(self, driver: DriverName) -> DriverInstance | None:
        """Return the driver if it is there."""
        found = self._drivers.get(driver)
        if found is None:
            return None
        return DriverInstance(
            driver=driver,
            instance=f"{driver}-{self.arrivals[driver]}",
            endpoint=f"/{driver}.sock",
            adapter=found,
        )


class Rig:
    """One simulated node, from its first start on."""

    def __init__(
        self,
        *drivers: str,
        policy: Policy | None = None,
        settings: LoopSettings | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.policy = policy or Policy()
        self.settings = settings or LoopSettings()
        self.storage = storage or Storage()
        self.intents = Intents(self.storage)
        self.all_drivers = {name: FakeDriver(name) for name in drivers or ("gpu.example.com",)}
        for driver in self.all_drivers.values():
            driver.watch = self.intents.watch
        self.drivers = dict(self.all_drivers)
        self._found = _Drivers(self.drivers)
        self.boot = "boot-1"
        self.starts = 0
        self.world: SimulatedWorld
        self.node: Node
        self.loop: NodeLoop
        self.log: MemoryLog

    @property
    def gpu(self) -> FakeDriver:
        """Return the first driver."""
        return next(iter(self.all_drivers.values()))

    async def start(self, *, sources: Sequence[str] = ("control",)) -> Rig:
        """Start the service: replay, take over, register the drivers that are there."""
        self.starts += 1
        self.world = SimulatedWorld(seed=self.starts)
        self.node = Node("node-a", self.policy)
        by = Stamp(node="node-a", boot=self.boot, writer=f"writer-{self.starts}")
        self.loop = NodeLoop(
            self.node,
            by,
            world=self.world,
            drivers=self._found,
            settings=self.settings,
        )
        self.storage.replay(self.loop.fold)
        self.log = MemoryLog(self.storage, by, world=self.world, fold=self.loop.fold)
        started: list[f.Fact] = [f.WriterStarted(writer=by.writer, boot=by.boot)]
        started += [f.SourceSynced(source=source) for source in sources]
        await self.loop.start(self.log, [Draft(fact=fact) for fact in started])
        self.world.spawn(self.loop.run(), name="loop")
        for name in self.drivers:
            self.arrive(name)
        await asyncio.sleep(0.01)
        return self

    async def kill(self) -> None:
        """End the process as SIGKILL would."""
        await self.world.kill()

    async def restart(self, *, boot: str = "", sources: Sequence[str] = ("control",)) -> None:
        """Kill the process and start it again, in another *boot* if one is given."""
        await self.kill()
        await self.begin(boot=boot, sources=sources)

    async def begin(self, *, boot: str = "", sources: Sequence[str] = ("control",)) -> None:
        """Start again after a kill; another *boot* takes what the drivers held with it."""
        if boot and boot != self.boot:
            self.boot = boot
            for driver in self.all_drivers.values():
                driver.reboot()
        await self.start(sources=sources)

    def arrive(self, name: str) -> None:
        """Let driver *name* register."""
        self.drivers[name] = self.all_drivers[name]
        self._found.arrivals[name] += 1
        instance = self._found.find(DriverName(name))
        assert instance is not None
        self.loop.registered(instance)

    def leave(self, name: str) -> None:
        """Let driver *name* go."""
        self.drivers.pop(name, None)
        instance = f"{name}-{self._found.arrivals[name]}"
        self.loop.gone(DriverName(name), instance, "socket removed")

    async def prepare(self, command: PreparePod, *, passes_seconds: float = 0.2) -> None:
        """Ask for a pod and let some time pass."""
        await self.loop.prepare_pod(command)
        await self.passes(passes_seconds)

    async def refused(self, command: PreparePod) -> str:
        """Ask for a pod that must be refused; return why."""
        try:
            await self.loop.prepare_pod(command)
        except RefusedError as error:
            return str(error)
        raise AssertionError("the pod was not refused")

    async def unprepare(self, *pod_names: str, passes_seconds: float = 0.2) -> None:
        """Say that pods are gone and let some time pass."""
        fact = f.UnprepareRequested(reason="deleted", source="control")
        for name in pod_names:
            await self.loop.end_pod(PodUid(name), fact)
        await self.passes(passes_seconds)

    async def passes(self, seconds: float) -> None:
        """Let virtual time pass; an error in the service's tasks is the test's."""
        await asyncio.sleep(seconds)
        if self.world.errors:
            raise self.world.errors[0]
        drivers = self.all_drivers.values()
        violations = [*self.intents.violations, *(v for d in drivers for v in d.violations)]
        assert not violations, violations

    def claim(self, name: str) -> ClaimState:
        """Return the newest claim called *name*."""
        uids = self.node.by_name[NAMESPACE, name]
        return self.node.claims[uids[-1]]

    def state(self, name: str) -> str:
        """Return the phase of the claim called *name*, or `closed`."""
        uids = self.node.by_name.get((NAMESPACE, name), ())
        return self.node.claims[uids[-1]].phase.value if uids else "closed"

    def words(self, name: str = "") -> list[str]:
        """Return the words of all facts about the claim called *name*, or of all facts."""
        return [
            record.word
            for record in self.storage.decoded()
            if not name or (record.claim and record.claim.name == name)
        ]

    def facts(self, word: str) -> list[Any]:
        """Return all facts of one word."""
        return [record.fact for record in self.storage.decoded() if record.word == word]

    def consumers(self, name: str) -> list[str]:
        """Return the UIDs of the pods that hold the claim called *name*."""
        return [consumer.pod.uid for consumer in self.claim(name).consumers]

    def devices(self, name: str, driver: str = "") -> list[str]:
        """Return the CDI ids that a driver, by default the first, answered last for a claim."""
        answer = self.claim(name).answer(driver or self.gpu.driver)
        return [cdi for d in answer.devices for cdi in d.cdi_device_ids] if answer else []

    def held(self) -> dict[str, set[str]]:
        """Return what each driver holds, without those that hold nothing."""
        return {name: driver.held for name, driver in self.all_drivers.items() if driver.held}

    def replayed(self) -> Node:
        """Return a node folded from the stored bytes alone."""
        node = Node("node-a", self.policy)
        self.storage.replay(node.fold)
        return node

    def owed(self) -> tuple[str, ...]:
        """Return what the plan still owes: calls and conclusions, without fixed delays."""
        kinds = (CallPrepare, CallUnprepare, Record)
        return tuple(type(s).__name__ for s in plan(self.node) if isinstance(s, kinds))
