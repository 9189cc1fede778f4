"""Claims taken over from a kubelet: held, asked again, unprepared, and never taken twice."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.simulation.rig import Rig, claim, device, pod
from tests.simulation.virtual import simulated

from claimlet.engine.errors import RefusedError
from claimlet.engine.restore import CLAIMS_MAX, ForeignClaim
from claimlet.events.values import ClaimRef, ClaimUid, PodUid, PreparedDevice

GPU = "gpu.example.com"
NIC = "nic.example.com"
HELD = PreparedDevice(
    pool="node-a",
    device="gpu-0",
    requests=("gpu",),
    cdi_device_ids=("example.com/gpu=gpu-0",),
)


def foreign(name: str = "c1", **changes: Any) -> ForeignClaim:
    """Return a claim that a kubelet has prepared for pod p1."""
    fields: dict[str, Any] = {
        "ref": ClaimRef(uid=ClaimUid(f"{name}-uid"), namespace="ml", name=name),
        "pods": (PodUid("p1"),),
        "drivers": {GPU: (HELD,)},
    } | changes
    return ForeignClaim(**fields)


async def imported(*claims: ForeignClaim, drivers: tuple[str, ...] = (GPU,)) -> Rig:
    """Return a node that has taken over *claims*, which its drivers hold."""
    rig = await Rig(*drivers).start()
    for found in claims or (foreign(),):
        for driver in found.drivers:
            rig.all_drivers[driver].held.add(found.ref.uid)
    assert await take(rig, *claims) == (len(claims) or 1, 0)
    return rig


async def take(rig: Rig, *claims: ForeignClaim) -> tuple[int, int]:
    result = await rig.loop.import_claims(claims or (foreign(),), why="test", actor="ops")
    await rig.passes(1)
    return result


async def refused(rig: Rig, *claims: ForeignClaim) -> str:
    """Import what must be refused, and return why; nothing was stored."""
    before = rig.node.sequence
    with pytest.raises(RefusedError) as error:
        await rig.loop.import_claims(claims, why="test", actor="ops")
    assert rig.node.sequence == before
    return str(error.value)


class TestImport:
    @simulated
    async def test_calls_nobody(self) -> None:
        """A claim whose pod runs on is held with its devices, and no driver is called for it."""
        rig = await imported()
        await rig.restart()
        await rig.passes(100)

        assert rig.state("c1") == "needs"
        assert rig.devices("c1") == ["example.com/gpu=gpu-0"]
        assert [debt.driver for debt in rig.claim("c1").debts] == [GPU]
        assert rig.gpu.ledger == []

    @simulated
    async def test_is_unprepared_at_every_driver(self) -> None:
        """When its pod is gone, each driver of the file is asked, devices or not."""
        rig = await imported(foreign(drivers={GPU: (HELD,), NIC: ()}), drivers=(GPU, NIC))
        await rig.unprepare("p1", passes_seconds=5)

        assert rig.held() == {}
        assert [d.ledger for d in rig.all_drivers.values()] == [[("unprepare", ("c1",))]] * 2
        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_without_pods_is_unprepared_at_once(self) -> None:
        """A claim whose last pod had left is given back as soon as it is known."""
        rig = await imported(foreign(pods=()))

        assert rig.held() == {}
        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_is_all_or_nothing(self) -> None:
        """One claim that is open here already has the whole file refused, by name."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))

        assert await refused(rig, foreign("c2"), foreign("c1")) == (
            "claim ml/c1: it is open here already (prepared)"
        )

    @simulated
    async def test_goes_on_where_it_was_cut(self) -> None:
        """What was imported before, just so, is no hindrance and no fact."""
        rig = await imported()

        assert await take(rig, foreign(), foreign("c2")) == (1, 1)
        assert len(rig.facts("restored")) == 2

    @simulated
    async def test_refuses_the_same_name_under_another_uid(self) -> None:
        """A name whose claim is still open here is not taken twice (rule 4)."""
        rig = await imported()
        other = ClaimRef(uid=ClaimUid("u2"), namespace="ml", name="c1")

        assert "under another UID" in await refused(rig, foreign(ref=other))

    @simulated
    async def test_takes_what_was_unprepared_here(self) -> None:
        """A claim that this node has given back may have been prepared by a kubelet since."""
        rig = await imported()
        await rig.unprepare("p1", passes_seconds=5)

        assert await take(rig) == (1, 0)
        assert rig.state("c1") == "needs"

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"ref": ClaimRef(uid=ClaimUid("a.b"), namespace="ml", name="c1")}, "is no UID"),
            ({"ref": ClaimRef(uid=ClaimUid("u"), namespace="*", name="c1")}, "is no namespace"),
            ({"ref": ClaimRef(uid=ClaimUid("u"), namespace="ml", name="")}, "is no object name"),
            ({"pods": (PodUid("p >"),)}, "is no UID"),
            ({"pods": tuple(PodUid(f"p{n}") for n in range(2000))}, "more than 1024 pods"),
            ({"drivers": {"": ()}}, "a driver's name"),
            ({"drivers": {"x" * 300: ()}}, "a driver's name"),
            ({"drivers": {GPU: (HELD,) * 300}}, "300 devices, more than 256"),
            ({"drivers": {GPU: (replace(HELD, cdi_device_ids=("x",)),)}}, "no CDI id"),
        ],
    )
    @simulated
    async def test_refuses_what_cannot_be_stored(self, changes: dict[str, Any], why: str) -> None:
        """A file is hostile until it is decoded: tokens, bounds and grammar are checked."""
        assert why in await refused(await Rig().start(), foreign(**changes))

    @simulated
    async def test_refuses_too_many_and_doubles(self) -> None:
        """The number of claims is bounded, and none comes twice."""
        rig = await Rig().start()

        assert "is there twice" in await refused(rig, foreign(), foreign())
        many = [foreign(f"c{n}") for n in range(CLAIMS_MAX + 1)]
        assert f"more than {CLAIMS_MAX}" in await refused(rig, *many)


class TestCompletion:
    OBJECT = claim("c1", f"{GPU}/gpu-0")

    @simulated
    async def test_a_request_brings_the_allocation(self) -> None:
        """The first pod that is asked for brings allocation and name; then the driver is asked."""
        rig = await imported()
        await rig.prepare(pod("p1", self.OBJECT))
        held = rig.claim("c1")

        assert held.allocation == self.OBJECT.allocation
        assert [str(consumer.pod) for consumer in held.consumers] == ["ml/p1"]
        assert held.phase.value == "prepared"
        assert rig.gpu.ledger == [("prepare", ("c1",))]
        assert rig.words("c1")[:2] == ["restored", "restored"]

    @simulated
    async def test_a_second_pod_joins(self) -> None:
        """A pod that did not hold the claim completes it too, and joins like any other."""
        rig = await imported()
        await rig.prepare(pod("p2", self.OBJECT))
        await rig.unprepare("p2")

        assert "consumer_joined" in rig.words("c1")
        assert rig.consumers("c1") == ["p1"]
        assert rig.held() == {GPU: {"c1-uid"}}

    @simulated
    async def test_another_allocation_is_refused(self) -> None:
        """A claim that has another device by now is not the one that was prepared (rule 4)."""
        rig = await imported()

        assert "another allocation" in await rig.refused(pod("p1", claim("c1", f"{GPU}/gpu-1")))

    @simulated
    async def test_a_driver_that_is_not_in_it_is_refused(self) -> None:
        """An allocation without a driver that owes something is not the one of the file."""
        rig = await imported(foreign(drivers={GPU: (), NIC: ()}), drivers=(GPU, NIC))

        assert "another allocation" in await rig.refused(pod("p1", self.OBJECT))
        both = claim("c1", f"{GPU}/gpu-0", device(f"{NIC}/nic-0"))
        await rig.prepare(pod("p1", both))
        assert rig.state("c1") == "prepared"

    @simulated
    async def test_a_cut_after_the_completion_leaves_nobody_behind(self) -> None:
        """A pod whose request never came is let go at the next start; who held before stays."""
        rig = await imported()
        await rig.prepare(pod("p2", self.OBJECT))
        request = next(n for n, word in enumerate(rig.words()) if word == "prepare_requested")
        await rig.kill()
        del rig.storage.records[request:]
        await rig.begin()
        await rig.passes(5)

        assert rig.consumers("c1") == ["p1"]
        assert rig.gpu.held == {"c1-uid"}
