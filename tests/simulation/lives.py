"""
Named lives of a node, each a short history that shows one thing.

They are what `tests/histories` records and what the prefix test cuts at every fact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from claimlet.engine.state import Policy
from claimlet.events import facts as f
from claimlet.events.values import DriverName

from .rig import Rig, claim, pod

__all__ = ["LIVES"]

GPU = "gpu.example.com"
NIC = "nic.example.com"


async def two_drivers() -> Rig:
    """Play a pod with a claim of two drivers, one of which fails at first, from start to end."""
    rig = await Rig(GPU, NIC).start()
    rig.all_drivers[NIC].refuses("prepare", "no carrier", times=2)
    both = claim("c1", f"{GPU}/gpu-0", f"{NIC}/nic-0", config=b'{"mtu":9000}')
    await rig.prepare(pod("p1", both, claim("c2", f"{GPU}/gpu-1")), passes_seconds=3)
    await rig.restart()
    rig.all_drivers[GPU].refuses("unprepare", "device busy", times=1, only=["c2"])
    await rig.unprepare("p1", passes_seconds=3)
    return rig


async def reboot() -> Rig:
    """Play a reboot: one pod asks again, the other one ends instead."""
    rig = await Rig().start()
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
    await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-1")))
    await rig.restart(boot="boot-2")
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
    await rig.unprepare("p2")
    return rig


async def reboot_during_prepare() -> Rig:
    """Play a reboot that cuts a prepare off, and one that cuts an unprepare off."""
    rig = await Rig(GPU, NIC).start()
    rig.all_drivers[NIC].hangs("prepare", times=1)
    wish = pod("p1", claim("c1", f"{GPU}/gpu-0", f"{NIC}/nic-0"))
    await rig.prepare(wish)
    await rig.restart(boot="boot-2")
    await rig.prepare(wish)
    rig.gpu.hangs("unprepare", times=1)
    await rig.unprepare("p1")
    await rig.restart(boot="boot-3")
    await rig.passes(1)
    return rig


async def sharing() -> Rig:
    """Play three pods on one claim: one that skips it, one that begins, one that goes on."""
    rig = await Rig().start()
    rig.gpu.refuses("prepare", times=2)
    shared = claim("c1", f"{GPU}/gpu-0")
    await rig.prepare(pod("p1", shared, used=[]))
    await rig.prepare(pod("p2", shared))
    await rig.prepare(pod("p3", shared))
    await rig.unprepare("p2", passes_seconds=3)
    await rig.unprepare("p3")
    await rig.unprepare("p1")
    return rig


async def overlap() -> Rig:
    """Play two claims on one device, and a third one of the first one's name."""
    rig = await Rig().start()
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0", uid="u1")))
    await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-0")))
    await rig.refused(pod("p3", claim("c1", f"{GPU}/gpu-1", uid="u2")))
    await rig.unprepare("p1")
    await rig.prepare(pod("p3", claim("c1", f"{GPU}/gpu-1", uid="u2")))
    return rig


async def late_prepare() -> Rig:
    """Play a prepare that acts long after its connection was lost."""
    rig = await Rig().start()
    rig.gpu.acts_late("prepare", 20.0)
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=2)
    await rig.restart()
    await rig.unprepare("p1", passes_seconds=50)
    return rig


async def cut_twice() -> Rig:
    """Play a prepare cut by a kill, answered to the next process, and given back by a third one."""
    rig = await Rig().start()
    rig.gpu.acts_late("prepare", 20.0)
    rig.log.cut = lambda record: record.word == "driver_failed"
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
    await rig.restart()
    await rig.passes(1)
    await rig.restart()
    await rig.unprepare("p1", passes_seconds=50)
    return rig


async def swap() -> Rig:
    """Play a pod that leaves during its prepare, and another one that takes the claim over."""
    rig = await Rig().start()
    rig.gpu.is_slow("prepare", 1.0)
    shared = claim("c1", f"{GPU}/gpu-0")
    await rig.prepare(pod("p1", shared))
    await rig.unprepare("p1")
    await rig.prepare(pod("p2", shared), passes_seconds=2)
    return rig


async def waived() -> Rig:
    """Play a driver that never comes back, and an operator who gives it up."""
    rig = await Rig(GPU, NIC).start()
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0", f"{NIC}/nic-0")))
    rig.leave(NIC)
    await rig.unprepare("p1", passes_seconds=30)
    uid = rig.claim("c1").uid
    await rig.loop.waive(uid, DriverName(NIC), who="ops", why="card removed")
    await rig.passes(1)
    return rig


async def lost() -> Rig:
    """Play claims whose objects are deleted and changed under their pod."""
    rig = await Rig().start()
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{GPU}/gpu-1")))
    await rig.loop.lose_object(rig.claim("c1").uid, f.ObjectLost(how="deleted"))
    await rig.loop.lose_object(rig.claim("c2").uid, f.ObjectLost(how="reallocated"))
    await rig.unprepare("p1")
    await rig.passes(700)
    return rig


async def replayed_driver() -> Rig:
    """Play a driver that lost its record and is asked again, and one that answers oddly."""
    rig = await Rig(GPU, NIC, policy=Policy(reprepare_on="start")).start()
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{NIC}/nic-0")))
    await rig.loop.replay_driver(DriverName(GPU), actor="ops")
    await rig.passes(1)
    await rig.restart()
    rig.all_drivers[NIC].answers("prepare", lambda claims: {"u9": None})
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{NIC}/nic-0")))
    return rig


LIVES: dict[str, Callable[[], Awaitable[Rig]]] = {
    life.__name__: life
    for life in (
        two_drivers,
        reboot,
        reboot_during_prepare,
        sharing,
        overlap,
        late_prepare,
        cut_twice,
        swap,
        waived,
        lost,
        replayed_driver,
    )
}
