"""What operators and news of the API server do to claims: waive, replay, re-prepare, lost."""

from __future__ import annotations

import asyncio

import pytest
from tests.simulation.rig import Rig, allocation, claim, pod
from tests.simulation.virtual import simulated

from claimlet.engine.errors import NotFoundError, RefusedError
from claimlet.engine.ports import Prepared
from claimlet.events import facts as f
from claimlet.events.record import Draft
from claimlet.events.values import ClaimUid, DriverName, PreparedDevice

GPU = DriverName("gpu.example.com")
NIC = DriverName("nic.example.com")
C1 = ClaimUid("c1-uid")


async def prepared(*drivers: str) -> Rig:
    """Return a started node whose claim c1, on all *drivers*, is prepared for pod p1."""
    rig = await Rig(*(drivers or (GPU,))).start()
    await rig.prepare(pod("p1", claim("c1", *(f"{d}/dev-0" for d in rig.all_drivers))))
    return rig


async def owing(*drivers: str) -> Rig:
    """Return a node whose driver, the last of *drivers*, does not unprepare claim c1."""
    rig = await prepared(*drivers)
    list(rig.all_drivers.values())[-1].refuses("unprepare", "device busy")
    await rig.unprepare("p1")
    assert rig.state("c1") == "prepared_unpreparing"
    return rig


class TestWaive:
    @pytest.mark.field(4)
    @simulated
    async def test_ends_a_debt(self) -> None:
        """A waived debt ends the claim and its pod; who, why and the last error are recorded."""
        rig = await owing()
        await rig.loop.waive(C1, GPU, who="ops", why="card is gone")
        await rig.passes(1)
        (waiver,) = rig.node.waivers.values()

        assert rig.state("c1") == "unprepared"
        assert rig.node.pods == {}
        assert (waiver.who, waiver.why, waiver.last_error) == ("ops", "card is gone", "device busy")

    @simulated
    async def test_leaves_other_drivers_alone(self) -> None:
        """A waiver is for one driver; the others still have to say yes."""
        rig = await prepared(GPU, NIC)
        for driver in rig.all_drivers.values():
            driver.refuses("unprepare")
        await rig.unprepare("p1")
        await rig.loop.waive(C1, NIC, who="ops", why="gone")

        assert rig.state("c1") == "prepared_unpreparing"
        assert [debt.driver for debt in rig.claim("c1").debts] == [GPU]

    @simulated
    async def test_is_refused_while_a_pod_holds_the_claim(self) -> None:
        """Nobody waives under a running pod."""
        rig = await prepared()

        with pytest.raises(RefusedError, match="still used by ml/p1"):
            await rig.loop.waive(C1, GPU, who="ops", why="x")

    @simulated
    async def test_is_refused_without_a_debt(self) -> None:
        """A driver that owes nothing, and a claim that is not there, cannot be waived."""
        rig = await owing(GPU)

        with pytest.raises(RefusedError, match=f"owing: {GPU}") as refused:
            await rig.loop.waive(C1, NIC, who="ops", why="x")
        assert "claims describe ml/c1" in refused.value.hint
        with pytest.raises(NotFoundError):
            await rig.loop.waive(ClaimUid("c9"), GPU, who="ops", why="x")

    @simulated
    async def test_waits_for_a_call_in_flight(self) -> None:
        """A waiver closes no intent under a running call."""
        rig = await prepared()
        rig.gpu.hangs("unprepare", times=1)
        await rig.unprepare("p1")
        await rig.loop.waive(C1, GPU, who="ops", why="hangs")

        assert [w for w in rig.words("c1") if w in ("driver_failed", "debt_waived")] == [
            "driver_failed",
            "debt_waived",
        ]

    @simulated
    async def test_the_list_outlives_claim_and_process(self) -> None:
        """A waived debt stays listed after the claim is retired, and after a restart."""
        rig = await owing()
        await rig.loop.waive(C1, GPU, who="ops", why="gone")
        await rig.passes(700)
        await rig.restart()

        assert rig.state("c1") == "closed"
        assert list(rig.node.waivers) == [(C1, GPU)]

    @simulated
    async def test_an_operator_settles_it(self) -> None:
        """`settle` takes it off the list, once."""
        rig = await owing()
        await rig.loop.waive(C1, GPU, who="ops", why="gone")
        await rig.loop.settle(C1, GPU, who="ops", why="card replaced")

        assert rig.node.waivers == {}
        with pytest.raises(NotFoundError):
            await rig.loop.settle(C1, GPU, who="ops", why="again")

    @simulated
    async def test_the_drivers_own_yes_settles_it(self) -> None:
        """A later unprepare of that claim by that driver takes it off the list, too."""
        rig = await owing()
        await rig.loop.waive(C1, GPU, who="ops", why="gone")
        rig.gpu.works()
        await rig.prepare(pod("p2", claim("c1", f"{GPU}/dev-0")))
        between = len(rig.node.waivers)
        await rig.unprepare("p2")

        assert between == 1
        assert rig.node.waivers == {}

    @simulated
    async def test_an_impossible_waiver_is_no_waiver(self) -> None:
        """A stored waiver that could not follow makes its claim suspect and settles nothing."""
        rig = await prepared()
        fact = f.DebtWaived(driver=GPU, who="x", why="y")
        await rig.log.append([Draft(fact=fact, claim=rig.claim("c1").ref)])

        assert rig.claim("c1").suspect
        assert rig.node.waivers == {}


class TestReprepare:
    @pytest.mark.field(20)
    @simulated
    async def test_asks_all_drivers_again_once(self) -> None:
        """An operator's re-prepare asks every driver of the claim once more."""
        rig = await prepared(GPU, NIC)
        await rig.loop.reprepare(C1, actor="ops")
        await rig.passes(60)

        assert [d.count("prepare") for d in rig.all_drivers.values()] == [2, 2]
        assert rig.state("c1") == "prepared"
        assert rig.facts("reprepare_needed")[0].why == "operator"

    @simulated
    async def test_says_that_an_answer_changed(self) -> None:
        """An answer that differs from the last one of the stay is marked."""
        rig = await prepared()
        other = PreparedDevice(pool="node-a", device="dev-0", cdi_device_ids=(f"{GPU}/gpu=new",))
        answer = Prepared(devices=(other,))
        rig.gpu.answers("prepare", lambda claims: {c.uid: answer for c in claims})
        await rig.loop.reprepare(C1, actor="ops")
        await rig.passes(1)

        assert [fact.changed for fact in rig.facts("driver_prepared")] == [False, True]

    @simulated
    async def test_is_refused_where_nothing_is_prepared(self) -> None:
        """An unpreparing or ended claim cannot be prepared again."""
        rig = await owing()

        with pytest.raises(RefusedError, match="prepared_unpreparing") as refused:
            await rig.loop.reprepare(C1, actor="ops")
        assert "claims describe ml/c1" in refused.value.hint
        with pytest.raises(NotFoundError):
            await rig.loop.reprepare(ClaimUid("c9"), actor="ops")

    @pytest.mark.field(24)
    @simulated
    async def test_replays_a_driver(self) -> None:
        """A driver that lost its record is asked for each claim that it may hold, and no other."""
        rig = await Rig(GPU, NIC).start()
        for n in range(3):
            wish = pod(f"p{n}", claim(f"c{n}", f"{GPU}/gpu-{n}", reserved_for=[f"p{n}"]))
            await rig.prepare(wish)
        await rig.prepare(pod("p3", claim("c3", f"{NIC}/nic-0")))
        rig.gpu.held.clear()
        count = await rig.loop.replay_driver(GPU, actor="ops")
        await rig.passes(1)

        assert count == 3
        assert sorted(rig.gpu.held) == ["c0-uid", "c1-uid", "c2-uid"]
        assert rig.all_drivers[NIC].count("prepare") == 1
        assert {rig.state(f"c{n}") for n in range(4)} == {"prepared"}

    @simulated
    async def test_replays_no_claim_that_came_while_it_waited(self) -> None:
        """A claim whose first call is under way when a waiting replay is decided is left alone."""
        rig = await Rig(GPU, NIC).start()
        rig.gpu.is_slow("prepare", 5.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        replaying = asyncio.ensure_future(rig.loop.replay_driver(GPU, actor="ops"))
        await rig.passes(1)
        rig.all_drivers[NIC].is_slow("prepare", 10.0)
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-1", f"{NIC}/nic-0")))
        await rig.passes(60)

        assert await replaying == 1
        assert {rig.state("c1"), rig.state("c2")} == {"prepared"}
        assert [rig.claim(name).suspect for name in ("c1", "c2")] == ["", ""]
        assert rig.words("c1").count("reprepare_needed") == 1
        assert rig.words("c2").count("reprepare_needed") == 0

    @simulated
    async def test_replays_all_drivers_of_the_claims(self) -> None:
        """All drivers of those claims are asked; unpreparing claims are left to their unprepare."""
        rig = await prepared(GPU, NIC)
        rig.gpu.refuses("unprepare", only=["c2"])
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-2")))
        await rig.unprepare("p2")
        count = await rig.loop.replay_driver(GPU, actor="ops")
        await rig.passes(1)

        assert count == 1
        assert rig.all_drivers[NIC].count("prepare") == 2
        assert rig.state("c2") == "prepared_unpreparing"

    @simulated
    async def test_replays_nothing_for_a_driver_without_debts(self) -> None:
        """A registered driver without debts is no error; an unknown one is."""
        rig = await Rig().start()

        assert await rig.loop.replay_driver(GPU, actor="ops") == 0
        with pytest.raises(NotFoundError, match=NIC):
            await rig.loop.replay_driver(NIC, actor="ops")


class TestLostObjects:
    @pytest.mark.parametrize(
        ("how", "end", "words"),
        [
            ("deleted", "closed", ["unprepared", "deleted"]),
            ("deallocated", "generated", ["unprepared", "deallocated"]),
            ("reallocated", "generated", ["unprepared", "deallocated"]),
        ],
    )
    @pytest.mark.rule("R2")
    @simulated
    async def test_the_devices_stay_until_the_pod_leaves(
        self, how: str, end: str, words: list[str]
    ) -> None:
        """A lost object changes nothing for its pod; afterwards the log alone leads on."""
        rig = await prepared()
        await rig.loop.lose_object(C1, f.ObjectLost(how=how))  # type: ignore[arg-type]
        await rig.passes(60)
        held = (rig.state("c1"), len(rig.devices("c1")), rig.gpu.count("unprepare"))
        await rig.unprepare("p1")

        assert held == ("prepared", 1, 0)
        assert rig.state("c1") == end
        assert rig.words("c1")[-2:] == words

    @simulated
    async def test_takes_no_new_pod(self) -> None:
        """A lost claim takes no new consumer; its pod's other claims go on."""
        rig = await prepared()
        await rig.loop.lose_object(C1, f.ObjectLost(how="deleted"))

        assert "was lost (deleted)" in await rig.refused(pod("p2", claim("c1", f"{GPU}/dev-0")))

    @simulated
    async def test_joins_no_call(self) -> None:
        """A claim lost before it was prepared is not asked for again; the pod's other one is."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{GPU}/gpu-1")))
        await rig.loop.lose_object(C1, f.ObjectLost(how="deleted"))
        calls = len(rig.gpu.ledger)
        rig.gpu.works()
        await rig.passes(60)

        assert {names for _, names in rig.gpu.ledger[calls:]} == {("c2",)}
        assert (rig.state("c1"), rig.state("c2")) == ("bound_preparing", "prepared")
        await rig.unprepare("p1", passes_seconds=60)
        assert (rig.state("c1"), rig.state("c2")) == ("closed", "unprepared")
        assert rig.gpu.held == set()

    @simulated
    async def test_is_not_prepared_after_a_boot(self) -> None:
        """After a reboot a lost claim stays as it is until its pod leaves."""
        rig = await prepared()
        await rig.loop.lose_object(C1, f.ObjectLost(how="deallocated"))
        await rig.restart(boot="boot-2")
        await rig.passes(60)

        assert rig.state("c1") == "needs"
        assert rig.gpu.count("prepare") == 1

    @simulated
    async def test_is_recorded_once_and_only_where_held(self) -> None:
        """A second loss, and one of a claim that nobody holds, are no facts."""
        rig = await prepared()
        for how in ("deleted", "deallocated"):
            await rig.loop.lose_object(C1, f.ObjectLost(how=how))
        await rig.loop.lose_object(ClaimUid("c9"), f.ObjectLost(how="deleted"))

        assert [fact.how for fact in rig.facts("object_lost")] == ["deleted"]


class TestSuspect:
    async def suspect(self) -> Rig:
        """Return a node whose prepared claim c1 is suspect after a fact that cannot follow."""
        rig = await prepared()
        await rig.log.append([Draft(fact=f.Deallocated(), claim=rig.claim("c1").ref)])
        assert rig.claim("c1").suspect
        return rig

    @simulated
    async def test_calls_nobody(self) -> None:
        """A suspect claim is shown and gets no call, neither for a boot nor for its pod's end."""
        rig = await self.suspect()
        await rig.restart(boot="boot-2")
        await rig.unprepare("p1", passes_seconds=600)

        assert rig.gpu.ledger == [("prepare", ("c1",))]
        assert rig.state("c1") == "prepared"

    @simulated
    async def test_takes_no_pod(self) -> None:
        """A suspect claim refuses pods, under its own UID and under another one."""
        rig = await self.suspect()

        assert "is suspect" in await rig.refused(pod("p2", claim("c1", f"{GPU}/dev-0")))
        newer = pod("p2", claim("c1", f"{GPU}/dev-1", uid="u2"))
        assert "under another UID" in await rig.refused(newer)

    @simulated
    async def test_cannot_be_prepared_again(self) -> None:
        """An operator's re-prepare, and a driver's replay, leave it alone."""
        rig = await self.suspect()

        with pytest.raises(RefusedError, match="suspect") as refused:
            await rig.loop.reprepare(C1, actor="ops")
        assert "claims describe ml/c1" in refused.value.hint
        assert await rig.loop.replay_driver(GPU, actor="ops") == 0

    @simulated
    async def test_does_not_stop_the_others(self) -> None:
        """Other claims work on; only one that needs its device waits (rule 13)."""
        rig = await self.suspect()
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/dev-1")))
        await rig.prepare(pod("p3", claim("c3", f"{GPU}/dev-0")))

        assert (rig.state("c2"), rig.state("c3")) == ("prepared", "bound")

    @simulated
    async def test_may_still_hold_what_its_phase_does_not_say(self) -> None:
        """A suspect claim that looks unprepared keeps others from its device, too."""
        rig = await prepared()
        await rig.unprepare("p1")
        await rig.log.append([Draft(fact=f.Prepared(), claim=rig.claim("c1").ref)])
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/dev-0")))

        assert (rig.state("c1"), rig.state("c2")) == ("unprepared", "bound")

    @simulated
    async def test_a_restoration_brings_it_back(self) -> None:
        """After `restored` its drivers are asked again, for the request that stands."""
        rig = await self.suspect()
        held = rig.claim("c1")
        assert held.allocation is not None
        restored = f.Restored(
            allocation=held.allocation, consumers=(held.consumers[0].pod,), debts=(GPU,)
        )
        await rig.log.append([Draft(fact=restored, claim=held.ref)])
        await rig.passes(1)
        state = rig.state("c1")
        await rig.unprepare("p1")

        assert state == "prepared"
        assert rig.gpu.count("prepare") == 2
        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_an_unknown_claim_can_be_restored(self) -> None:
        """A claim that fell into a gap as a whole is unprepared after its restoration."""
        rig = await Rig().start()
        made = claim("c1", f"{GPU}/gpu-0")
        rig.gpu.held.add("c1-uid")
        restored = f.Restored(allocation=allocation(f"{GPU}/gpu-0"), debts=(GPU,))
        await rig.log.append([Draft(fact=restored, claim=made.ref)])
        await rig.passes(100)

        assert rig.gpu.held == set()
        assert rig.state("c1") == "unprepared"


class TestRetirement:
    @simulated
    async def test_an_unprepared_claim_is_retired(self) -> None:
        """Ten minutes after unprepared, and not before, the claim is closed and forgotten."""
        rig = await prepared()
        await rig.unprepare("p1")
        await rig.passes(598)
        before = rig.state("c1")
        await rig.passes(4)

        assert before == "unprepared"
        assert rig.node.claims == {}
        assert rig.words("c1")[-1] == "retired"

    @simulated
    async def test_a_claim_that_is_bound_again_is_not(self) -> None:
        """A new stay ends the wait; the next one starts with its own end."""
        rig = await prepared()
        await rig.unprepare("p1", passes_seconds=300)
        await rig.prepare(pod("p2", claim("c1", f"{GPU}/dev-0")), passes_seconds=900)

        assert rig.state("c1") == "prepared"

    @simulated
    async def test_starts_anew_after_its_retirement(self) -> None:
        """A later pod of that UID starts from absent."""
        rig = await prepared()
        await rig.unprepare("p1", passes_seconds=700)
        await rig.prepare(pod("p2", claim("c1", f"{GPU}/dev-0")))

        assert rig.words("c1").count("generated") == 2
        assert rig.state("c1") == "prepared"

    @simulated
    async def test_forgets_the_parameters(self) -> None:
        """Opaque parameters belong to one stay."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/dev-0", config=b'{"a":1}')))
        held = dict(rig.node.configs)
        await rig.unprepare("p1")

        assert held == {C1: b'{"a":1}'}
        assert rig.node.configs == {}
