"""Preparing a pod's claims: which calls go out, and what becomes of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.simulation.rig import Rig, claim, device, pod
from tests.simulation.virtual import simulated

from claimlet.engine.ports import CdiFault, Claim, Prepared
from claimlet.events.values import PreparedDevice

GPU = "gpu.example.com"
NIC = "nic.example.com"


class TestCalls:
    @pytest.mark.scenario("P01")
    @simulated
    async def test_prepares_a_fresh_claim(self) -> None:
        """A fresh claim costs one call; pod, devices and the state are recorded in order."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))

        assert rig.gpu.ledger == [("prepare", ("c1",))]
        assert rig.state("c1") == "prepared"
        assert rig.consumers("c1") == ["p1"]
        assert rig.devices("c1") == [f"{GPU}/gpu=c1-uid-gpu-0"]
        assert rig.words("c1") == [
            "generated",
            "bound",
            "prepare_started",
            "driver_prepared",
            "prepared",
        ]

    @pytest.mark.scenario("P02")
    @pytest.mark.field(35)
    @simulated
    async def test_asks_once_for_the_same_pod(self) -> None:
        """The same pod again costs no call and no fact, and does not spoil its unprepare."""
        rig = await Rig().start()
        wish = pod("p1", claim("c1", f"{GPU}/gpu-0"))
        await rig.prepare(wish)
        before = rig.words()
        await rig.prepare(wish)
        await rig.prepare(wish)

        assert rig.words() == before
        assert rig.gpu.count("prepare") == 1
        await rig.unprepare("p1")
        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("P08")
    @pytest.mark.rule("R3")
    @simulated
    async def test_puts_a_pods_claims_into_one_call(self) -> None:
        """Three claims of one pod and one driver go out in exactly one request."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", *(claim(f"c{n}", f"{GPU}/gpu-{n}") for n in range(3))))

        assert rig.gpu.batches("prepare") == [("c0", "c1", "c2")]
        assert {rig.state(f"c{n}") for n in range(3)} == {"prepared"}

    @pytest.mark.scenario("P09")
    @pytest.mark.rule("R11")
    @simulated
    async def test_calls_each_driver_of_a_claim(self) -> None:
        """A claim of two drivers costs one call each; their device lists stay apart."""
        rig = await Rig(GPU, NIC).start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0", f"{NIC}/nic-0")))

        assert [d.count("prepare") for d in rig.all_drivers.values()] == [1, 1]
        assert rig.devices("c1", GPU) == [f"{GPU}/gpu=c1-uid-gpu-0"]
        assert rig.devices("c1", NIC) == [f"{NIC}/gpu=c1-uid-nic-0"]

    @pytest.mark.field(44)
    @pytest.mark.rule("R3")
    @simulated
    async def test_asks_a_driver_only_for_its_claims(self) -> None:
        """A driver gets the claims of the pod that have a device of its own, and no others."""
        rig = await Rig(GPU, NIC).start()
        both = claim("c1", f"{GPU}/gpu-0", f"{NIC}/nic-0")
        await rig.prepare(pod("p1", both, claim("c2", f"{GPU}/gpu-1")))

        assert rig.all_drivers[GPU].batches("prepare") == [("c1", "c2")]
        assert rig.all_drivers[NIC].batches("prepare") == [("c1",)]

    @simulated
    async def test_calls_the_drivers_of_a_pod_at_the_same_time(self) -> None:
        """Two drivers that take a second each take one second together."""
        rig = await Rig(GPU, NIC).start()
        for driver in rig.all_drivers.values():
            driver.is_slow("prepare", 1.0)
        await rig.prepare(
            pod("p1", claim("c1", f"{GPU}/gpu-0", f"{NIC}/nic-0")), passes_seconds=1.1
        )

        assert rig.state("c1") == "prepared"

    @pytest.mark.scenario("P12")
    @simulated
    async def test_calls_only_for_the_new_claim_of_a_second_pod(self) -> None:
        """A second pod with a prepared claim and a new one costs a call for the new one only."""
        rig = await Rig().start()
        shared, fresh = claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{GPU}/gpu-1")
        await rig.prepare(pod("p1", shared))
        await rig.prepare(pod("p2", shared, fresh))

        assert rig.gpu.batches("prepare") == [("c1",), ("c2",)]
        assert rig.consumers("c1") == ["p1", "p2"]
        assert rig.state("c2") == "prepared"

    @pytest.mark.scenario("P13")
    @simulated
    async def test_the_order_of_claims_does_not_matter(self) -> None:
        """The same with the new claim first: a settled claim never ends the loop."""
        rig = await Rig().start()
        shared, fresh = claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{GPU}/gpu-1")
        await rig.prepare(pod("p1", shared))
        await rig.prepare(pod("p2", fresh, shared))

        assert rig.gpu.batches("prepare") == [("c1",), ("c2",)]
        assert rig.consumers("c1") == ["p1", "p2"]
        assert rig.state("c2") == "prepared"

    @pytest.mark.scenario("P24")
    @simulated
    async def test_two_pods_share_one_prepare(self) -> None:
        """Two pods that ask for an unprepared claim at once cause one call (upstream: two)."""
        rig = await Rig().start()
        shared = claim("c1", f"{GPU}/gpu-0")
        await asyncio.gather(
            rig.loop.prepare_pod(pod("p1", shared)), rig.loop.prepare_pod(pod("p2", shared))
        )
        await rig.passes(0.2)

        assert rig.gpu.count("prepare") == 1
        assert rig.consumers("c1") == ["p1", "p2"]
        assert rig.state("c1") == "prepared"

    @pytest.mark.scenario("P25")
    @simulated
    async def test_thirty_pods_at_once(self) -> None:
        """Thirty pods that come and go side by side leave nothing behind."""
        rig = await Rig().start()

        async def live(n: int) -> None:
            reserved = [f"pod-{n}"]
            wish = pod(f"pod-{n}", claim(f"c{n}", f"{GPU}/gpu-{n}", reserved_for=reserved))
            await rig.loop.prepare_pod(wish)
            await rig.loop.wait_until(lambda: rig.state(f"c{n}") == "prepared")
            await rig.unprepare(f"pod-{n}", passes_seconds=0)
            await rig.loop.wait_until(lambda: rig.state(f"c{n}") == "unprepared")

        await asyncio.gather(*(live(n) for n in range(30)))
        await rig.passes(1)

        assert rig.gpu.held == set()
        assert rig.node.pods == {}
        assert rig.owed() == ()

    @pytest.mark.scenario("P28")
    @simulated
    async def test_takes_a_pod_that_came_while_it_was_down(self) -> None:
        """A pod that was made while the service was down is prepared when its source offers it."""
        rig = await Rig().start()
        await rig.restart()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))

        assert rig.state("c1") == "prepared"


class TestAnswers:
    @pytest.mark.scenario("P03")
    @simulated
    async def test_takes_an_answer_without_devices(self) -> None:
        """A claim answered with no devices at all is prepared, with an empty list."""
        rig = await Rig().start()
        rig.gpu.answers("prepare", lambda claims: {c.uid: Prepared() for c in claims})
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))

        assert rig.state("c1") == "prepared"
        assert rig.devices("c1") == []

    @pytest.mark.scenario("P04")
    @simulated
    async def test_a_missing_answer_is_a_failure(self) -> None:
        """An empty answer fails every claim of the call as `invalid`."""
        rig = await Rig().start()
        rig.gpu.answers("prepare", lambda _: {})
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))

        failure = rig.claim("c1").failure(GPU)
        assert rig.state("c1") == "bound_preparing"
        assert failure is not None
        assert (failure.outcome, failure.code) == ("invalid", "missing_answer")

    @pytest.mark.scenario("P05")
    @pytest.mark.field(42)
    @simulated
    async def test_an_unasked_answer_is_recorded(self) -> None:
        """
        An answer for an unasked claim is a protocol violation and changes nothing else.

        Upstream fails the whole pod; here the claims that were answered keep their answers.
        """
        rig = await Rig().start()

        def answer(claims: Sequence[Claim]) -> dict[str, Any]:
            first = next(c for c in claims if c.ref.name == "c1")
            return {first.uid: rig.gpu.prepared(first), "u9": Prepared()}

        rig.gpu.answers("prepare", answer)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{GPU}/gpu-1")))

        failure = rig.claim("c2").failure(GPU)
        assert rig.claim("c1").answer(GPU) is not None
        assert failure is not None
        assert failure.code == "missing_answer"
        assert [a.kind for a in rig.facts("anomaly_found")] == ["protocol_violation"]
        assert "u9" in rig.facts("anomaly_found")[0].text
        assert "u9" not in rig.node.claims

    @pytest.mark.scenario("P06")
    @pytest.mark.field(41)
    @simulated
    async def test_keeps_the_drivers_own_words(self) -> None:
        """A claim's error keeps the driver's text; the claim stays unprepared."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare", "no such device: gpu-0")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))

        (failed,) = rig.facts("driver_failed")
        assert (failed.driver, failed.outcome, failed.text) == (
            GPU,
            "refused",
            "no such device: gpu-0",
        )
        assert rig.state("c1") == "bound_preparing"

    @pytest.mark.scenario("P07")
    @simulated
    async def test_a_deadline_is_an_outcome(self) -> None:
        """A driver that hangs costs one call of 45 s, recorded with its code; it is asked again."""
        rig = await Rig().start()
        rig.gpu.hangs("prepare", times=1)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=45.2)
        failure = rig.claim("c1").failure(GPU)
        await rig.passes(1)

        assert failure is not None
        assert (failure.outcome, failure.code) == ("unknown", "DEADLINE_EXCEEDED")
        assert rig.gpu.count("prepare") == 2
        assert rig.state("c1") == "prepared"

    @simulated
    async def test_cuts_off_an_adapter_that_keeps_no_deadline(self) -> None:
        """An adapter that ignores its timeout is cut off; teardown is never stuck on it."""
        rig = await Rig().start()

        async def never(*_: Any, **__: Any) -> Any:
            await asyncio.get_running_loop().create_future()

        rig.gpu.prepare = never  # type: ignore[method-assign]
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.unprepare("p1", passes_seconds=200)

        assert rig.state("c1") == "unprepared"

    @pytest.mark.scenario("P15")
    @pytest.mark.rule("R10")
    @simulated
    async def test_keeps_share_ids(self) -> None:
        """A share id is in the state, in the log and in what unprepare passes back."""
        rig = await Rig().start()
        shared = device(f"{GPU}/gpu-0", share_id="share-1")
        await rig.prepare(pod("p1", claim("c1", shared)))
        answer = rig.claim("c1").answer(GPU)
        await rig.unprepare("p1")

        assert answer is not None
        assert answer.devices[0].share_id == "share-1"
        assert rig.facts("driver_prepared")[0].devices[0].share_id == "share-1"
        _, (back,) = rig.gpu.calls[-1]
        assert back.devices[0].share_id == "share-1"
        assert back.allocation.devices[0].share_id == "share-1"

    @pytest.mark.scenario("P17")
    @simulated
    async def test_the_order_of_answers_does_not_matter(self) -> None:
        """Answers and drivers in another order give the same claims."""
        ends = []
        for order in (1, -1):
            rig = await Rig(*[GPU, NIC][::order]).start()
            for driver in rig.all_drivers.values():
                driver.delay_seconds = 0.001 if driver.driver == [GPU, NIC][::order][0] else 0.1
            devices = (f"{GPU}/gpu-0", f"{NIC}/nic-0")
            await rig.prepare(pod("p1", claim("c1", *devices), claim("c2", f"{GPU}/gpu-1")))
            ends.append(
                {
                    (n, d): (rig.state(n), rig.devices(n, d))
                    for n in ("c1", "c2")
                    for d in (GPU, NIC)
                }
            )
            await rig.kill()

        assert ends[0] == ends[1]

    @pytest.mark.field(20)
    @simulated
    async def test_takes_unusable_cdi_ids_and_says_so(self) -> None:
        """Ids that no container could use are accepted, and recorded once per answer and fault."""
        rig = await Rig().start()
        ids = tuple(f"{GPU}/gpu={n}" for n in range(7))
        device = PreparedDevice(pool="node-a", device="gpu-0", cdi_device_ids=ids)
        faults: dict[str, CdiFault] = dict.fromkeys(ids[:6], "cdi_unresolved")
        faults |= {ids[6]: "cdi_conflict", f"{GPU}/gpu=other": "cdi_conflict"}
        answer = Prepared(devices=(device,), cdi_faults=faults)
        rig.gpu.answers("prepare", lambda claims: {c.uid: answer for c in claims})
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        found = {a.kind: a.text for a in rig.facts("anomaly_found")}

        assert rig.state("c1") == "prepared"
        assert set(found) == {"cdi_unresolved", "cdi_conflict"}
        assert "gpu=3 and 2 more: no container can start" in found["cdi_unresolved"]
        assert "other" not in found["cdi_conflict"]

    @pytest.mark.scenario("P26")
    @simulated
    async def test_takes_unknown_devices_and_says_so(self) -> None:
        """A device or request that the allocation does not have is accepted and recorded."""
        rig = await Rig().start()
        odd = (
            PreparedDevice(pool="node-a", device="gpu-7", requests=("gpu",)),
            PreparedDevice(pool="node-a", device="gpu-0", requests=("other",)),
        )
        rig.gpu.answers("prepare", lambda claims: {c.uid: Prepared(devices=odd) for c in claims})
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))

        found = rig.facts("anomaly_found")
        assert rig.state("c1") == "prepared"
        assert [(a.kind, a.device) for a in found] == [
            ("unknown_device", "gpu-7"),
            ("unknown_device", "gpu-0"),
        ]

    @pytest.mark.scenario("P26")
    @pytest.mark.rule("R13")
    @simulated
    async def test_refuses_an_id_that_no_runtime_can_parse(self) -> None:
        """An id that breaks the CDI grammar fails the claim (upstream hands it to the runtime)."""
        rig = await Rig().start()
        odd = (PreparedDevice(pool="node-a", device="gpu-0", cdi_device_ids=("gpu 0",)),)
        rig.gpu.answers("prepare", lambda claims: {c.uid: Prepared(devices=odd) for c in claims})
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))

        failure = rig.claim("c1").failure(GPU)
        assert rig.state("c1") == "bound_preparing"
        assert failure is not None
        assert (failure.outcome, failure.code) == ("invalid", "cdi_id")

    @pytest.mark.parametrize("answer", [None, [], 7, {"c1-uid": None}, {"c1-uid": "yes"}, {7: 7}])
    @simulated
    async def test_survives_an_adapter_that_answers_nonsense(self, answer: Any) -> None:
        """Whatever an adapter returns is at most a failure of its own claims."""
        rig = await Rig().start()
        rig.gpu.answers("prepare", lambda _: answer)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=2)
        rig.gpu.works()
        await rig.passes(5)

        assert {f.outcome for f in rig.facts("driver_failed")} <= {"invalid", "unknown"}
        assert rig.state("c1") == "prepared"
        assert rig.replayed().digest() == rig.node.digest()
