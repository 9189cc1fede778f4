"""
Random plays: what may happen on a node in any order, and what must hold whatever happens.

A play is a list of `Action`s, so that a failing one can be printed, shrunk and kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec

from claimlet.engine.errors import ClaimletError
from claimlet.engine.lifecycle import PREPARING, UNPREPARING
from claimlet.engine.plan import (
    CallPrepare,
    CallUnprepare,
    is_prepared,
    owner,
    plan,
    waits_for,
)
from claimlet.engine.pod import PreparePod
from claimlet.engine.state import Policy
from claimlet.events import facts as f
from claimlet.events.values import ClaimUid, DriverName, PodUid

from .rig import Rig, claim, pod

__all__ = ["ACTIONS", "DRIVERS", "POLICIES", "Action", "Play", "check", "play", "settle"]

GPU, NIC = DRIVERS = ("gpu.example.com", "nic.example.com")
PODS = ("p1", "p2", "p3")
CLAIMS = {
    "c1": claim("c1", f"{GPU}/gpu-0"),
    "c2": claim("c2", f"{GPU}/gpu-1", f"{NIC}/nic-0"),
    # On the device of c1: they overlap.
    "c3": claim("c3", f"{GPU}/gpu-0"),
    # Of the name of c1, and of its UID.
    "twin": claim("c1", f"{GPU}/gpu-2", uid="twin-uid"),
    "moved": claim("c1", f"{GPU}/gpu-3"),
    "bare": claim("bare"),
}
#: What a pod may ask for.
WISHES = (
    ("c1",),
    ("c2",),
    ("c1", "c2"),
    ("c3",),
    ("c1", "c3"),
    ("c2", "c3"),
    ("c1", "c2", "c3"),
    ("twin",),
    ("moved", "c2"),
    ("bare",),
    ("twin", "c2", "bare"),
    (),
)
SPANS = (0.0, 0.001, 0.004, 0.02, 0.6, 5.0, 50.0)


class Action(msgspec.Struct, frozen=True):
    """One thing that happens; the numbers choose whom it happens to."""

    name: str
    a: int = 0
    b: int = 0


#: Settings that decisions depend on; a play has one of them.
POLICIES = (
    Policy(),
    Policy(reprepare_on="start"),
    Policy(overlap="record", unused_claims="prepare"),
    Policy(unused_claims_by_driver={NIC: "prepare"}),
)


class Play:
    """A rig on which actions happen."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.rig = Rig(*DRIVERS, policy=policy)
        self.boots = 1
        self._asked: list[asyncio.Future[Any]] = []

    async def act(self, action: Action) -> None:
        """Let *action* happen; what the service refuses is no error of the play."""
        await getattr(self, f"_{action.name}")(action.a, action.b)
        await self.rig.passes(0)

    async def command(self, work: Any) -> None:
        """Give a command and wait for a while; it may go on behind our back."""
        task = asyncio.ensure_future(work)
        self._asked.append(task)
        await asyncio.wait([task], timeout=0.05)
        self._take_errors()

    def _take_errors(self) -> None:
        for task in [t for t in self._asked if t.done()]:
            self._asked.remove(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, ClaimletError):
                raise error

    async def forget(self) -> None:
        """Drop commands that a dead process will never answer."""
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        self._asked.clear()

    # --- what may happen -------------------------------------------------------------------------

    async def _ask(self, a: int, b: int) -> None:
        await self.command(self.rig.loop.prepare_pod(_wish(a, b)))

    async def _end(self, a: int, b: int) -> None:
        fact = f.UnprepareRequested(reason="deleted", source="control")
        await self.command(self.rig.loop.end_pod(PodUid(PODS[a % 3]), fact))

    async def _finish(self, a: int, b: int) -> None:
        fact = f.PodFinished(phase="Succeeded")
        await self.command(self.rig.loop.end_pod(PodUid(PODS[a % 3]), fact))

    async def _lose(self, a: int, b: int) -> None:
        how = ("deleted", "deallocated", "reallocated")[b % 3]
        fact = f.ObjectLost(how=how)  # type: ignore[arg-type]
        await self.command(self.rig.loop.lose_object(_uid(a), fact))

    async def _reprepare(self, a: int, b: int) -> None:
        await self.command(self.rig.loop.reprepare(_uid(a), actor="ops"))

    async def _replay(self, a: int, b: int) -> None:
        await self.command(self.rig.loop.replay_driver(_driver(a), actor="ops"))

    async def _waive(self, a: int, b: int) -> None:
        await self.command(self.rig.loop.waive(_uid(a), _driver(b), who="ops", why="gone"))

    async def _leave(self, a: int, b: int) -> None:
        if _driver(a) in self.rig.drivers:
            self.rig.leave(_driver(a))

    async def _arrive(self, a: int, b: int) -> None:
        if _driver(a) not in self.rig.drivers:
            self.rig.arrive(_driver(a))

    async def _fault(self, a: int, b: int) -> None:
        driver = self.rig.all_drivers[_driver(a)]
        method = "prepare" if a % 4 < 2 else "unprepare"
        match b % 7:
            case 0:
                driver.refuses(method, times=2)
            case 1:
                driver.refuses(method, times=2, only=["c1"])
            case 2:
                driver.breaks(method, times=2)
            case 3:
                driver.hangs(method, times=1)
            case 4:
                driver.acts_late("prepare", 20.0)
            case 5:
                driver.breaks(method, times=1, outcome="unknown", code="CANCELLED")
            case _:
                driver.is_slow(method, 0.5)

    async def _works(self, a: int, b: int) -> None:
        self.rig.all_drivers[_driver(a)].works()

    async def _restart(self, a: int, b: int) -> None:
        await self.forget()
        await self.rig.restart(sources=("control",) if a % 3 else ())

    async def _sync(self, a: int, b: int) -> None:
        await self.command(self.rig.loop.sync_source("control"))

    async def _reboot(self, a: int, b: int) -> None:
        await self.forget()
        self.boots += 1
        await self.rig.restart(boot=f"boot-{self.boots}")

    async def _die_soon(self, a: int, b: int) -> None:
        """Die before the record that is stored *a* records from now."""
        left = a % 8

        def cut(_: object) -> bool:
            nonlocal left
            left -= 1
            return left < 0

        self.rig.log.cut = cut

    async def _outage(self, a: int, b: int) -> None:
        self.rig.log.is_down = True
        await self.rig.passes(SPANS[a % len(SPANS)])
        self.rig.log.is_down = False
        self.rig.loop.wake()

    async def _pass(self, a: int, b: int) -> None:
        await self.rig.passes(SPANS[a % len(SPANS)])


ACTIONS = tuple(
    name.removeprefix("_")
    for name in (
        "_ask",
        "_end",
        "_finish",
        "_lose",
        "_reprepare",
        "_replay",
        "_waive",
        "_leave",
        "_arrive",
        "_fault",
        "_works",
        "_restart",
        "_reboot",
        "_sync",
        "_die_soon",
        "_outage",
        "_pass",
    )
)


def _uid(number: int) -> ClaimUid:
    return list(CLAIMS.values())[number % 4].ref.uid


def _driver(number: int) -> DriverName:
    return DriverName(DRIVERS[number % 2])


def _wish(a: int, b: int) -> PreparePod:
    """Return a wish for one of the pods: some of the claims, and some of those used."""
    claims = [CLAIMS[name] for name in WISHES[b % len(WISHES)]]
    used = [c.ref.name for c in claims[: len(claims) - (a // 3 % 2)]]
    return pod(PODS[a % 3], *claims, used=used)


def check(rig: Rig) -> None:
    """Check what must hold at every moment."""
    node = rig.node
    assert not rig.intents.violations, rig.intents.violations
    assert [c.suspect for c in node.claims.values() if c.suspect] == []
    assert rig.replayed().digest() == node.digest()
    for step in plan(node):
        if isinstance(step, CallPrepare):
            assert all(node.claims[uid].phase in PREPARING for uid in step.claims)
        elif isinstance(step, CallUnprepare):
            assert all(node.claims[uid].phase in UNPREPARING for uid in step.claims)
    for claim_state in node.claims.values():
        if claim_state.phase in UNPREPARING:
            assert claim_state.consumers == ()


def unserved(rig: Rig) -> list[str]:
    """Return the claims that are wanted, could be prepared, and are not."""
    node = rig.node
    return [
        f"{c.ref.name} {c.phase.value}"
        for c in node.claims.values()
        if owner(node, c) and not (c.lost or waits_for(node, c)) and not is_prepared(node, c)
    ]


def answered_twice(rig: Rig) -> list[tuple[str, str, str]]:
    """Return (operation, claim, driver) of prepares that one operation recorded more than once."""
    answers = Counter(
        (record.corr, record.claim.uid, record.fact.driver)
        for record in rig.storage.decoded()
        if isinstance(record.fact, f.DriverPrepared) and record.claim
    )
    return [key for key, count in answers.items() if count > 1]


async def settle(rig: Rig) -> None:
    """Let everything work again, end all pods, and check that nothing is left behind."""
    for driver in rig.all_drivers.values():
        driver.works()
    for name in rig.all_drivers:
        if name not in rig.drivers:
            rig.arrive(name)
    await rig.passes(120)
    check(rig)
    assert rig.owed() == ()
    assert unserved(rig) == []
    for pod_uid in list(rig.node.by_pod):
        fact = f.UnprepareRequested(reason="deleted", source="control")
        await rig.loop.end_pod(pod_uid, fact)
    for pod_uid in list(rig.node.pods):
        await rig.loop.end_pod(pod_uid, f.UnprepareRequested(reason="deleted"))
    await rig.passes(120)
    check(rig)
    states = {c.ref.name: c.phase.value for c in rig.node.claims.values()}
    assert set(states.values()) <= {"generated", "unprepared"}, states
    assert rig.owed() == ()
    assert rig.node.pods == {}
    # An operator who waives gives up what a late call may still do.
    waived = {r.claim.uid for r in rig.storage.decoded() if r.word == "debt_waived" and r.claim}
    left = {d: uids - waived for d, uids in rig.held().items() if uids - waived}
    assert left == {}, left
    assert answered_twice(rig) == []
    await rig.passes(700)
    assert rig.node.claims == {}


async def play(actions: list[Action], policy: Policy | None = None) -> Rig:
    """Play *actions* from a first start on, checking all along; return the rig, settled."""
    game = Play(policy)
    await game.rig.start()
    for action in actions:
        await game.act(action)
        check(game.rig)
    if game.rig.log.is_dead or len(actions) % 2:
        await game.forget()
        await game.rig.restart()
    else:
        game.rig.log.cut = lambda _: False
        await game.rig.loop.sync_source("control")
    await settle(game.rig)
    await game.forget()
    return game.rig
