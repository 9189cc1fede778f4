"""Validation of a pod: all or nothing, every reason named, nothing stored but the refusal."""

from __future__ import annotations

import pytest
from tests.simulation.rig import Rig, claim, device, pod
from tests.simulation.virtual import simulated

from claimlet.engine.pod import PreparePod
from claimlet.engine.ports import ClaimObject, PodClaimObject
from claimlet.events.values import ContainerUse, ExtendedMapping, Link

GPU = "gpu.example.com"
#: What a start writes, before anybody asks for anything.
STARTED = ["writer_started", "source_synced", "driver_registered"]


def entry(name: str, claim_name: str | None = None, **more: bool | str) -> PodClaimObject:
    return PodClaimObject(name=name, claim_name=claim_name, **more)  # type: ignore[arg-type]


def templated(name: str, made: ClaimObject) -> PreparePod:
    """Return a pod whose one claim comes from a template."""
    uses = (ContainerUse(name="main", claims=(Link(name="gpu"),)),)
    claims = (entry("gpu", made.ref.name, from_template=True),)
    return pod(name, made, claims=claims, containers=uses)


async def refusal(command: PreparePod, *drivers: str) -> str:
    """Return why a fresh node refuses *command*; it must store nothing else and call nobody."""
    rig = await Rig(*drivers).start()
    reason = await rig.refused(command)
    await rig.passes(1)

    assert rig.words()[: len(STARTED)] == STARTED
    assert rig.words()[len(STARTED) :] == ["prepare_refused"]
    assert rig.gpu.ledger == []
    return reason


class TestClaims:
    @pytest.mark.scenario("V01")
    @simulated
    async def test_refuses_a_claim_that_does_not_exist(self) -> None:
        """A claim that does not exist is named, nothing is stored and nobody is called."""
        command = pod("p1", claims=(entry("gpu", "c1"),), containers=())

        assert "c1 does not exist" in await refusal(command)

    @pytest.mark.scenario("V02")
    @simulated
    async def test_refuses_an_unknown_driver(self) -> None:
        """A claim of a driver that never registered is refused; its pod's end needs no driver."""
        rig = await Rig().start()
        reason = await rig.refused(pod("p1", claim("c1", "nic.example.com/nic-0")))
        await rig.unprepare("p1")

        assert "nic.example.com, which is not registered" in reason
        assert rig.node.claims == {}
        assert rig.node.pods == {}
        assert rig.words()[-2:] == ["unprepare_requested", "pod_closed"]

    @pytest.mark.scenario("V03")
    @simulated
    async def test_refuses_a_claim_that_is_not_reserved(self) -> None:
        """A pod that is not in `reservedFor` is refused, without a call."""
        reason = await refusal(pod("p1", claim("c1", f"{GPU}/gpu-0", reserved_for=("p9",))))

        assert "not reserved for this pod" in reason

    @pytest.mark.scenario("V04")
    @simulated
    async def test_refuses_another_pods_generated_claim(self) -> None:
        """A claim from a template must be owned by the pod that uses it."""
        reason = await refusal(templated("p1", claim("c1", f"{GPU}/gpu-0", owner_uid="p9")))

        assert "not made for this pod" in reason

    @pytest.mark.scenario("V04")
    @simulated
    async def test_takes_its_own_generated_claim(self) -> None:
        """A claim from a template that the pod owns is prepared, with its origin recorded."""
        rig = await Rig().start()
        made = claim("c1", f"{GPU}/gpu-0", owner_uid="p1", pod_claim_name="gpu")
        await rig.prepare(templated("p1", made))

        assert rig.state("c1") == "prepared"
        assert rig.claim("c1").origin == "template"
        assert rig.claim("c1").pod_claim == "gpu"

    @pytest.mark.scenario("V05")
    @simulated
    async def test_does_not_ask_who_owns_a_named_claim(self) -> None:
        """A claim that the pod names directly may belong to anybody."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0", owner_uid="somebody")))

        assert rig.state("c1") == "prepared"
        assert rig.claim("c1").origin == "user"

    @pytest.mark.scenario("V06")
    @pytest.mark.rule("R7")
    @simulated
    async def test_refuses_a_claim_that_was_not_created_yet(self) -> None:
        """A template without a status entry means "not created yet": refused, and asked again."""
        rig = await Rig().start()
        uses = (ContainerUse(name="main", claims=(Link(name="gpu"),)),)
        early = pod("p1", claims=(entry("gpu", from_template=True),), containers=uses)

        assert "not created yet" in await rig.refused(early)
        await rig.prepare(templated("p1", claim("c1", f"{GPU}/gpu-0", owner_uid="p1")))
        assert rig.state("c1") == "prepared"

    @pytest.mark.scenario("V07")
    @pytest.mark.rule("R7")
    @simulated
    async def test_skips_an_entry_that_needs_no_claim(self) -> None:
        """A status entry without a claim name means "no claim needed"; the others are prepared."""
        rig = await Rig().start()
        made = claim("c1", f"{GPU}/gpu-0")
        claims = (entry("none", needed=False), entry("c1", "c1"))
        uses = (ContainerUse(name="main", claims=(Link(name="none"), Link(name="c1"))),)
        await rig.prepare(pod("p1", made, claims=claims, containers=uses))

        assert rig.state("c1") == "prepared"
        assert list(rig.node.claims) == ["c1-uid"]

    @pytest.mark.scenario("V08")
    @pytest.mark.rule("R7")
    @simulated
    async def test_refuses_an_entry_without_a_name_or_template(self) -> None:
        """An entry that names neither a claim nor a template is refused with what is wrong."""
        wrong = entry("gpu", problem="no supported field: neither name nor template")
        reason = await refusal(pod("p1", claims=(wrong,), containers=()))

        assert "pod claim 'gpu': no supported field" in reason

    @pytest.mark.scenario("V09")
    @simulated
    async def test_refuses_a_claim_without_allocation(self) -> None:
        """A claim that is not allocated is refused and nothing is stored."""
        assert "not allocated" in await refusal(pod("p1", claim("c1", allocation=None)))

    @pytest.mark.scenario("V10")
    @simulated
    async def test_stores_nothing_if_one_claim_is_wrong(self) -> None:
        """A second claim that does not pass keeps the first one from being stored, too."""
        good = claim("c1", f"{GPU}/gpu-0")
        bad = claim("c2", f"{GPU}/gpu-1", reserved_for=())

        assert "c2 is not reserved" in await refusal(pod("p1", good, bad))

    @pytest.mark.scenario("V10")
    @simulated
    async def test_names_everything_that_is_wrong(self) -> None:
        """A refusal names every reason at once, so that nobody repairs them one by one."""
        bad = [claim("c1", allocation=None), claim("c2", f"{GPU}/gpu-1", reserved_for=())]
        reason = await refusal(
            pod(
                "p1",
                *bad,
                claims=(entry("x", "c0"), entry("y", "c1")),
                containers=(ContainerUse(name="m", claims=()),),
            )
        )

        assert "c0 does not exist" in reason
        assert "c1 is not allocated" in reason

    @pytest.mark.scenario("V11")
    @simulated
    async def test_refuses_a_second_pod_while_the_driver_is_gone(self) -> None:
        """A prepared claim whose driver went takes no second pod: the node counts as broken."""
        rig = await Rig().start()
        shared = claim("c1", f"{GPU}/gpu-0")
        await rig.prepare(pod("p1", shared))
        rig.leave(GPU)
        await rig.passes(1)

        assert "not registered" in await rig.refused(pod("p2", shared))
        assert rig.state("c1") == "prepared"
        assert rig.consumers("c1") == ["p1"]

    @pytest.mark.scenario("V12")
    @simulated
    async def test_refuses_a_reservation_by_pod_group(self) -> None:
        """A reservation by pod group is refused (upstream takes it behind a gate)."""
        reason = await refusal(pod("p1", claim("c1", f"{GPU}/gpu-0", reserved_for=("group-1",))))

        assert "not reserved for this pod" in reason

    @pytest.mark.scenario("V13")
    @simulated
    async def test_takes_an_allocation_without_results(self) -> None:
        """An allocation with no devices needs no driver: the claim is prepared without a call."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1")))
        prepared = rig.state("c1")
        await rig.unprepare("p1")

        assert prepared == "prepared"
        assert rig.state("c1") == "unprepared"
        assert rig.gpu.ledger == []


class TestPods:
    @pytest.mark.rule("R7")
    @simulated
    async def test_refuses_a_container_that_names_an_unknown_claim(self) -> None:
        """A container may name only claims of its pod."""
        uses = (ContainerUse(name="main", claims=(Link(name="missing"),)),)
        reason = await refusal(pod("p1", claim("c1", f"{GPU}/gpu-0"), containers=uses))

        assert "'missing', which the pod does not have" in reason

    @simulated
    async def test_refuses_two_claims_of_one_name(self) -> None:
        """Two pod claims of one name would make a container's use ambiguous."""
        claims = (entry("gpu", "c1"), entry("gpu", "c2"))
        both = [claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{GPU}/gpu-1")]
        reason = await refusal(pod("p1", *both, claims=claims, containers=()))

        assert "two pod claims are named 'gpu'" in reason

    @pytest.mark.parametrize("uid", ["", "a/b", "a.b", "x" * 65, "> *"])
    @simulated
    async def test_refuses_a_uid_that_cannot_stand_in_a_subject(self, uid: str) -> None:
        """A UID is checked before it becomes part of a subject."""
        rig = await Rig().start()
        odd = pod("p1", claim("c1", f"{GPU}/gpu-0", uid=uid or "c 1"))

        assert "c1" in await rig.refused(odd)
        assert rig.node.claims == {}

    @simulated
    async def test_refuses_too_many_devices(self) -> None:
        """A claim has at most 256 devices."""
        many = [device(f"{GPU}/gpu-{n}") for n in range(257)]

        assert "more than 256 devices" in await refusal(pod("p1", claim("c1", *many)))

    @simulated
    async def test_refuses_what_no_record_can_hold(self) -> None:
        """A pod whose facts are too large for a record is refused; the node goes on."""
        rig = await Rig().start()
        huge = claim("c1", f"{GPU}/gpu-0", attributes={"d": {"a": "x" * 600_000}})

        assert "more than the 524288" in await rig.refused(pod("p1", huge))
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-1")))
        assert rig.state("c2") == "prepared"

    @simulated
    async def test_takes_a_pod_without_claims(self) -> None:
        """A pod without claims is recorded and closed like any other."""
        rig = await Rig().start()
        await rig.prepare(pod("p1"))
        await rig.unprepare("p1")

        assert rig.words()[-3:] == ["prepare_requested", "unprepare_requested", "pod_closed"]

    @simulated
    async def test_refuses_a_pod_that_has_ended(self) -> None:
        """A pod that is being unprepared cannot be asked for again under that UID."""
        rig = await Rig().start()
        rig.gpu.refuses("unprepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.unprepare("p1")

        assert "this pod has ended" in await rig.refused(pod("p1", claim("c2", f"{GPU}/gpu-1")))

    @pytest.mark.scenario("P16", "U15")
    @simulated
    async def test_takes_an_extended_resource_claim(self) -> None:
        """The claim behind an extended resource is prepared and unprepared like others."""
        rig = await Rig().start()
        made = claim("ext", f"{GPU}/gpu-0")
        wish = pod(
            "p1",
            made,
            claims=(),
            containers=(ContainerUse(name="main"),),
            extended_claim_name="ext",
            extended=(("main", "example.com/gpu", "request-0"),),
        )
        await rig.prepare(wish)
        state, origin = rig.state("ext"), rig.claim("ext").origin
        request = rig.node.pods[wish.pod.ref.uid].request
        await rig.unprepare("p1")

        assert (state, origin) == ("prepared", "extended")
        assert request is not None
        assert request.extended == (
            ExtendedMapping(
                container="main",
                resource="example.com/gpu",
                request="request-0",
                claim_uid=made.ref.uid,
            ),
        )
        assert rig.state("ext") == "unprepared"
        assert rig.gpu.held == set()
