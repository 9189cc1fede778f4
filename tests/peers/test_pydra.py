"""The TPU driver of kubernetes-pydra: a third party's framework, unmodified, in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapters.gateway.client import NODE, SLICES, gateway_claim
from tests.peers.node import PeerNode, eventually
from tests.peers.peer import PydraDriver, cdi_ids, resolve

from claimlet.engine.ports import Claim, Prepared
from claimlet.events.values import PreparedDevice

pytestmark = pytest.mark.peers

DRIVER = PydraDriver.name
ANSWER = Prepared(
    devices=(PreparedDevice(pool=DRIVER, device="0", cdi_device_ids=(f"{DRIVER}/device=0",)),)
)


def claim_of(node: PeerNode, name: str) -> Claim:
    """Return a claim of the one device."""
    return node.add(gateway_claim(name, DRIVER))


@pytest.fixture
def driver(pydra_python: str, node: PeerNode) -> PydraDriver:
    """Return the driver, not started, without an API server."""
    return PydraDriver(pydra_python, node.root, node=NODE, kubeconfig=None)


async def test_prepares_and_unprepares(node: PeerNode, driver: PydraDriver) -> None:
    """It answers with its own name as pool and for all requests; that is taken as it is."""
    claim = claim_of(node, "a")
    with driver:
        instance = await node.instance(DRIVER)
        prepared = await node.prepare(DRIVER, claim)
        files = [path.name for path in driver.cdi_dir.iterdir()]
        unprepared = await node.unprepare(DRIVER, claim)
        again = await node.unprepare(DRIVER, claim)

    assert instance.supported_versions == ("v1.DRAPlugin",)
    assert prepared == {claim.uid: ANSWER}
    assert files == [f"{DRIVER}_uid-a.json"]
    assert unprepared == again == {claim.uid: None}
    assert list(driver.cdi_dir.iterdir()) == []


async def test_the_same_after_a_kill(node: PeerNode, driver: PydraDriver) -> None:
    """It leaves both sockets when it dies and replaces them when it comes back."""
    claim = claim_of(node, "a")
    with driver:
        before = await node.prepare(DRIVER, claim)
        driver.kill()
        await eventually(lambda: not node.instances(DRIVER), "the driver is lost")
        driver.start()
        after = await node.prepare(DRIVER, claim)

    assert before == after == {claim.uid: ANSWER}


async def test_publishes_in_json(node: PeerNode, pydra_python: str) -> None:
    """Its client writes JSON, reads what it finds, and replaces it when it starts again."""
    kubeconfig = node.gateway.kubeconfig_for(DRIVER)
    client = node.client(DRIVER)
    with PydraDriver(pydra_python, node.root, node=NODE, kubeconfig=kubeconfig) as driver:
        await eventually(lambda: "Creating ResourceSlice" in driver.log.read_text(), "created")
        await node.prepare(DRIVER, claim_of(node, "a"))
        driver.kill()
        driver.start()
        await eventually(lambda: "Replacing it" in driver.log.read_text(), "replaced")
        await node.prepare(DRIVER, claim_of(node, "a"))
        slices = (await client.get(SLICES)).json()["items"]

    assert [item["spec"]["devices"] for item in slices] == [[{"name": "0"}]]


async def test_two_claims_spoil_its_cdi_id(
    node: PeerNode, driver: PydraDriver, cdiresolve: Path
) -> None:
    """It defines one id in a file per claim, which the reference library calls a conflict."""
    first, second = claim_of(node, "a"), claim_of(node, "b")
    with driver:
        await node.prepare(DRIVER, first)
        ids = cdi_ids(ANSWER.devices)
        alone = resolve(cdiresolve, driver.cdi_dir, ids)
        await node.prepare(DRIVER, second)
        together = resolve(cdiresolve, driver.cdi_dir, ids)

    assert alone.unresolved == []
    assert together.unresolved == ids
    assert any("conflicting device" in e for found in together.file_errors.values() for e in found)
