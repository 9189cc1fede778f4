"""Unpreparing: what ends a claim's stay, from the log alone, until every driver has said yes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.simulation.driver import FakeDriver
from tests.simulation.rig import Rig, claim, pod
from tests.simulation.virtual import simulated

from claimlet.engine.ports import Claim
from claimlet.events import facts as f
from claimlet.events.values import PodUid

GPU = "gpu.example.com"
NIC = "nic.example.com"


async def prepared(*drivers: str, pods: Sequence[str] = ("p1",)) -> Rig:
    """Return a started node whose claim c1, on all *drivers*, is prepared for *pods*."""
    rig = await Rig(*(drivers or (GPU,))).start()
    shared = claim("c1", *(f"{d}/dev-0" for d in rig.all_drivers), reserved_for=pods)
    for name in pods:
        await rig.prepare(pod(name, shared))
    assert rig.state("c1") == "prepared"
    return rig


class TestLastPod:
    @pytest.mark.scenario("U01")
    @pytest.mark.rule("R2")
    @simulated
    async def test_the_last_pod_unprepares(self) -> None:
        """When the last pod leaves, each driver is called once and the claim is unprepared."""
        rig = await prepared()
        await rig.unprepare("p1")

        assert rig.gpu.ledger == [("prepare", ("c1",)), ("unprepare", ("c1",))]
        assert rig.state("c1") == "unprepared"
        assert rig.words("c1")[-4:] == [
            "consumer_left",
            "unprepare_started",
            "driver_unprepared",
            "unprepared",
        ]
        assert rig.node.pods == {}

    @pytest.mark.scenario("U02")
    @simulated
    async def test_other_pods_keep_the_claim(self) -> None:
        """A pod that leaves while others remain costs no call; only it is gone."""
        rig = await prepared(pods=("p1", "p2", "p3"))
        await rig.unprepare("p2")

        assert rig.gpu.count("unprepare") == 0
        assert rig.consumers("c1") == ["p1", "p3"]
        assert rig.state("c1") == "prepared"

    @pytest.mark.scenario("U03")
    @pytest.mark.field(26)
    @simulated
    async def test_a_stranger_unprepares_nothing(self) -> None:
        """A pod that was refused, or never seen, takes nothing from those that hold the claim."""
        rig = await prepared()
        await rig.refused(pod("p2", claim("c1", f"{GPU}/dev-0", reserved_for=())))
        await rig.unprepare("p2", "p9")

        assert rig.gpu.count("unprepare") == 0
        assert rig.consumers("c1") == ["p1"]

    @pytest.mark.scenario("U16")
    @simulated
    async def test_a_second_time_does_nothing(self) -> None:
        """Unprepare called twice is one unprepare: no second call and no second fact."""
        rig = await prepared()
        await rig.unprepare("p1")
        before = rig.words()
        await rig.unprepare("p1")

        assert rig.words() == before
        assert rig.gpu.count("unprepare") == 1

    @pytest.mark.scenario("U16")
    @simulated
    async def test_twice_while_the_driver_works(self) -> None:
        """A second word while the first is being done changes nothing."""
        rig = await prepared()
        rig.gpu.is_slow("unprepare", 1.0)
        await rig.unprepare("p1", "p1")
        await rig.passes(2)

        assert rig.words().count("unprepare_requested") == 1
        assert rig.gpu.count("unprepare") == 1

    @pytest.mark.scenario("U14")
    @pytest.mark.field(13, 15)
    @simulated
    async def test_a_failed_prepare_is_unprepared_too(self) -> None:
        """A claim whose prepare never succeeded is unprepared: the driver may have done half."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.unprepare("p1")

        assert rig.gpu.count("unprepare") == 1
        assert rig.state("c1") == "unprepared"
        assert rig.owed() == ()

    @simulated
    async def test_without_a_call_there_is_no_debt(self) -> None:
        """A claim that no prepare call went out for needs no driver to end."""
        rig = await Rig().start(sources=())
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        waiting = rig.state("c1")
        await rig.unprepare("p1")

        assert waiting == "bound"
        assert rig.gpu.ledger == []
        assert rig.state("c1") == "unprepared"

    @pytest.mark.field(6)
    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    @simulated
    async def test_a_finished_pod_is_unprepared(self, phase: str) -> None:
        """A pod whose containers have ended for good gives its claims back."""
        rig = await prepared()
        await rig.loop.end_pod(PodUid("p1"), f.PodFinished(phase=phase))  # type: ignore[arg-type]
        await rig.passes(1)

        assert rig.state("c1") == "unprepared"
        assert rig.facts("consumer_left")[0].reason == phase


class TestFaults:
    @pytest.mark.scenario("U04", "U19")
    @pytest.mark.field(4)
    @simulated
    async def test_an_absent_driver_keeps_the_debt(self) -> None:
        """A driver that stays away keeps claim and pod; the debt is visible with its reason."""
        rig = await prepared()
        rig.leave(GPU)
        await rig.unprepare("p1", passes_seconds=3600)
        failure = rig.claim("c1").failure(GPU)
        held = (rig.state("c1"), list(rig.node.pods))
        rig.arrive(GPU)
        await rig.passes(1)

        assert held == ("prepared_unpreparing", ["p1"])
        assert failure is not None
        assert (failure.outcome, failure.code) == ("unreachable", "not_registered")
        assert failure.attempts > 30
        assert rig.state("c1") == "unprepared"
        assert rig.node.pods == {}

    @pytest.mark.scenario("U05")
    @simulated
    async def test_a_deadline_is_retried(self) -> None:
        """A driver that hangs keeps the claim until a later call succeeds."""
        rig = await prepared()
        rig.gpu.hangs("unprepare", times=1)
        await rig.unprepare("p1", passes_seconds=44)
        held = rig.state("c1")
        await rig.passes(10)

        assert held == "prepared_unpreparing"
        assert rig.facts("driver_failed")[0].code == "DEADLINE_EXCEEDED"
        assert rig.gpu.count("unprepare") == 2
        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("U06")
    @simulated
    async def test_a_missing_answer_is_a_failure(self) -> None:
        """An empty answer unprepares nothing."""
        rig = await prepared()
        rig.gpu.answers("unprepare", lambda _: {})
        await rig.unprepare("p1")

        assert rig.state("c1") == "prepared_unpreparing"
        assert rig.facts("driver_failed")[0].code == "missing_answer"

    @pytest.mark.scenario("U07")
    @simulated
    async def test_an_empty_entry_means_done(self) -> None:
        """An entry without an error is a success."""
        rig = await prepared()
        rig.gpu.answers("unprepare", lambda claims: {c.uid: None for c in claims})
        await rig.unprepare("p1")

        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("U08")
    @pytest.mark.field(8)
    @simulated
    async def test_an_error_is_never_a_success(self) -> None:
        """Two errors and then a yes: two failures with the driver's text, then unprepared."""
        rig = await prepared()
        rig.gpu.refuses("unprepare", "device busy", times=2)
        await rig.unprepare("p1", passes_seconds=5)

        assert rig.words("c1")[-5:] == [
            "unprepare_started",
            "driver_failed",
            "driver_failed",
            "driver_unprepared",
            "unprepared",
        ]
        assert {fact.text for fact in rig.facts("driver_failed")} == {"device busy"}

    @pytest.mark.scenario("U09")
    @simulated
    async def test_each_claim_is_judged_alone(self) -> None:
        """
        One of two claims fails: the other one is done, and only the failed one is asked again.

        Upstream removes neither and calls both again.
        """
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{GPU}/gpu-1")))
        rig.gpu.refuses("unprepare", times=1, only=["c2"])
        await rig.unprepare("p1")
        between = (rig.state("c1"), rig.state("c2"), list(rig.node.pods))
        await rig.passes(2)

        assert between == ("unprepared", "prepared_unpreparing", ["p1"])
        assert rig.gpu.batches("unprepare") == [("c1", "c2"), ("c2",)]
        assert rig.state("c2") == "unprepared"

    @pytest.mark.scenario("U10")
    @simulated
    async def test_each_driver_is_judged_alone(self) -> None:
        """
        Driver B fails: A is not called again, and the claim ends only when both have said yes.

        Upstream calls A again in every round.
        """
        rig = await prepared(GPU, NIC)
        rig.all_drivers[NIC].refuses("unprepare", times=2)
        await rig.unprepare("p1")
        between = rig.state("c1")
        await rig.passes(5)

        assert between == "prepared_unpreparing"
        assert [d.count("unprepare") for d in rig.all_drivers.values()] == [1, 3]
        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_an_unasked_answer_is_recorded(self) -> None:
        """An answer for a claim that was not asked for is a protocol violation here, too."""
        rig = await prepared()
        rig.gpu.answers("unprepare", lambda claims: {c.uid: None for c in claims} | {"u9": None})
        await rig.unprepare("p1")

        assert [a.kind for a in rig.facts("anomaly_found")] == ["protocol_violation"]
        assert rig.state("c1") == "unprepared"

    @pytest.mark.parametrize("answer", [None, [], {"c1-uid": 7}, {"c1-uid": ""}])
    @simulated
    async def test_survives_an_adapter_that_answers_nonsense(self, answer: object) -> None:
        """Whatever an adapter returns is at most a failure; it never counts as a yes."""
        rig = await prepared()
        rig.gpu.answers("unprepare", lambda _: answer)
        await rig.unprepare("p1", passes_seconds=2)
        held = rig.state("c1")
        rig.gpu.works()
        await rig.passes(5)

        assert held == "prepared_unpreparing"
        assert rig.state("c1") == "unprepared"


class TestFromTheLog:
    @pytest.mark.scenario("U11")
    @pytest.mark.field(2)
    @pytest.mark.rule("R2")
    @simulated
    async def test_the_pods_status_is_not_asked(self) -> None:
        """A pod status that was wiped changes nothing: the claims of the log are unprepared."""
        rig = await Rig(GPU, NIC).start()
        rig.all_drivers[NIC].refuses("prepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{NIC}/nic-0")))
        await rig.prepare(pod("p1"))
        await rig.unprepare("p1")

        assert rig.all_drivers[GPU].batches("unprepare") == [("c1",)]
        assert rig.all_drivers[NIC].batches("unprepare") == [("c2",)]

    @pytest.mark.scenario("U12")
    @pytest.mark.field(1)
    @pytest.mark.rule("R2", "R10")
    @simulated
    async def test_needs_neither_pod_nor_claim_object(self) -> None:
        """Pod and claim are gone from the API: the driver gets what the log recorded at prepare."""
        rig = await Rig().start()
        made = claim("c1", f"{GPU}/gpu-0", config=b'{"mode":"fast"}')
        await rig.prepare(pod("p1", made))
        await rig.loop.lose_object(made.ref.uid, f.ObjectLost(how="deleted"))
        await rig.restart()
        await rig.unprepare("p1")

        (_, (asked,)), (_, (back,)) = rig.gpu.calls
        assert isinstance(back, Claim)
        assert back.ref == made.ref
        assert (back.allocation, back.config) == (asked.allocation, asked.config)
        assert back.config == b'{"mode":"fast"}'
        assert back.devices == rig.facts("driver_prepared")[0].devices
        assert rig.state("c1") == "closed"

    @pytest.mark.scenario("U13")
    @simulated
    async def test_a_new_pod_of_the_same_names_waits(self) -> None:
        """Deleted and made anew at once: the new pod is refused until the old claim is free."""
        rig = await prepared()
        rig.gpu.is_slow("unprepare", 5.0)
        await rig.unprepare("p1")
        newer = pod("p2", claim("c1", f"{GPU}/dev-0", uid="u2"))
        early = await rig.refused(newer)
        await rig.passes(10)
        await rig.prepare(newer)

        assert "must be unprepared first" in early
        assert rig.state("c1") == "prepared"
        assert rig.gpu.held == {"u2"}

    @pytest.mark.field(5)
    @simulated
    async def test_many_pods_end_at_once(self) -> None:
        """Fifty pods that end at once are unprepared within two seconds, not by a slow round."""
        rig = await Rig().start()
        rig.gpu.delay_seconds = 0.005
        names = [f"pod-{n}" for n in range(50)]
        for n, name in enumerate(names):
            wish = pod(name, claim(f"c{n}", f"{GPU}/gpu-{n}", reserved_for=[name]))
            await rig.prepare(wish, passes_seconds=0)
        await rig.passes(2)
        await rig.unprepare(*names, passes_seconds=2)

        assert {rig.state(f"c{n}") for n in range(50)} == {"unprepared"}


async def answers_later(driver: FakeDriver, method: str, claims: Sequence[Claim]) -> Any:
    """Do what was asked at once, and answer after a while."""
    answer = driver.usual(method, claims)
    await asyncio.sleep(20)
    return answer


class TestLateEffects:
    @simulated
    async def test_a_late_prepare_is_undone(self) -> None:
        """A prepare that lost its connection may still act: unprepare is made again after it."""
        rig = await Rig().start()
        rig.gpu.acts_late("prepare", 20.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        rig.gpu.refuses("prepare")
        await rig.unprepare("p1", passes_seconds=5)
        early = (rig.state("c1"), [fact.final for fact in rig.facts("driver_unprepared")])
        await rig.passes(60)

        assert early == ("bound_unpreparing", [False])
        assert [fact.final for fact in rig.facts("driver_unprepared")] == [False, True]
        assert rig.state("c1") == "unprepared"
        assert rig.gpu.held == set()

    @simulated
    async def test_an_answer_that_is_recorded_late_is_as_early_as_its_call(self) -> None:
        """What counts is when unprepare was sent, not when a log that was away took the answer."""
        rig = await Rig().start()
        rig.gpu.acts_late("prepare", 20.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        rig.gpu.refuses("prepare")
        rig.gpu.is_slow("unprepare", 1.0)
        await rig.unprepare("p1", passes_seconds=0.5)
        # A fact that waits for the log holds the claim, so that the answer has to wait for it.
        losing = asyncio.ensure_future(
            rig.loop.lose_object(rig.claim("c1").uid, f.ObjectLost(how="deleted"))
        )
        await asyncio.sleep(0)
        rig.log.is_down = True
        await rig.passes(50)
        rig.log.is_down = False
        rig.loop.wake()
        await rig.passes(60)
        await asyncio.gather(losing, return_exceptions=True)

        assert [fact.final for fact in rig.facts("driver_unprepared")] == [False, True]
        assert rig.state("c1") == "closed"
        assert rig.gpu.held == set()

    @simulated
    async def test_an_answer_from_after_the_deadline_is_as_early_as_its_call(self) -> None:
        """An unprepare that was under way when the late prepare acted is made again."""
        rig = await Rig().start()
        rig.gpu.acts_late("prepare", 40.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        rig.gpu.refuses("prepare")
        await rig.passes(30)
        rig.gpu.fault = lambda method, claims: answers_later(rig.gpu, method, claims)
        await rig.unprepare("p1", passes_seconds=30)
        rig.gpu.works()
        await rig.passes(60)

        assert [fact.final for fact in rig.facts("driver_unprepared")] == [False, True]
        assert rig.gpu.held == set()

    @simulated
    async def test_a_later_yes_does_not_settle_an_earlier_call(self) -> None:
        """The first attempt may act even when the second one succeeded; unprepare allows for it."""
        rig = await Rig().start()
        rig.gpu.acts_late("prepare", 20.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=2)
        assert rig.state("c1") == "prepared"
        await rig.unprepare("p1", passes_seconds=60)

        assert [fact.final for fact in rig.facts("driver_unprepared")] == [False, True]
        assert rig.gpu.held == set()

    @simulated
    async def test_an_earlier_call_is_remembered_across_a_restart(self) -> None:
        """The same with a restart in between: one full deadline passes before the yes is final."""
        rig = await Rig().start()
        rig.gpu.acts_late("prepare", 20.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=2)
        await rig.restart()
        await rig.unprepare("p1", passes_seconds=60)

        assert [fact.final for fact in rig.facts("driver_unprepared")] == [False, True]
        assert rig.gpu.held == set()

    @simulated
    async def test_an_operators_reprepare_does_not_forget_it(self) -> None:
        """A voided operation leaves its lost call behind, and that may still act."""
        rig = await Rig().start()
        rig.gpu.acts_late("prepare", 20.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.loop.reprepare(rig.claim("c1").uid, actor="test")
        await rig.unprepare("p1", passes_seconds=60)

        assert rig.facts("driver_unprepared")[-1].final
        assert rig.gpu.held == set()

    @simulated
    async def test_a_killed_call_may_still_act(self) -> None:
        """A prepare cut by a kill counts as acting for one deadline after the start."""
        rig = await Rig().start()
        rig.gpu.hangs("prepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.kill()
        rig.gpu.works()
        rig.gpu.refuses("prepare")
        await rig.begin()
        await rig.unprepare("p1", passes_seconds=40)
        early = rig.state("c1")
        await rig.passes(10)

        assert early == "bound_unpreparing"
        assert [fact.final for fact in rig.facts("driver_unprepared")] == [False, True]
        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_a_reboot_ends_every_late_effect(self) -> None:
        """Nothing of another boot can act: the first yes after a reboot is final."""
        rig = await Rig().start()
        rig.gpu.acts_late("prepare", 20.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.restart(boot="boot-2")
        await rig.unprepare("p1", passes_seconds=1)

        assert [fact.final for fact in rig.facts("driver_unprepared")] == [True]
        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_a_recorded_answer_ends_its_call(self) -> None:
        """A prepared claim is unprepared with one final yes, also after a restart."""
        rig = await prepared()
        await rig.restart()
        await rig.unprepare("p1", passes_seconds=1)

        assert [fact.final for fact in rig.facts("driver_unprepared")] == [True]
