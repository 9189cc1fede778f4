"""Pods' lives through the whole service and third parties' drivers, through kills and a reboot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.service_process import BOOTS, eventually
from tests.peers.peer import HelperDriver
from tests.peers.service import PEERS, PeerService, driver_of, made

pytestmark = pytest.mark.peers


@pytest.fixture(params=list(PEERS))
def node(request: pytest.FixtureRequest, short_dir: Path) -> Iterator[PeerService]:
    """Give a running service with one third-party driver."""
    peer = PEERS[request.param]
    with made(short_dir, peer, request.getfixturevalue(peer.program)) as node:
        yield node


def own(ids: list[str]) -> list[str]:
    """Return the ids that are a claim's own; drivers also answer with one for all."""
    return [cdi for cdi in ids if not cdi.endswith("=common")]


class TestLife:
    def test_devices_come_and_go(self, node: PeerService, cdiresolve: Path) -> None:
        """Each id resolves and can be injected while its pod is there, and not after."""
        pod = node.manifest("p", "a", "b")
        ids = node.prepare(pod)
        there = node.resolved(cdiresolve, ids)
        node.unprepare("p")
        gone = node.resolved(cdiresolve, own(ids))

        assert (there.unresolved, there.file_errors) == ([], {})
        assert len(own(ids)) == len(node.peer.devices)
        assert there.oci is not None
        assert gone.resolved == []
        assert node.good("claims", "list", "-A", "-o", "json")["items"][0]["owed"] == []

    def test_a_killed_service_forgets_nothing(self, node: PeerService, cdiresolve: Path) -> None:
        """After kill -9 it answers from the log, calls nobody, and can still unprepare."""
        ids = node.prepare(node.manifest("p", "a"))
        node.service.crash()
        after = node.prepare(node.manifest("p", "a"))
        answer = node.resolved(cdiresolve, ids)
        node.until_registered()
        node.unprepare("p")
        words = [fact["fact"] for fact in node.history("ml/a")]

        assert after == ids
        assert answer.unresolved == []
        assert words.count("driver_prepared") == 1
        assert words[-1] == "unprepared"
        assert node.resolved(cdiresolve, own(ids)).resolved == []

    def test_a_kill_in_the_middle_leaks_nothing(self, node: PeerService, cdiresolve: Path) -> None:
        """A service killed right after the wish was stored goes on; then all is taken back."""
        ran = node.call("pod", "prepare", "-f", str(node.manifest("p", "a")))
        assert ran.code == 0, ran
        node.service.crash()
        ids = node.prepare(node.manifest("p", "a"))
        answer = node.resolved(cdiresolve, ids)
        node.until_registered()
        node.unprepare("p")

        assert answer.unresolved == []
        assert node.resolved(cdiresolve, own(ids)).resolved == []

    def test_a_killed_driver_comes_back(self, node: PeerService, cdiresolve: Path) -> None:
        """What waits for a dead driver is done when it returns, by itself."""
        ids = node.prepare(node.manifest("p", "a"))
        node.driver.kill()
        node.until_registered(0)
        ran = node.call("pod", "unprepare", "ml/p")
        assert ran.code == 0, ran
        node.driver.start()
        eventually(lambda: node.service.claims()["ml/a"].state == "unprepared", "the debt is paid")

        assert node.resolved(cdiresolve, own(ids)).resolved == []


@pytest.fixture
def slow(short_dir: Path, helperdriver: Path) -> Iterator[tuple[PeerService, HelperDriver]]:
    """Give a running service whose driver can be made slow, so that it is met within a call."""
    with made(short_dir, PEERS["helper"], helperdriver) as node:
        assert isinstance(node.driver, HelperDriver)
        yield node, node.driver


class TestWithinACall:
    @pytest.mark.parametrize("who", ["service", "driver"])
    def test_a_kill_loses_nothing(
        self, slow: tuple[PeerService, HelperDriver], cdiresolve: Path, who: str
    ) -> None:
        """Killed while the driver prepares, the call is made once more, and the claim is whole."""
        node, driver = slow
        driver.inject(delay_ms=1000)
        ran = node.call("pod", "prepare", "-f", str(node.manifest("p", "a")))
        assert ran.code == 0, ran
        eventually(lambda: driver.calls("prepare"), "the call is there")
        if who == "service":
            node.service.crash()
        else:
            driver.kill()
        driver.inject()
        if who == "driver":
            driver.start()
        ids = node.prepare(node.manifest("p", "a"))
        answer = node.resolved(cdiresolve, ids)
        node.until_registered()
        node.unprepare("p")

        assert answer.unresolved == []
        assert len(driver.calls("prepare")) == 2
        assert node.resolved(cdiresolve, own(ids)).resolved == []


class TestReboot:
    def test_asks_again(self, node: PeerService, cdiresolve: Path) -> None:
        """The driver is asked once more; what nobody could use is said in log and history."""
        ids = node.prepare(node.manifest("p", "a"))
        node.reboot(BOOTS[1])
        waiting = node.service.claims()["ml/a"].state
        node.driver.start()
        node.until_registered()
        again = node.prepare(node.manifest("p", "a"))
        answer = node.resolved(cdiresolve, again)
        words = [fact["fact"] for fact in node.history("ml/a")]

        assert waiting == "needs-reprepare-after-boot"
        assert again == ids
        assert words.count("driver_prepared") == 2
        if node.peer.is_good_after_reboot:
            assert answer.unresolved == []
            assert "anomaly_found" not in words
        else:
            assert set(answer.unresolved) == set(own(ids)), "the driver was mended: say so in PEERS"
            told_of(node, own(ids)[0], times=1)

    def test_an_order_asks_again(self, node: PeerService, cdiresolve: Path) -> None:
        """`claims reprepare` asks once more; a driver that stays wrong needs its pod made anew."""
        ids = node.prepare(node.manifest("p", "a"))
        node.driver.kill()
        for file in node.driver.cdi_dir.iterdir():
            file.unlink()
        node.driver.start()
        node.until_registered()
        ran = node.call("claims", "reprepare", "ml/a")
        eventually(lambda: words_of(node).count("prepared") == 2, "prepared once more")
        answer = node.resolved(cdiresolve, own(ids))

        assert ran.out == "the drivers of claim ml/a are asked again\n"
        if node.peer.is_good_after_reboot:
            assert answer.unresolved == []
            assert "anomaly_found" not in words_of(node)
            return
        assert answer.unresolved == own(ids)
        told_of(node, own(ids)[0], times=1)
        node.unprepare("p")
        assert node.resolved(cdiresolve, node.prepare(node.manifest("q", "b"))).unresolved == []


def words_of(node: PeerService) -> list[str]:
    """Return the facts of the claim, by their names."""
    return [fact["fact"] for fact in node.history("ml/a")]


def told_of(node: PeerService, cdi_id: str, *, times: int) -> None:
    """Check that the id is told as unusable: in the claim's history and by the service."""
    found = [fact for fact in node.history("ml/a") if fact["fact"] == "anomaly_found"]
    assert len(found) == times
    assert f"no CDI file defines {cdi_id}: no container can start" in str(found)
    warnings = [line for line in node.service.said().splitlines() if '"warning"' in line]
    assert any("anomaly_found" in line and cdi_id in line for line in warnings)


def test_a_rolling_update_shares_the_claims(
    short_dir: Path, helperdriver: Path, cdiresolve: Path
) -> None:
    """The newest instance is called, also for what the old one prepared; nothing is lost."""
    peer = PEERS["helper"]
    with made(short_dir, peer, helperdriver, uid="old") as node:
        ids = node.prepare(node.manifest("p", "a"))
        with driver_of(node.service, peer, helperdriver, uid="new") as new:
            assert isinstance(new, HelperDriver)
            node.until_registered(2)
            more = node.prepare(node.manifest("q", "b", first=1))
            node.driver.kill()
            node.until_registered(1)
            answer = node.resolved(cdiresolve, ids + more)
            node.unprepare("p")
            node.unprepare("q")

            assert answer.unresolved == []
            assert [len(new.calls(m)) for m in ("prepare", "unprepare")] == [1, 2]
            assert node.resolved(cdiresolve, own(ids + more)).resolved == []
