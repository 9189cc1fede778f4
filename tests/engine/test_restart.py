"""Restart and reboot: what is asked again, once, and what is not (rules R1, R12; rule 5)."""

from __future__ import annotations

import asyncio

import pytest
from tests.simulation.rig import Rig, claim, pod
from tests.simulation.virtual import simulated

from claimlet.engine.plan import CallPrepare, plan
from claimlet.engine.pod import PreparePod
from claimlet.engine.state import Policy
from claimlet.events import facts as f

GPU = "gpu.example.com"
NIC = "nic.example.com"
START = Policy(reprepare_on="start")


async def prepared(*drivers: str, policy: Policy | None = None) -> Rig:
    """Return a started node with claim c1, on all *drivers*, prepared for pod p1."""
    rig = await Rig(*(drivers or (GPU,)), policy=policy).start()
    await rig.prepare(wish(rig))
    assert rig.state("c1") == "prepared"
    return rig


def wish(rig: Rig) -> PreparePod:
    """Return the wish for p1, as its source says it again."""
    return pod("p1", claim("c1", *(f"{d}/dev-0" for d in rig.all_drivers)))


class TestSameBoot:
    @pytest.mark.scenario("R01")
    @pytest.mark.field(21, 104)
    @pytest.mark.rule("R1", "R12")
    @simulated
    async def test_a_restart_calls_nobody(self) -> None:
        """Three restarts in one boot: no call, no fact about the claim, the same answer."""
        rig = await prepared()
        before, devices = rig.words("c1"), rig.devices("c1")
        rig.drivers.clear()
        for _ in range(3):
            await rig.restart()
            await rig.passes(60)

        assert rig.gpu.ledger == [("prepare", ("c1",))]
        assert rig.words("c1") == before
        assert rig.devices("c1") == devices
        assert rig.state("c1") == "prepared"

    @pytest.mark.scenario("R02")
    @pytest.mark.rule("R1")
    @simulated
    async def test_a_new_sandbox_after_a_restart_calls_nobody(self) -> None:
        """
        With `reprepare_on = "boot"` a restart voids nothing, also where the sandbox is made again.

        Upstream calls once per process; that is `reprepare_on = "start"`.
        """
        rig = await prepared()
        await rig.restart()
        await rig.prepare(wish(rig))

        assert rig.gpu.count("prepare") == 1
        assert rig.state("c1") == "prepared"

    @pytest.mark.scenario("R02")
    @pytest.mark.rule("R1")
    @simulated
    async def test_a_new_sandbox_after_a_start_calls_once(self) -> None:
        """With `reprepare_on = "start"` the pod's first request to a new process is one Prepare."""
        rig = await prepared(policy=START)
        await rig.restart()
        await rig.passes(60)
        silent = (rig.gpu.count("prepare"), rig.state("c1"))
        for _ in range(3):
            await rig.prepare(wish(rig))

        assert silent == (1, "needs")
        assert rig.gpu.count("prepare") == 2
        assert rig.state("c1") == "prepared"

    @pytest.mark.rule("R1")
    @simulated
    async def test_a_start_does_not_void_its_own_answers(self) -> None:
        """What is prepared by this process stays, though some answers are of the one before."""
        rig = await Rig(GPU, NIC, policy=START).start()
        rig.all_drivers[NIC].refuses("prepare")
        await rig.prepare(wish(rig))
        await rig.kill()
        rig.all_drivers[NIC].works()
        await rig.begin()
        await rig.prepare(wish(rig))
        await rig.passes(60)

        assert rig.state("c1") == "prepared"
        assert rig.all_drivers[GPU].count("prepare") == 1
        assert rig.facts("reprepare_needed") == []

    @pytest.mark.scenario("R03")
    @pytest.mark.rule("R1")
    @simulated
    async def test_a_new_sandbox_without_a_restart_calls_nobody(self) -> None:
        """The pod's sandbox is made again in a running service: no call."""
        rig = await prepared()
        await rig.prepare(wish(rig))

        assert rig.gpu.count("prepare") == 1

    @pytest.mark.scenario("R06")
    @simulated
    async def test_a_restart_during_a_prepare_finishes_it(self) -> None:
        """Killed while one of two drivers works: afterwards both have prepared, A asked once."""
        rig = await Rig(GPU, NIC).start()
        rig.all_drivers[NIC].hangs("prepare", times=1)
        await rig.prepare(wish(rig))
        await rig.restart()
        await rig.passes(1)

        assert rig.state("c1") == "prepared"
        assert [d.count("prepare") for d in rig.all_drivers.values()] == [1, 2]

    @pytest.mark.scenario("R07")
    @simulated
    async def test_a_restart_during_an_unprepare_repeats_it(self) -> None:
        """Killed while the driver unprepares: it is called again."""
        rig = await prepared()
        rig.gpu.hangs("unprepare", times=1)
        await rig.unprepare("p1")
        await rig.restart()
        await rig.passes(1)

        assert rig.gpu.count("unprepare") == 2
        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("R08")
    @simulated
    async def test_a_failing_prepare_survives_a_restart(self) -> None:
        """A prepare that fails, a restart, a driver that recovers: it succeeds."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare")
        await rig.prepare(wish(rig), passes_seconds=5)
        await rig.kill()
        rig.gpu.works()
        await rig.begin()
        await rig.passes(1)

        assert rig.state("c1") == "prepared"

    @pytest.mark.scenario("R09")
    @simulated
    async def test_a_failing_unprepare_survives_a_restart(self) -> None:
        """An unprepare that fails, a restart, a driver that recovers: it succeeds at once."""
        rig = await prepared()
        rig.gpu.refuses("unprepare")
        await rig.unprepare("p1", passes_seconds=300)
        await rig.kill()
        rig.gpu.works()
        await rig.begin()
        await rig.passes(1)

        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("R10")
    @pytest.mark.field(10)
    @pytest.mark.rule("R2")
    @simulated
    async def test_a_pod_that_ended_while_it_was_down(self) -> None:
        """A prepared pod that ended while the service was down is unprepared, with one call."""
        rig = await prepared()
        await rig.restart()
        await rig.unprepare("p1")

        assert rig.gpu.count("unprepare") == 1
        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("R11")
    @simulated
    async def test_a_pod_that_ended_before_it_was_prepared(self) -> None:
        """A pod whose prepare never finished and that ended while down causes no new Prepare."""
        rig = await Rig().start()
        rig.gpu.hangs("prepare", times=1)
        await rig.prepare(wish(rig))
        await rig.kill()
        await rig.begin(sources=())
        await rig.unprepare("p1", passes_seconds=120)

        assert rig.gpu.count("prepare") == 1
        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("R12")
    @pytest.mark.field(103)
    @simulated
    async def test_waits_for_its_sources(self) -> None:
        """Until a source has told all it knows nothing is prepared for its pods."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare")
        await rig.prepare(wish(rig))
        await rig.kill()
        rig.gpu.works()
        await rig.begin(sources=())
        await rig.passes(60)
        waiting = rig.state("c1")
        await rig.loop.sync_source("control")
        await rig.passes(1)

        assert waiting == "bound_preparing"
        assert rig.state("c1") == "prepared"
        assert [fact.source for fact in rig.facts("source_synced")] == ["control", "control"]

    @pytest.mark.scenario("R13")
    @simulated
    async def test_two_voices_end_one_pod(self) -> None:
        """Two sources of the same end at once are one unprepare, without an error."""
        rig = await prepared()
        fact = f.UnprepareRequested(reason="deleted")
        gone = pod("p1").pod.ref.uid
        await asyncio.gather(*(rig.loop.end_pod(gone, fact) for _ in range(2)))
        await rig.passes(1)

        assert rig.gpu.count("unprepare") == 1
        assert rig.words().count("unprepare_requested") == 1
        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("R14")
    @simulated
    async def test_an_empty_log_unprepares_nothing(self) -> None:
        """A node that knows nothing ends an unknown pod without a call and without a fact."""
        rig = await Rig().start()
        before = rig.words()
        await rig.unprepare("p1")

        assert rig.words() == before
        assert rig.gpu.ledger == []

    @pytest.mark.field(106)
    @simulated
    async def test_an_empty_log_never_means_no_devices(self) -> None:
        """A pod that is known to nobody is prepared like a new one: no log is no evidence."""
        rig = await prepared()
        rig.storage.records.clear()
        await rig.restart(boot="boot-2")
        await rig.prepare(wish(rig))

        assert rig.gpu.count("prepare") == 2
        assert rig.state("c1") == "prepared"


class TestReboot:
    @pytest.mark.scenario("R04")
    @pytest.mark.field(19, 21)
    @pytest.mark.rule("R1")
    @simulated
    async def test_a_reboot_asks_each_driver_once(self) -> None:
        """After a reboot the claim needs its prepare; five requests cause exactly one call."""
        rig = await prepared(GPU, NIC)
        await rig.restart(boot="boot-2")
        await rig.passes(60)
        silent = (rig.state("c1"), rig.all_drivers[GPU].count("prepare"))
        for _ in range(5):
            await rig.prepare(wish(rig))

        assert silent == ("needs", 1)
        assert [d.count("prepare") for d in rig.all_drivers.values()] == [2, 2]
        assert rig.words("c1").count("reprepare_needed") == 1
        assert rig.facts("prepare_started")[-1].why == "reprepare"
        assert rig.state("c1") == "prepared"

    @pytest.mark.rule("R1")
    @simulated
    async def test_restarts_after_a_reboot_ask_no_more(self) -> None:
        """A reboot is counted by its boot id: further restarts in that boot void nothing."""
        rig = await prepared()
        await rig.restart(boot="boot-2")
        await rig.restart()
        await rig.prepare(wish(rig))
        await rig.restart()
        await rig.prepare(wish(rig))

        assert rig.gpu.count("prepare") == 2
        assert rig.words("c1").count("reprepare_needed") == 1

    @pytest.mark.rule("R1")
    @simulated
    async def test_a_kill_before_the_boot_is_noted_changes_nothing(self) -> None:
        """The first process of a boot dies at once: the next one still voids what is of before."""
        rig = await prepared()
        await rig.restart(boot="boot-2", sources=())
        rig.storage.records[:] = [
            data for data in rig.storage.records if b"reprepare_needed" not in data
        ]
        await rig.restart()
        await rig.passes(1)

        assert rig.state("c1") == "needs"

    @pytest.mark.scenario("R05")
    @pytest.mark.field(45)
    @pytest.mark.rule("R12")
    @simulated
    async def test_device_lists_never_grow(self) -> None:
        """Five reboots with a prepare each: the device list is as long as at first."""
        rig = await prepared()
        before = rig.devices("c1")
        for n in range(5):
            await rig.restart(boot=f"boot-{n + 2}")
            await rig.prepare(wish(rig))

        assert rig.gpu.count("prepare") == 6
        assert rig.devices("c1") == before

    @pytest.mark.rule("R1")
    @simulated
    async def test_a_boot_voids_an_open_prepare(self) -> None:
        """An intent of another boot is closed; what one driver answered in it counts no more."""
        rig = await Rig(GPU, NIC).start()
        rig.all_drivers[NIC].refuses("prepare")
        await rig.prepare(wish(rig))
        await rig.kill()
        rig.all_drivers[NIC].works()
        await rig.begin(boot="boot-2")
        await rig.passes(60)
        silent = rig.state("c1")
        await rig.prepare(wish(rig))

        assert silent == "bound"
        assert rig.all_drivers[GPU].count("prepare") == 2
        assert rig.state("c1") == "prepared"

    @simulated
    async def test_an_unprepare_goes_on(self) -> None:
        """A claim that is unpreparing only goes on unpreparing, in whatever boot."""
        rig = await prepared()
        rig.gpu.refuses("unprepare")
        await rig.unprepare("p1")
        await rig.kill()
        rig.gpu.works()
        await rig.begin(boot="boot-2")
        await rig.passes(1)

        assert rig.facts("reprepare_needed") == []
        assert rig.state("c1") == "unprepared"

    @pytest.mark.rule("R2")
    @simulated
    async def test_a_pod_that_left_is_not_prepared_again(self) -> None:
        """A pod that ends after the reboot is unprepared without a Prepare before."""
        rig = await prepared()
        await rig.restart(boot="boot-2")
        await rig.unprepare("p1")

        assert [method for method, _ in rig.gpu.ledger] == ["prepare", "unprepare"]
        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_a_shared_claim_is_prepared_for_the_first_that_asks(self) -> None:
        """After a reboot one of two pods is enough to prepare; the other one costs no call."""
        rig = await Rig().start()
        shared = claim("c1", f"{GPU}/gpu-0")
        for name in ("p1", "p2"):
            await rig.prepare(pod(name, shared))
        await rig.restart(boot="boot-2")
        await rig.prepare(pod("p2", shared))
        after_one = (rig.state("c1"), rig.gpu.count("prepare"))
        await rig.prepare(pod("p1", shared))

        assert after_one == ("prepared", 2)
        assert rig.gpu.count("prepare") == 2
        assert rig.facts("prepare_started")[-1].pod_uid == "p2"


class TestReplay:
    @pytest.mark.rule("R12")
    @simulated
    async def test_replay_gives_the_live_state(self) -> None:
        """The stored bytes alone give the state that the service has in memory."""
        rig = await prepared(GPU, NIC)
        rig.all_drivers[NIC].refuses("unprepare")
        await rig.unprepare("p1", passes_seconds=30)
        await rig.refused(pod("p2", claim("c1", f"{GPU}/dev-0", uid="u2")))

        assert rig.replayed().digest() == rig.node.digest()

    @pytest.mark.rule("R12")
    @simulated
    async def test_plan_drives_the_adapters_from_replay(self) -> None:
        """What is owed follows from the replayed state as from the live one."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare")
        await rig.prepare(wish(rig))
        (call,) = [step for step in plan(rig.replayed()) if isinstance(step, CallPrepare)]

        assert (call.driver, call.claims) == (GPU, (rig.claim("c1").uid,))

    @simulated
    async def test_a_half_written_request_is_abandoned(self) -> None:
        """A consumer whose request never reached the log leaves at the next start (rule 3)."""
        rig = await Rig().start()
        rig.log.cut = lambda record: record.word == "prepare_requested"
        task = asyncio.ensure_future(rig.loop.prepare_pod(wish(rig)))
        await rig.passes(1)
        task.cancel()
        await rig.restart()
        await rig.passes(1)

        assert [fact.reason for fact in rig.facts("consumer_left")] == ["abandoned"]
        assert rig.state("c1") == "unprepared"
        assert rig.gpu.ledger == []


class TestCauses:
    @simulated
    async def test_conclusions_name_what_they_follow_from(self) -> None:
        """Facts that nobody asked for name an earlier record as their cause, all the way down."""
        rig = await prepared(GPU, NIC)
        await rig.restart(boot="boot-2")
        await rig.prepare(wish(rig))
        await rig.unprepare("p1")
        records = rig.storage.decoded()
        seen: dict[str, str] = {}
        causes = {}
        for record in records:
            if record.cause:
                causes[record.word] = seen[record.cause]
            seen[record.id] = record.word

        assert len(seen) == len(records)
        assert causes == {
            "prepare_started": "prepare_requested",
            "driver_prepared": "prepare_started",
            "prepared": "driver_prepared",
            "reprepare_needed": "prepared",
            "consumer_left": "unprepare_requested",
            "unprepare_started": "consumer_left",
            "driver_unprepared": "unprepare_started",
            "unprepared": "driver_unprepared",
            "pod_closed": "unprepare_requested",
        }
