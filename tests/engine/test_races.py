"""Many at once: what readers see, and what is left when all have gone (rules 2, 7; R9)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.simulation.rig import Rig, claim, pod
from tests.simulation.virtual import simulated

from claimlet.engine.containers import container_devices
from claimlet.engine.errors import RefusedError
from claimlet.engine.lifecycle import Phase
from claimlet.engine.ports import Claim, DriverCallError, Failed, Prepared
from claimlet.engine.views import claim_views
from claimlet.events import facts as f
from claimlet.events.values import PodUid, PreparedDevice

GPU = "gpu.example.com"
NIC = "nic.example.com"
CLAIMS = 20
TASKS = 200


class _Storm:
    """Two hundred pods on twenty shared claims, with drivers that fail now and then."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.chance = random.Random(seed)
        for driver in rig.all_drivers.values():
            driver.fault = self.fault

    def fault(self, method: str, claims: Sequence[Claim]) -> Any:
        """Fail one call in ten, as a whole or for one claim."""
        if self.chance.random() < 0.05:
            raise DriverCallError("gone", outcome="unreachable")
        if self.chance.random() < 0.05:
            return {claims[0].uid: Failed("busy")}
        return None

    async def pod(self, number: int) -> None:
        """Live as one pod: ask, stay for a while, leave."""
        name = f"pod-{number}"
        await asyncio.sleep(self.chance.random() * 30)
        chosen = self.chance.sample(range(CLAIMS), 3)
        claims = [
            claim(f"c{n}", f"{GPU}/gpu-{n}", f"{NIC}/nic-{n}", reserved_for=[name]) for n in chosen
        ]
        for _ in range(50):
            try:
                await self.rig.loop.prepare_pod(pod(name, *claims))
                break
            except RefusedError:
                await asyncio.sleep(0.2)
        await asyncio.sleep(self.chance.random() * 10)
        fact = f.UnprepareRequested(reason="deleted")
        await self.rig.loop.end_pod(PodUid(name), fact)


class TestStorm:
    @pytest.mark.field(34)
    @pytest.mark.rule("R9")
    @simulated
    async def test_snapshots_are_whole(self) -> None:
        """200 pods on 20 claims, a look every 10 ms: no half answer, and replay is memory."""
        rig = await Rig(GPU, NIC).start()
        storm = _Storm(rig, seed=7)
        tasks = [asyncio.ensure_future(storm.pod(n)) for n in range(TASKS)]
        looks = 0
        while not all(task.done() for task in tasks):
            await rig.passes(0.01)
            looks += 1
            for state in rig.node.claims.values():
                whole = all(len(answer.devices) == 1 for answer in state.answers)
                assert whole
                assert state.phase is not Phase.PREPARED or state.unanswered() == ()
                assert len({c.pod.uid for c in state.consumers}) == len(state.consumers)
            assert len(claim_views(rig.node)) == len(rig.node.claims)
        await asyncio.gather(*tasks)
        await rig.passes(300)

        assert looks > 1000
        assert rig.replayed().digest() == rig.node.digest()
        assert rig.held() == {}
        assert rig.node.pods == {}
        assert rig.owed() == ()


class TestReaders:
    @pytest.mark.rule("R9")
    @simulated
    async def test_a_view_that_was_taken_never_changes(self) -> None:
        """A reader keeps what it has taken, whatever is folded afterwards."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        state, devices = rig.claim("c1"), container_devices(rig.node, PodUid("p1"), "main")
        before = (state.phase, state.answers, len(devices))
        other = PreparedDevice(pool="node-a", device="gpu-0", cdi_device_ids=(f"{GPU}/gpu=x",))
        answer = Prepared(devices=(other, other))
        rig.gpu.answers("prepare", lambda claims: {c.uid: answer for c in claims})
        await rig.loop.reprepare(state.uid, actor="test")
        await rig.passes(1)
        answers = [fact.devices for fact in rig.facts("driver_prepared")]

        assert (state.phase, state.answers, len(devices)) == before
        assert [len(found) for found in answers] == [1, 2]
        assert len(container_devices(rig.node, PodUid("p1"), "main")) == 2


class TestMatrix:
    """Each call, with each fault, for one driver and for two (field report 9)."""

    @pytest.mark.field(9)
    @pytest.mark.parametrize("method", ["prepare", "unprepare"])
    @pytest.mark.parametrize("fault", ["fails_once", "absent", "killed", "restarted"])
    @pytest.mark.parametrize("drivers", [(GPU,), (GPU, NIC)])
    @simulated
    async def test_ends_well(self, method: str, fault: str, drivers: tuple[str, ...]) -> None:
        """Whatever goes wrong once, the claim is prepared and given back without help."""
        rig = await Rig(*drivers).start()
        wish = pod("p1", claim("c1", *(f"{d}/dev-0" for d in drivers)))
        if method == "unprepare":
            await rig.prepare(wish)
        _break(rig, method, fault)
        if method == "prepare":
            await rig.prepare(wish)
        else:
            await rig.unprepare("p1")
        await _mend(rig, fault)
        await rig.passes(60)

        assert rig.state("c1") == ("prepared" if method == "prepare" else "unprepared")
        if method == "prepare":
            await rig.unprepare("p1", passes_seconds=60)
        assert rig.held() == {}
        assert rig.owed() == ()


def _break(rig: Rig, method: str, fault: str) -> None:
    if fault == "fails_once":
        rig.gpu.refuses(method, times=1)
    elif fault == "killed":
        rig.gpu.hangs(method, times=1)
    elif fault == "restarted":
        rig.gpu.breaks(method, times=1)
    elif method == "unprepare":
        rig.leave(GPU)
    else:
        # A pod is refused while its driver is absent: it goes right after the pod was taken.
        rig.gpu.breaks(method, times=3)


async def _mend(rig: Rig, fault: str) -> None:
    if fault == "killed":
        await rig.restart()
    elif fault in ("absent", "restarted"):
        if GPU in rig.drivers:
            rig.leave(GPU)
        await rig.passes(5)
        rig.arrive(GPU)
