"""Claims that several pods share, and devices that several claims share (rules 8, 13; R8)."""

from __future__ import annotations

import asyncio

import pytest
from tests.simulation.rig import Rig, claim, device, pod
from tests.simulation.virtual import simulated

from claimlet.engine.state import Policy

GPU = "gpu.example.com"


class TestConsumers:
    @pytest.mark.rule("R8")
    @simulated
    async def test_use_is_judged_per_pod(self) -> None:
        """A claim that pod 1 does not use is prepared for pod 2, which does."""
        rig = await Rig().start()
        shared = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", shared, used=[]))
        alone = rig.state("c1")
        await rig.prepare(pod("p2", shared))

        assert alone == "bound"
        assert rig.state("c1") == "prepared"
        assert rig.facts("prepare_started")[0].pod_uid == "p2"

    @pytest.mark.rule("R8")
    @simulated
    async def test_a_skipping_pod_keeps_the_claim(self) -> None:
        """Unprepare waits until the pod that skips has left, too."""
        rig = await Rig().start()
        shared = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", shared, used=[]))
        await rig.prepare(pod("p2", shared))
        await rig.unprepare("p2")
        kept = rig.state("c1")
        await rig.unprepare("p1")

        assert kept == "prepared"
        assert rig.state("c1") == "unprepared"

    @pytest.mark.rule("R8")
    @simulated
    async def test_each_request_is_judged_anew(self) -> None:
        """A pod that skipped a claim and then uses it has it prepared."""
        rig = await Rig().start()
        made = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", made, used=[]))
        await rig.prepare(pod("p1", made))

        assert rig.words("c1")[-4:] == [
            "consumer_joined",
            "prepare_started",
            "driver_prepared",
            "prepared",
        ]

    @pytest.mark.rule("R8")
    @simulated
    async def test_a_skipping_pod_never_prepares_after_a_boot(self) -> None:
        """After a reboot the request of a pod that skips the claim prepares nothing."""
        rig = await Rig().start()
        shared = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", shared, used=[]))
        await rig.prepare(pod("p2", shared))
        await rig.restart(boot="boot-2")
        await rig.prepare(pod("p1", shared, used=[]))

        assert rig.state("c1") == "needs"
        assert rig.gpu.count("prepare") == 1

    @simulated
    async def test_an_operation_goes_on_without_its_first_pod(self) -> None:
        """The pod that began a prepare leaves; the other one gets it under the same id."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare")
        shared = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", shared))
        await rig.prepare(pod("p2", shared))
        before = rig.claim("c1").operation
        await rig.unprepare("p1")
        rig.gpu.works()
        await rig.passes(5)

        assert before is not None
        assert len(rig.facts("prepare_started")) == 1
        assert rig.state("c1") == "prepared"
        assert rig.consumers("c1") == ["p2"]

    @simulated
    async def test_only_skipping_pods_are_left(self) -> None:
        """When no pod that uses the claim is left its open prepare rests, and ends at last."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare")
        shared = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", shared))
        await rig.prepare(pod("p2", shared, used=[]))
        await rig.unprepare("p1")
        calls = rig.gpu.count("prepare")
        await rig.passes(600)
        rested = rig.gpu.count("prepare")
        await rig.unprepare("p2")

        assert rested == calls
        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_a_swap_costs_no_call(self) -> None:
        """The last pod leaves while a call is in flight and a new one joins: nothing is undone."""
        rig = await Rig().start()
        rig.gpu.is_slow("prepare", 1.0)
        shared = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", shared))
        await rig.unprepare("p1")
        await rig.prepare(pod("p2", shared))
        await rig.passes(5)

        assert rig.gpu.ledger == [("prepare", ("c1",))]
        assert rig.state("c1") == "prepared"
        assert rig.consumers("c1") == ["p2"]
        assert list(rig.node.pods) == ["p2"]

    @pytest.mark.scenario("P24")
    @simulated
    async def test_a_second_pod_waits_for_the_first_ones_call(self) -> None:
        """A claim that another pod is preparing is not sent twice, the pod's other claims are."""
        rig = await Rig().start()
        rig.gpu.is_slow("prepare", 1.0)
        shared, own = claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{GPU}/gpu-1")
        await rig.prepare(pod("p1", shared))
        await rig.prepare(pod("p2", shared, own), passes_seconds=3)

        assert rig.gpu.batches("prepare") == [("c1",), ("c2",)]
        assert (rig.state("c1"), rig.state("c2")) == ("prepared", "prepared")

    @simulated
    async def test_joining_never_waits_for_a_call(self) -> None:
        """A pod joins, and leaves, while a driver hangs on the claim."""
        rig = await Rig().start()
        rig.gpu.hangs("prepare")
        shared = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", shared))
        async with asyncio.timeout(1):
            await rig.loop.prepare_pod(pod("p2", shared))
            await rig.unprepare("p2")

        assert rig.consumers("c1") == ["p1"]
        assert rig.words("c1")[-2:] == ["consumer_joined", "consumer_left"]


class TestOverlap:
    @pytest.mark.field(33)
    @simulated
    async def test_the_later_claim_waits(self) -> None:
        """Two claims on one device: recorded, and the later one waits for the earlier's end."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-0")))
        waiting = (rig.state("c2"), rig.gpu.count("prepare"))
        await rig.unprepare("p1")

        (found,) = rig.facts("anomaly_found")
        assert waiting == ("bound", 1)
        assert (found.kind, found.device, found.other_claim_uid) == (
            "device_overlap",
            "gpu-0",
            "c1-uid",
        )
        assert [m for m, _ in rig.gpu.ledger] == ["prepare", "unprepare", "prepare"]
        assert rig.state("c2") == "prepared"

    @pytest.mark.field(33)
    @simulated
    async def test_may_be_recorded_only(self) -> None:
        """With `overlap = "record"` both are prepared, and the overlap is in the log."""
        rig = await Rig(policy=Policy(overlap="record")).start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-0")))

        assert rig.state("c2") == "prepared"
        assert [a.kind for a in rig.facts("anomaly_found")] == ["device_overlap"]

    @simulated
    async def test_names_nothing_of_the_other_claim(self) -> None:
        """The overlap's text names no other claim: it may be of another namespace."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("secret-name", f"{GPU}/gpu-0")))
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-0")))

        assert "secret" not in rig.facts("anomaly_found")[0].text

    @pytest.mark.parametrize(
        ("first", "second", "overlap"),
        [
            ({}, {}, True),
            ({"admin_access": True}, {}, False),
            ({}, {"admin_access": True}, False),
            ({"share_id": "a"}, {"share_id": "b"}, False),
            ({"share_id": "a"}, {"share_id": "a"}, True),
            ({"share_id": "a"}, {}, True),
            ({}, {"share_id": "a"}, True),
        ],
    )
    @simulated
    async def test_what_overlaps(
        self, first: dict[str, object], second: dict[str, object], overlap: bool
    ) -> None:
        """Admin access overlaps with nobody; share ids overlap where they are absent or equal."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", device(f"{GPU}/gpu-0", **first))))
        await rig.prepare(pod("p2", claim("c2", device(f"{GPU}/gpu-0", **second))))

        assert rig.state("c2") == ("bound" if overlap else "prepared")
        assert len(rig.facts("anomaly_found")) == overlap

    @simulated
    async def test_is_recorded_once(self) -> None:
        """An overlap is recorded once, however often the claim is planned, also after a restart."""
        rig = await Rig().start()
        rig.gpu.refuses("unprepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.unprepare("p1")
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-0")), passes_seconds=600)
        await rig.restart()
        await rig.passes(600)

        assert len(rig.facts("anomaly_found")) == 1
        assert rig.state("c2") == "bound"

    @simulated
    async def test_three_claims_go_in_turn(self) -> None:
        """Claims on one device are prepared in the order in which they were bound."""
        rig = await Rig().start()
        for n in (1, 2, 3):
            await rig.prepare(pod(f"p{n}", claim(f"c{n}", f"{GPU}/gpu-0")))
        await rig.unprepare("p1")
        second = [rig.state(f"c{n}") for n in (1, 2, 3)]
        await rig.unprepare("p2")

        assert second == ["unprepared", "prepared", "bound"]
        assert rig.state("c3") == "prepared"

    @simulated
    async def test_the_pods_other_claims_go_on(self) -> None:
        """Only the claim that overlaps waits."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-0"), claim("c3", f"{GPU}/gpu-1")))

        assert (rig.state("c2"), rig.state("c3")) == ("bound", "prepared")

    @simulated
    async def test_a_waiting_pod_may_leave(self) -> None:
        """A claim that only waited ends without a call."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-0")))
        await rig.unprepare("p2")

        assert rig.state("c2") == "unprepared"
        assert rig.gpu.ledger == [("prepare", ("c1",))]
