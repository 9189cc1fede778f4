"""What containers get: the CDI ids of the claims that they name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.simulation.rig import Rig, claim, device, pod
from tests.simulation.virtual import simulated

from claimlet.engine.containers import (
    cdi_device_ids,
    container_devices,
    start_device_ids,
)
from claimlet.engine.errors import NotFoundError, RefusedError
from claimlet.engine.pod import PreparePod
from claimlet.engine.ports import Claim, ClaimObject, PodClaimObject, Prepared
from claimlet.events.facts import WriterStarted
from claimlet.events.record import Draft, Stamp, stamp
from claimlet.events.values import ContainerUse, Link, PodUid, PreparedDevice

GPU = "gpu.example.com"
NIC = "nic.example.com"
P1 = PodUid("p1")


def uses(**containers: Sequence[str]) -> tuple[ContainerUse, ...]:
    """Return containers by the links that they have, as `claim` or `claim/request`."""
    return tuple(
        ContainerUse(name=name, claims=tuple(link(text) for text in links))
        for name, links in containers.items()
    )


def link(text: str) -> Link:
    name, _, request = text.partition("/")
    return Link(name=name, request=request)


def prepared(name: str, *requests: str, ids: Sequence[str] = ()) -> PreparedDevice:
    cdi = tuple(f"{GPU}/gpu={i}" for i in ids or [name])
    return PreparedDevice(pool="node-a", device=name, requests=requests, cdi_device_ids=cdi)


async def rig_with(wish: PreparePod, *answers: PreparedDevice, drivers: Sequence[str] = ()) -> Rig:
    """Return a started node with *wish* prepared; the first driver answers with *answers*."""
    rig = await Rig(*drivers).start()
    if answers:

        def answer(claims: Sequence[Claim]) -> dict[str, Prepared]:
            return {c.uid: Prepared(devices=answers) for c in claims}

        rig.gpu.answers("prepare", answer)
    await rig.prepare(wish)
    return rig


def two_requests() -> ClaimObject:
    """Return a claim with the requests `a` and `b`."""
    return claim("c1", device(f"{GPU}/gpu-0", request="a"), device(f"{GPU}/gpu-1", request="b"))


class TestIds:
    @pytest.mark.scenario("C01")
    @pytest.mark.rule("R13")
    @simulated
    async def test_a_claim_gives_all_its_ids(self) -> None:
        """A container that names a claim without a request gets all its ids."""
        wish = pod("p1", two_requests())
        rig = await rig_with(wish, prepared("gpu-0", "a"), prepared("gpu-1", "b"))

        assert cdi_device_ids(rig.node, P1, "main") == (f"{GPU}/gpu=gpu-0", f"{GPU}/gpu=gpu-1")

    @pytest.mark.scenario("C02")
    @pytest.mark.rule("R13")
    @simulated
    async def test_a_request_narrows(self) -> None:
        """A request gives its own devices, and those that belong to all requests."""
        wish = pod("p1", two_requests(), containers=uses(one=["c1/a"], other=["c1/b"]))
        answers = prepared("gpu-0", "a"), prepared("gpu-1", "b"), prepared("hub")
        rig = await rig_with(wish, *answers)

        assert cdi_device_ids(rig.node, P1, "one") == (f"{GPU}/gpu=gpu-0", f"{GPU}/gpu=hub")
        assert cdi_device_ids(rig.node, P1, "other") == (f"{GPU}/gpu=gpu-1", f"{GPU}/gpu=hub")

    @simulated
    async def test_a_request_names_its_subrequests(self) -> None:
        """A request also gives the devices of the subrequest that was chosen for it."""
        made = claim("c1", device(f"{GPU}/gpu-0", request="a/big"))
        wish = pod("p1", made, containers=uses(main=["c1/a"]))
        rig = await rig_with(wish, prepared("gpu-0", "a/big"))

        assert cdi_device_ids(rig.node, P1, "main") == (f"{GPU}/gpu=gpu-0",)

    @pytest.mark.scenario("C03")
    @simulated
    async def test_two_requests_on_one_device_give_its_id_twice(self) -> None:
        """The readers' list has the id twice; a runtime gets it once."""
        made = claim("c1", device(f"{GPU}/gpu-0", request="a"), device(f"{GPU}/gpu-0", request="b"))
        wish = pod("p1", made, containers=uses(main=["c1/a", "c1/b"]))
        rig = await rig_with(wish, prepared("gpu-0", "a", "b"))

        assert cdi_device_ids(rig.node, P1, "main") == (f"{GPU}/gpu=gpu-0",) * 2
        assert start_device_ids(rig.node, P1, "main").cdi_device_ids == (f"{GPU}/gpu=gpu-0",)

    @simulated
    async def test_a_common_id_reaches_the_runtime_once(self) -> None:
        """Two devices that share an id keep it each, and hand it over once."""
        wish = pod("p1", two_requests())
        answers = (
            prepared("gpu-0", "a", ids=["0", "common"]),
            prepared("gpu-1", "b", ids=["common"]),
        )
        rig = await rig_with(wish, *answers)

        by_device = [d.device.cdi_device_ids for d in container_devices(rig.node, P1, "main")]
        assert by_device == [(f"{GPU}/gpu=0", f"{GPU}/gpu=common"), (f"{GPU}/gpu=common",)]
        assert start_device_ids(rig.node, P1, "main").cdi_device_ids == (
            f"{GPU}/gpu=0",
            f"{GPU}/gpu=common",
        )

    @pytest.mark.scenario("C04")
    @simulated
    async def test_a_container_without_claims_gets_none(self) -> None:
        """A container that names no claim gets no id."""
        made = claim("c1", f"{GPU}/gpu-0")
        rig = await rig_with(pod("p1", made, containers=uses(main=["c1"], helper=[])))

        assert cdi_device_ids(rig.node, P1, "helper") == ()
        assert start_device_ids(rig.node, P1, "helper").empty == ()

    @pytest.mark.scenario("C06")
    @simulated
    async def test_an_extended_resource_reaches_its_container(self) -> None:
        """Only the container that an extended resource is mapped to gets the claim's ids."""
        wish = pod(
            "p1",
            claim(
                "ext", device(f"{GPU}/gpu-0", request="r0"), device(f"{GPU}/gpu-1", request="r1")
            ),
            claims=(),
            containers=uses(main=[], helper=[]),
            extended_claim_name="ext",
            extended=(("main", "example.com/gpu", "r1"),),
        )
        rig = await rig_with(wish, prepared("gpu-0", "r0"), prepared("gpu-1", "r1"))

        assert cdi_device_ids(rig.node, P1, "main") == (f"{GPU}/gpu=gpu-1",)
        assert cdi_device_ids(rig.node, P1, "helper") == ()

    @pytest.mark.rule("R7")
    @simulated
    async def test_skips_what_needs_no_claim(self) -> None:
        """A pod claim that needs no claim gives nothing, and is no error."""
        entries = (
            PodClaimObject(name="none", needed=False),
            PodClaimObject(name="c1", claim_name="c1"),
        )
        made = claim("c1", f"{GPU}/gpu-0")
        wish = pod("p1", made, claims=entries, containers=uses(main=["none", "c1"]))
        rig = await rig_with(wish)

        start = start_device_ids(rig.node, P1, "main")
        assert start.cdi_device_ids == (f"{GPU}/gpu=c1-uid-gpu-0",)
        assert start.empty == ()

    @simulated
    async def test_the_order_is_that_of_links_and_drivers(self) -> None:
        """Ids come by link, then by the allocation's drivers, whoever answered first."""
        rig = await Rig(GPU, NIC).start()
        rig.all_drivers[GPU].delay_seconds = 0.1
        both = claim("c1", f"{GPU}/gpu-0", f"{NIC}/nic-0")
        other = claim("c2", f"{NIC}/nic-1")
        await rig.prepare(pod("p1", both, other, containers=uses(main=["c2", "c1"])))

        assert cdi_device_ids(rig.node, P1, "main") == (
            f"{NIC}/gpu=c2-uid-nic-1",
            f"{GPU}/gpu=c1-uid-gpu-0",
            f"{NIC}/gpu=c1-uid-nic-0",
        )


class TestErrors:
    @pytest.mark.scenario("C05")
    @simulated
    async def test_an_unknown_claim_is_an_error(self) -> None:
        """A claim that the node does not have is an error, never an empty list."""
        rig = await rig_with(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        del rig.node.claims[claim("c1").ref.uid]

        with pytest.raises(NotFoundError, match="c1-uid"):
            cdi_device_ids(rig.node, P1, "main")

    @simulated
    async def test_an_unknown_pod_or_container_is_an_error(self) -> None:
        """A pod or container that the node does not have is an error."""
        rig = await rig_with(pod("p1", claim("c1", f"{GPU}/gpu-0")))

        with pytest.raises(NotFoundError, match="p9"):
            cdi_device_ids(rig.node, PodUid("p9"), "main")
        with pytest.raises(NotFoundError, match="other"):
            start_device_ids(rig.node, P1, "other")

    @simulated
    async def test_nothing_for_a_claim_is_never_silent(self) -> None:
        """A container that names a claim and gets nothing for it is told so."""
        wish = pod("p1", two_requests(), containers=uses(main=["c1/b"], all=["c1"]))
        rig = await rig_with(wish, prepared("gpu-0", "a"))

        assert start_device_ids(rig.node, P1, "main").empty == ("c1/b",)
        assert start_device_ids(rig.node, P1, "all").empty == ()


class TestNotPrepared:
    @pytest.mark.scenario("C08")
    @pytest.mark.field(103)
    @pytest.mark.rule("R12")
    @simulated
    async def test_restored_devices_are_shown_and_start_nothing(self) -> None:
        """After a reboot the devices are still shown; no container starts with them."""
        rig = await rig_with(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        before = cdi_device_ids(rig.node, P1, "main")
        rig.drivers.clear()
        await rig.restart(boot="boot-2")
        await rig.passes(60)

        assert cdi_device_ids(rig.node, P1, "main") == before
        with pytest.raises(RefusedError, match="not prepared"):
            start_device_ids(rig.node, P1, "main")

    @pytest.mark.field(18)
    @pytest.mark.rule("R12")
    @simulated
    async def test_a_restart_in_one_boot_starts_containers(self) -> None:
        """After a restart in the same boot, and without any driver, containers start as before."""
        rig = await rig_with(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        before = start_device_ids(rig.node, P1, "main")
        rig.drivers.clear()
        await rig.restart()

        assert start_device_ids(rig.node, P1, "main") == before

    @pytest.mark.field(103)
    @simulated
    async def test_an_old_answer_starts_nothing_before_it_is_voided(self) -> None:
        """The log goes down right after a reboot was noted: the old answers start nothing."""
        rig = await rig_with(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        node = rig.replayed()
        stamped = Stamp(node="node-a", boot="boot-2", writer="writer-2")
        started = Draft(fact=WriterStarted(writer="writer-2", boot="boot-2"))
        sequence = node.sequence + 1
        node.fold(stamp(started, stamped, sequence=sequence, record_id="x", wall_time_ns=0))

        assert node.claims[claim("c1").ref.uid].phase.value == "prepared"
        with pytest.raises(RefusedError, match="not prepared"):
            start_device_ids(node, P1, "main")

    @simulated
    async def test_a_failing_prepare_starts_nothing(self) -> None:
        """While one driver of a claim is missing, the other one's devices start nothing."""
        rig = await Rig(GPU, NIC).start()
        rig.all_drivers[NIC].refuses("prepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0", f"{NIC}/nic-0")))

        assert cdi_device_ids(rig.node, P1, "main") == (f"{GPU}/gpu=c1-uid-gpu-0",)
        with pytest.raises(RefusedError, match="bound_preparing"):
            start_device_ids(rig.node, P1, "main")

    @simulated
    async def test_an_ended_pod_starts_nothing(self) -> None:
        """A pod that has ended starts no container, and shows only what it still holds."""
        rig = await Rig(GPU, NIC).start()
        rig.all_drivers[NIC].refuses("unprepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{NIC}/nic-0")))
        await rig.unprepare("p1")

        assert cdi_device_ids(rig.node, P1, "main") == (f"{NIC}/gpu=c2-uid-nic-0",)
        with pytest.raises(RefusedError, match="has ended"):
            start_device_ids(rig.node, P1, "main")

    @pytest.mark.scenario("C07")
    @pytest.mark.rule("R9")
    @simulated
    async def test_a_reader_never_sees_a_torn_list(self) -> None:
        """While a claim is prepared anew again and again, each look sees one whole answer."""
        rig = await Rig().start()
        answers = [tuple(prepared(f"gpu-{n}-{turn}") for n in range(4)) for turn in range(50)]
        turns = iter(answers)
        rig.gpu.answers(
            "prepare", lambda claims: {c.uid: Prepared(devices=next(turns)) for c in claims}
        )
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        seen = set()
        for _ in range(49):
            await rig.loop.reprepare(rig.claim("c1").uid, actor="test")
            for _ in range(10):
                await rig.passes(0.001)
                seen.add(tuple(d.device for d in container_devices(rig.node, P1, "main")))

        assert len(seen) == 50
        assert seen == set(answers)
