"""Preparing again: retries, names and allocations that are taken, a log that is away."""

from __future__ import annotations

import asyncio

import pytest
from tests.simulation.rig import Rig, claim, pod
from tests.simulation.virtual import simulated

from claimlet.engine.errors import NotReadyError

GPU = "gpu.example.com"
NIC = "nic.example.com"


class TestRetries:
    @pytest.mark.scenario("P10")
    @pytest.mark.field(38)
    @pytest.mark.rule("R3", "R11")
    @simulated
    async def test_keeps_what_one_driver_has_answered(self) -> None:
        """
        Driver A's yes is kept while B fails; only B is asked again, and both are unprepared.

        Upstream throws A's answer away and asks both again.
        """
        rig = await Rig(GPU, NIC).start()
        a, b = rig.all_drivers.values()
        b.refuses("prepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0", f"{NIC}/nic-0")), passes_seconds=3)

        assert rig.state("c1") == "bound_preparing"
        assert rig.devices("c1", GPU) == [f"{GPU}/gpu=c1-uid-gpu-0"]
        assert (a.count("prepare"), b.count("prepare")) == (1, 3)
        await rig.unprepare("p1")
        assert (a.count("unprepare"), b.count("unprepare")) == (1, 1)
        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("P11")
    @simulated
    async def test_devices_never_add_up(self) -> None:
        """However often B fails and A is asked anew, A still lists its 8 devices."""
        rig = await Rig(GPU, NIC).start()
        rig.all_drivers[NIC].refuses("prepare")
        eight = [f"{GPU}/gpu-{n}" for n in range(8)]
        await rig.prepare(pod("p1", claim("c1", *eight, f"{NIC}/nic-0")))
        for _ in range(10):
            await rig.loop.reprepare(rig.claim("c1").uid, actor="test")
            await rig.passes(1)

        assert rig.all_drivers[GPU].count("prepare") == 11
        assert len(rig.devices("c1", GPU)) == 8

    @pytest.mark.field(43)
    @pytest.mark.rule("R3")
    @simulated
    async def test_retries_only_the_claim_that_failed(self) -> None:
        """One of three claims fails: the next call has only that one."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare", times=1, only=["c2"])
        await rig.prepare(
            pod("p1", *(claim(f"c{n}", f"{GPU}/gpu-{n}") for n in (1, 2, 3))), passes_seconds=2
        )

        assert rig.gpu.batches("prepare") == [("c1", "c2", "c3"), ("c2",)]
        assert {rig.state(f"c{n}") for n in (1, 2, 3)} == {"prepared"}

    @pytest.mark.scenario("P27")
    @simulated
    async def test_recovers_by_itself(self) -> None:
        """A driver that fails and then recovers needs no intervention."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare", times=3)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=10)

        assert rig.gpu.count("prepare") == 4
        assert rig.state("c1") == "prepared"

    @simulated
    async def test_backs_off(self) -> None:
        """Retries start at half a second and double up to a minute, give or take a tenth."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=3600)

        delays = [f.retry_delay_seconds for f in rig.facts("driver_failed")]
        assert 0.45 <= delays[0] <= 0.55
        assert 0.9 <= delays[1] <= 1.1
        assert all(54 <= delay <= 66 for delay in delays[-3:])
        assert 60 <= rig.gpu.count("prepare") <= 75


class TestIdentity:
    @pytest.mark.scenario("P14")
    @pytest.mark.field(29)
    @simulated
    async def test_a_name_waits_for_its_older_uid(self) -> None:
        """The same name with another UID is refused until the older claim is unprepared."""
        rig = await Rig().start()
        rig.gpu.refuses("unprepare", times=3)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0", uid="u1")))
        await rig.unprepare("p1")
        newer = pod("p2", claim("c1", f"{GPU}/gpu-0", uid="u2"))
        reason = await rig.refused(newer)
        await rig.restart()
        again = await rig.refused(newer)
        await rig.passes(10)
        await rig.prepare(newer)

        assert "under another UID" in reason
        assert "under another UID" in again
        assert [uids for _, uids in rig.gpu.ledger if uids] != []
        assert rig.node.claims[rig.claim("c1").uid].uid == "u2"
        assert rig.state("c1") == "prepared"

    @simulated
    async def test_an_allocation_is_part_of_the_identity(self) -> None:
        """The same UID with another allocation is refused until the old stay is over."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        moved = pod("p2", claim("c1", f"{GPU}/gpu-1"))
        reason = await rig.refused(moved)
        await rig.unprepare("p1")
        await rig.prepare(moved)

        assert "another allocation" in reason
        assert rig.devices("c1") == [f"{GPU}/gpu=c1-uid-gpu-1"]

    @pytest.mark.scenario("P23")
    @pytest.mark.field(30)
    @simulated
    async def test_an_unpreparing_claim_takes_nobody(self) -> None:
        """A claim that is being unprepared refuses a new pod, which later costs its own call."""
        rig = await Rig().start()
        rig.gpu.is_slow("unprepare", 1.0)
        shared = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", shared))
        await rig.unprepare("p1")
        reason = await rig.refused(pod("p2", shared))
        await rig.passes(2)
        await rig.prepare(pod("p2", shared))

        assert "is being unprepared" in reason
        assert [method for method, _ in rig.gpu.ledger] == ["prepare", "unprepare", "prepare"]
        assert rig.consumers("c1") == ["p2"]


class TestLog:
    @pytest.mark.scenario("P18")
    @simulated
    async def test_no_call_without_a_stored_intent(self) -> None:
        """While the log is down a pod is refused for now, and no driver is called."""
        rig = await Rig().start()
        rig.log.is_down = True
        with pytest.raises(NotReadyError):
            await rig.loop.prepare_pod(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.passes(60)

        assert rig.gpu.ledger == []
        assert rig.node.claims == {}

    @pytest.mark.scenario("P18")
    @simulated
    async def test_no_call_before_the_intent_is_acknowledged(self) -> None:
        """An intent that is issued and not acknowledged calls nobody."""
        rig = await Rig().start()
        rig.log.cut = lambda record: record.word == "prepare_started"
        task = asyncio.ensure_future(rig.loop.prepare_pod(pod("p1", claim("c1", f"{GPU}/gpu-0"))))
        await rig.passes(5)
        called = list(rig.gpu.ledger)
        task.cancel()
        await rig.restart()
        await rig.passes(1)

        assert called == []
        assert rig.state("c1") == "prepared"

    @pytest.mark.scenario("P19")
    @simulated
    async def test_an_outcome_waits_for_the_log(self) -> None:
        """
        An answer that comes while the log is down waits for it; nobody is told "prepared" before.

        Upstream forgets the answer and calls again; here it is recorded when the log is back.
        """
        rig = await Rig().start()
        rig.gpu.is_slow("prepare", 1.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        rig.log.is_down = True
        await rig.passes(60)
        waiting = rig.state("c1")
        rig.log.is_down = False
        rig.loop.wake()
        await rig.passes(5)

        assert waiting == "bound_preparing"
        assert rig.gpu.count("prepare") == 1
        assert rig.state("c1") == "prepared"

    @pytest.mark.scenario("P20")
    @pytest.mark.field(11)
    @pytest.mark.parametrize("is_gone", [False, True])
    @simulated
    async def test_a_kill_during_the_call_loses_nothing(self, is_gone: bool) -> None:
        """Killed between intent and answer: the claim is known, and prepared or unprepared."""
        rig = await Rig().start()
        rig.log.cut = lambda record: record.word == "driver_prepared"
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        assert rig.gpu.held == {"c1-uid"}
        await rig.restart()
        if is_gone:
            await rig.unprepare("p1")
        await rig.passes(60)

        assert rig.state("c1") == ("unprepared" if is_gone else "prepared")
        assert (rig.gpu.held == set()) is is_gone
