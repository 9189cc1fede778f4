"""Claims that nobody uses and drivers that want no call (rule R8, KEP-5945)."""

from __future__ import annotations

import pytest
from tests.simulation.rig import Rig, claim, device, pod
from tests.simulation.virtual import simulated

from claimlet.engine.state import Policy

GPU = "gpu.example.com"
NIC = "nic.example.com"


class TestUnused:
    @pytest.mark.scenario("P22")
    @pytest.mark.field(28)
    @pytest.mark.rule("R8")
    @simulated
    async def test_skips_what_no_container_uses(self) -> None:
        """A claim that no container uses is skipped by default, visibly and without a debt."""
        rig = await Rig().start()
        used, unused = claim("a", f"{GPU}/gpu-0"), claim("b", f"{GPU}/gpu-1")
        await rig.prepare(pod("p1", used, unused, used=["a"]))

        assert rig.gpu.batches("prepare") == [("a",)]
        assert rig.state("b") == "bound"
        assert rig.words("b") == ["generated", "bound", "prepare_skipped"]
        assert rig.claim("b").debts == ()
        await rig.unprepare("p1")
        assert rig.gpu.batches("unprepare") == [("a",)]
        assert rig.state("b") == "unprepared"

    @pytest.mark.scenario("P21")
    @pytest.mark.rule("R8")
    @simulated
    async def test_prepares_what_no_container_uses_if_told_so(self) -> None:
        """With `unused_claims = "prepare"` an unused claim costs one call."""
        rig = await Rig(policy=Policy(unused_claims="prepare")).start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), used=[]))

        assert rig.gpu.count("prepare") == 1
        assert rig.state("c1") == "prepared"

    @pytest.mark.rule("R8")
    @pytest.mark.parametrize(("drivers", "state"), [((NIC,), "prepared"), ((GPU, NIC), "prepared")])
    @simulated
    async def test_one_driver_may_want_it(self, drivers: tuple[str, ...], state: str) -> None:
        """A claim is skipped only if all its drivers say skip."""
        policy = Policy(unused_claims_by_driver={NIC: "prepare"})
        rig = await Rig(GPU, NIC, policy=policy).start()
        await rig.prepare(pod("p1", claim("c1", *(f"{d}/x-0" for d in drivers)), used=[]))

        assert rig.state("c1") == state

    @pytest.mark.rule("R8")
    @simulated
    async def test_a_driver_may_skip_where_others_prepare(self) -> None:
        """A driver's own "skip" stands against a general "prepare", and says whose word it was."""
        policy = Policy(unused_claims="prepare", unused_claims_by_driver={GPU: "skip"})
        rig = await Rig(policy=policy).start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), used=[]))

        assert rig.state("c1") == "bound"
        assert rig.facts("prepare_skipped")[0].reason == "driver"


class TestSkippingDrivers:
    @pytest.mark.scenario("K01")
    @simulated
    async def test_a_driver_that_skips_all_its_devices_is_not_called(self) -> None:
        """All devices of a driver skip node preparation: it need not even be registered."""
        rig = await Rig().start()
        skip = {"skip_prepare": True, "skip_unprepare": True}
        await rig.prepare(pod("p1", claim("c1", device("quiet.example.com/x-0", **skip))))

        assert rig.state("c1") == "prepared"
        await rig.unprepare("p1")
        assert rig.state("c1") == "unprepared"
        assert rig.gpu.ledger == []

    @pytest.mark.scenario("K02")
    @simulated
    async def test_a_driver_that_skips_some_devices_is_called(self) -> None:
        """One device that does not skip is enough for a call."""
        rig = await Rig().start()
        mixed = [device(f"{GPU}/gpu-0", skip_prepare=True), device(f"{GPU}/gpu-1")]
        await rig.prepare(pod("p1", claim("c1", *mixed)))

        assert rig.gpu.count("prepare") == 1

    @pytest.mark.scenario("K03")
    @simulated
    async def test_teardown_honours_the_recorded_skip(self) -> None:
        """The flags are those of the log: a skip that was recorded holds at teardown."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", device(f"{GPU}/gpu-0", skip_unprepare=True))))
        await rig.restart()
        await rig.unprepare("p1")

        assert rig.gpu.count("prepare") == 1
        assert rig.gpu.count("unprepare") == 0
        assert rig.state("c1") == "unprepared"
