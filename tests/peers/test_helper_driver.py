"""A driver on upstream's Go helper, with nothing but claimlet's gateway for an API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.adapters.gateway.client import GPU, NODE, SLICES, gateway_claim, pod_ref
from tests.peers.node import CALL_SECONDS, PeerNode, eventually
from tests.peers.peer import HelperDriver, cdi_ids, resolve

from claimlet.engine.ports import Claim, DriverCallError, Failed, Prepared
from claimlet.events.values import ClaimUid, DriverName

pytestmark = pytest.mark.peers

DRIVER = HelperDriver.name
FAST = {"kube_api_qps": 1000, "kube_api_burst": 1000}

Make = Callable[..., HelperDriver]


def claim_of(node: PeerNode, name: str, **fields: object) -> Claim:
    """Return a claim of one device, known to the gateway."""
    return node.add(gateway_claim(name, DRIVER, **fields))


async def prepared(node: PeerNode, claim: Claim) -> Prepared:
    """Prepare *claim* and return the driver's yes."""
    outcome = (await node.prepare(DRIVER, claim))[claim.uid]
    assert isinstance(outcome, Prepared), outcome
    return outcome


class TestRegistration:
    async def test_both_apis_are_offered_and_the_first_is_taken(
        self, node: PeerNode, go_driver: Make
    ) -> None:
        """The driver's own order decides, and what it offers beside is no obstacle."""
        with go_driver():
            instance = await node.instance(DRIVER)

        assert instance.supported_versions[:2] == ("v1.DRAPlugin", "v1beta1.DRAPlugin")
        assert instance.endpoint == str(node.root / "plugins" / DRIVER / "dra.sock")

    async def test_the_older_api_works_alone(self, node: PeerNode, go_driver: Make) -> None:
        """A driver that serves v1beta1 only is called through it."""
        claim = claim_of(node, "a")
        with go_driver(api_v1="false"):
            outcome = await prepared(node, claim)

        assert [device.device for device in outcome.devices] == ["dev-0"]

    async def test_its_devices_are_published(self, node: PeerNode, go_driver: Make) -> None:
        """The helper's informer and writes are content with the gateway, in protobuf."""
        client = node.client(DRIVER)
        with go_driver() as driver:
            await node.instance(DRIVER)
            text = "Created new resource slice"
            await eventually(lambda: text in driver.log.read_text(), text)
            answer = await client.get(SLICES)

        assert answer.headers["content-type"] == "application/vnd.kubernetes.protobuf"
        assert b"dev-7" in answer.body
        assert "Fall back to the standard LIST" not in driver.log.read_text()


class TestPrepare:
    async def test_ids_resolve_in_the_reference_library(
        self, node: PeerNode, go_driver: Make, cdiresolve: Path
    ) -> None:
        """What prepare answers is what a container runtime can inject."""
        claim = claim_of(node, "a")
        with go_driver() as driver:
            outcome = await prepared(node, claim)
            answer = resolve(cdiresolve, driver.cdi_dir, cdi_ids(outcome.devices))

        assert answer.unresolved == []
        assert answer.environment == [f"DRIVER={DRIVER}", "DEVICE_dev-0=uid-a"]

    async def test_an_unprepared_id_does_not_resolve(
        self, node: PeerNode, go_driver: Make, cdiresolve: Path
    ) -> None:
        """After unprepare only the shared device is left."""
        claim = claim_of(node, "a")
        with go_driver() as driver:
            ids = cdi_ids((await prepared(node, claim)).devices)
            answers = await node.unprepare(DRIVER, claim)
            answer = resolve(cdiresolve, driver.cdi_dir, ids)

        assert answers == {claim.uid: None}
        assert answer.resolved == [f"k8s.{DRIVER}/device=common"]
        assert answer.unresolved == [f"k8s.{DRIVER}/device=uid-a-dev-0"]

    async def test_the_driver_reads_its_own_parameters_and_the_pods(
        self, node: PeerNode, go_driver: Make
    ) -> None:
        """Parameters come back as they were, others' stay away, consumers are named."""
        config = [
            {"opaque": {"driver": GPU, "parametersDigest": "1"}},
            {"opaque": {"driver": DRIVER, "parametersDigest": "2"}},
        ]
        claim = claim_of(
            node,
            "a",
            devices_config=config,
            config=b'[{"secret":1},{"apiVersion":"x/v1","kind":"Y","n":2}]',
            consumers=(pod_ref("p"), pod_ref("q")),
        )
        with go_driver() as driver:
            await prepared(node, claim)
            (call,) = driver.calls("prepare")

        assert call["parameters"] == {
            "uid-a": [f'{DRIVER} {{"apiVersion":"x/v1","kind":"Y","n":2}}']
        }
        assert call["reserved_for"] == {"uid-a": ["uid-p", "uid-q"]}

    async def test_one_bad_claim_does_not_cost_the_others(
        self, node: PeerNode, go_driver: Make
    ) -> None:
        """The driver's own no is per claim, in its own words."""
        good, bad = claim_of(node, "a"), claim_of(node, "b")
        with go_driver() as driver:
            await node.instance(DRIVER)
            driver.inject(prepare_claim_errors={"uid-b": "this one is broken"})
            answers = await node.prepare(DRIVER, good, bad)

        assert isinstance(answers[good.uid], Prepared)
        assert answers[bad.uid] == Failed("this one is broken", "refused", "driver_error")

    async def test_a_claim_that_is_not_there_fails_the_call(
        self, node: PeerNode, go_driver: Make
    ) -> None:
        """The helper reads all claims first, so its error says nothing about a single one."""
        claims = claim_of(node, "a"), claim_of(node, "b")
        del node.claims.claims["default", "b"]
        with go_driver() as driver:
            with pytest.raises(DriverCallError, match="default/b") as caught:
                await node.prepare(DRIVER, *claims)
            assert driver.calls("prepare") == []
        assert (caught.value.outcome, caught.value.code) == ("refused", "UNKNOWN")

    async def test_a_replaced_claim_fails_the_call(self, node: PeerNode, go_driver: Make) -> None:
        """Another object under the name is not prepared in the old one's place."""
        old = claim_of(node, "a")
        replaced = Claim(
            ref=type(old.ref)(uid=ClaimUid("uid-old"), namespace="default", name="a"),
            allocation=old.allocation,
        )
        with go_driver(), pytest.raises(DriverCallError, match="got replaced"):
            await node.prepare(DRIVER, replaced)

    async def test_a_forgotten_claim_is_missing_in_the_answer(
        self, node: PeerNode, go_driver: Make
    ) -> None:
        """A driver that forgets a claim says neither yes nor no about it."""
        claims = claim_of(node, "a"), claim_of(node, "b")
        with go_driver() as driver:
            await node.instance(DRIVER)
            driver.inject(forget=["uid-b"])
            answers = await node.prepare(DRIVER, *claims)

        assert set(answers) == {"uid-a"}

    async def test_many_claims_with_the_usual_rate_limit(
        self, node: PeerNode, go_driver: Make
    ) -> None:
        """Defaults of the field (5 reads a second) make a batch slow, not fail."""
        claims = [claim_of(node, f"c{i}") for i in range(12)]
        with go_driver(devices=1):
            answers = await node.prepare(DRIVER, *claims)

        # All want dev-0: the first gets it, the others are told who has it.
        assert [isinstance(answers[c.uid], Prepared) for c in claims].count(True) == 1
        assert len(answers) == 12


class TestUnprepare:
    async def test_needs_neither_claim_nor_gateway(self, node: PeerNode, go_driver: Make) -> None:
        """A deleted claim is unprepared like any other, and so is one that never was."""
        claim, never = claim_of(node, "a"), claim_of(node, "never")
        with go_driver():
            await prepared(node, claim)
            node.claims.claims.clear()
            await node.gateway.__aexit__(None, None, None)
            first = await node.unprepare(DRIVER, claim, never)
            again = await node.unprepare(DRIVER, claim)
            await node.gateway.__aenter__()

        assert first == {claim.uid: None, never.uid: None}
        assert again == {claim.uid: None}


class TestCrash:
    async def test_the_same_answer_after_a_kill(
        self, node: PeerNode, go_driver: Make, cdiresolve: Path
    ) -> None:
        """A driver that was killed answers as before, so that asking again is safe."""
        claim = claim_of(node, "a")
        with go_driver() as driver:
            before = await prepared(node, claim)
            repeated = await prepared(node, claim)
            driver.kill()
            await eventually(lambda: not node.instances(DRIVER), "the driver is lost")
            driver.start()
            after = await prepared(node, claim)
            answer = resolve(cdiresolve, driver.cdi_dir, cdi_ids(after.devices))

        assert before == repeated == after
        assert answer.unresolved == []

    async def test_a_boot_without_cdi_files(
        self, node: PeerNode, go_driver: Make, cdiresolve: Path
    ) -> None:
        """Prepared again after a boot, ids resolve again though all files were gone."""
        claim = claim_of(node, "a")
        with go_driver() as driver:
            ids = cdi_ids((await prepared(node, claim)).devices)
            driver.kill()
            for file in driver.cdi_dir.iterdir():
                file.unlink()
            await eventually(lambda: not node.instances(DRIVER), "the driver is lost")
            driver.start()
            again = cdi_ids((await prepared(node, claim)).devices)
            answer = resolve(cdiresolve, driver.cdi_dir, again)

        assert again == ids
        assert answer.unresolved == []

    @pytest.mark.parametrize("when", ["panic_before_prepare", "panic_after_prepare"])
    async def test_a_panic_is_an_unknown_outcome(
        self, node: PeerNode, go_driver: Make, when: str
    ) -> None:
        """Whether a driver that dies in a call has done its work is unknown; repeating is safe."""
        claim = claim_of(node, "a")
        with go_driver() as driver:
            await node.instance(DRIVER)
            driver.inject(**{when: True})
            with pytest.raises(DriverCallError) as caught:
                await node.prepare(DRIVER, claim)
            await eventually(lambda: driver.has_ended, "the driver is dead")
            await eventually(lambda: not node.instances(DRIVER), "the driver is lost")
            driver.inject()
            driver.start()
            outcome = await prepared(node, claim)

        assert caught.value.outcome == "unknown"
        assert len(outcome.devices) == 1

    async def test_the_gateway_may_restart(self, node: PeerNode, go_driver: Make) -> None:
        """A driver keeps its kubeconfig and publishes again when the gateway was away."""
        claim, client = claim_of(node, "a"), node.client(DRIVER)
        with go_driver(**FAST) as driver:
            await node.instance(DRIVER)
            text = "Created new resource slice"
            await eventually(lambda: text in driver.log.read_text(), text)
            await node.gateway.__aexit__(None, None, None)
            await node.gateway.__aenter__()
            await prepared(node, claim)
            await eventually(lambda: driver.log.read_text().count(text) == 2, "published again")
            answer = await client.get(SLICES)

        assert b"dev-7" in answer.body


class TestRollingUpdate:
    async def test_two_instances_share_their_claims(self, node: PeerNode, go_driver: Make) -> None:
        """The newest connected instance is called; what one prepared the other unprepares."""
        claim = claim_of(node, "a")
        with go_driver(uid="old") as old:
            before = await prepared(node, claim)
            with go_driver(uid="new") as new:
                newest = await node.instance(DRIVER, count=2)
                again = await newest.adapter.prepare([claim], timeout_seconds=CALL_SECONDS)
                new.kill()
                await eventually(lambda: len(node.instances(DRIVER)) == 1, "one is lost")
                answers = await node.unprepare(DRIVER, claim)

            assert newest.endpoint.endswith("dra-new.sock")
            assert again == {claim.uid: before}
            assert answers == {claim.uid: None}
            assert [len(old.calls(m)) for m in ("prepare", "unprepare")] == [1, 1]
            assert [len(new.calls(m)) for m in ("prepare", "unprepare")] == [1, 0]

    async def test_the_old_one_leaves(self, node: PeerNode, go_driver: Make) -> None:
        """As upstream rolls: the new one comes, the old one is asked to end, nothing is lost."""
        claim = claim_of(node, "a")
        with go_driver(uid="old") as old, go_driver(uid="new") as new:
            await node.instance(DRIVER, count=2)
            # Asked earlier, upstream's helper takes it for a failure.
            await eventually(lambda: '"Ready"' in old.log.read_text(), "the old one is up")
            assert old.terminate() == 0
            await eventually(lambda: len(node.instances(DRIVER)) == 1, "the old one is gone")
            await prepared(node, claim)

            assert len(new.calls("prepare")) == 1
            assert not (node.root / "plugins" / DRIVER / "dra-old.sock").exists()

    async def test_a_shortened_name_is_no_obstacle(
        self, short_dir: Path, helperdriver: Path
    ) -> None:
        """The helper shortens long socket names by hashes, so no name is ever read off one."""
        uid = "01234567-89ab-cdef-0123-456789abcdef"
        # In a directory of this length the usual name does not fit, but the driver's endpoint does.
        root = short_dir / ("x" * (29 - len(str(short_dir))))
        async with PeerNode(root) as node:
            with node.helper_driver(helperdriver, uid=uid):
                instance = await node.instance(DRIVER)
            (socket,) = (root / "plugins_registry").iterdir()

        assert instance.driver == DriverName(DRIVER)
        assert instance.endpoint.endswith(f"dra-{uid}.sock")
        assert uid not in socket.name


async def test_a_stale_socket_is_not_a_driver(node: PeerNode, go_driver: Make) -> None:
    """A killed driver leaves its sockets; they are kept, and nobody is called through them."""
    with go_driver() as driver:
        await node.instance(DRIVER)
        driver.kill()
        await eventually(lambda: not node.instances(DRIVER), "the driver is lost")
        sockets = list((node.root / "plugins_registry").iterdir())

        assert [path.name for path in sockets] == [f"{DRIVER}-reg.sock"]
    assert (await node.client(DRIVER).get(f"/api/v1/nodes/{NODE}")).code == 200
