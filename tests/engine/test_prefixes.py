"""
Every prefix of a log is a good state (rule 3): cut each life at every fact, and run on.

The drivers hold all that they may hold at the cut: whatever an intent had announced is done.
"""

from __future__ import annotations

import pytest
from tests.simulation.lives import LIVES
from tests.simulation.memory_log import Storage
from tests.simulation.random_play import check, settle
from tests.simulation.rig import Rig
from tests.simulation.virtual import simulate, simulated

from claimlet.engine.plan import owner
from claimlet.events import facts as f
from claimlet.events.record import Record


def may_hold(records: list[Record]) -> dict[str, set[str]]:
    """Return what each driver may hold after *records*."""
    held: dict[str, set[str]] = {}
    for record in records:
        uid = record.claim.uid if record.claim else ""
        match record.fact:
            case f.PrepareStarted(calls=calls):
                for call in calls:
                    held.setdefault(call.driver, set()).add(uid)
            case f.DriverUnprepared(driver=driver, final=True) | f.DebtWaived(driver=driver):
                held.setdefault(driver, set()).discard(uid)
    return held


def cut(life: Rig, length: int) -> Rig:
    """Return a node that has the first *length* records of *life*, not started yet."""
    storage = Storage(life.storage.records[:length])
    rig = Rig(*life.all_drivers, policy=life.policy, storage=storage)
    rig.starts = 100
    records = storage.decoded()
    rig.boot = next((r.boot for r in reversed(records)), "boot-1")
    for name, uids in may_hold(records).items():
        rig.all_drivers[name].held |= uids
    return rig


async def run_on(rig: Rig, *, boot: str = "") -> None:
    """Start a node that was cut off and let it run to a clean end."""
    await rig.begin(boot=boot)
    check(rig)
    for state in rig.node.claims.values():
        for consumer in state.consumers:
            pod = rig.node.pods.get(consumer.pod.uid)
            is_wanted = pod is not None and pod.request is not None and not pod.ended
            assert is_wanted, f"{state.ref} is held by {consumer.pod}, which nobody asked for"
    if boot:
        assert all(owner(rig.node, state) is None for state in rig.node.claims.values())
    await settle(rig)
    await rig.kill()


class TestPrefixes:
    @pytest.mark.rule("R2", "R12")
    @pytest.mark.field(9)
    @pytest.mark.parametrize("name", LIVES)
    @simulated
    async def test_each_one_runs_on(self, name: str) -> None:
        """Killed after any fact of a life and started again, the node comes to a clean end."""
        life = await LIVES[name]()
        await life.kill()
        for length in range(len(life.storage.records) + 1):
            await run_on(cut(life, length))

    @pytest.mark.rule("R1")
    @pytest.mark.parametrize("name", LIVES)
    @simulated
    async def test_each_one_survives_a_reboot(self, name: str) -> None:
        """The same with a reboot at the cut: nothing is prepared, and all of it is given back."""
        life = await LIVES[name]()
        await life.kill()
        for length in range(len(life.storage.records) + 1):
            rig = cut(life, length)
            await run_on(rig, boot="boot-9")

            assert [d.count("prepare") for d in rig.all_drivers.values() if d.ledger] == [
                0 for d in rig.all_drivers.values() if d.ledger
            ]


def test_lives_are_repeatable() -> None:
    """A life played twice writes the same bytes: time, ids and chance come from the world alone."""
    first, second = (simulate(LIVES["two_drivers"]).storage.records for _ in range(2))

    assert first == second
