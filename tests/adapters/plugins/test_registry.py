"""
Registration as the kubelet does it, with real drivers on real sockets.

Kubelet's own scenarios of its plugin manager, and reports from the field.  Delays between
attempts are noted and shortened; connections and calls take the time that they take.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.plugins.driver_process import DRIVER, DriverProcess, eventually
from tests.adapters.plugins.local_driver import LocalDriver
from tests.adapters.plugins.node import Node, claim

from claimlet.engine.ports import DriverCallError, Prepared
from claimlet.events.values import ClaimUid, DriverName

A = ClaimUid("uid-a")


class TestHandshake:
    """Ask, judge, tell."""

    @pytest.mark.scenario("G02")
    @pytest.mark.field(69)
    @pytest.mark.parametrize(
        ("versions", "api"),
        [
            (["v1beta1.DRAPlugin"], "v1beta1"),
            (["v1.DRAPlugin"], "v1"),
            (["v1beta1.DRAPlugin", "v1.DRAPlugin"], "v1beta1"),
        ],
    )
    async def test_version_of_the_driver(self, root: Path, versions: list[str], api: str) -> None:
        """The driver's own order decides, the driver is told yes, and calls go that way."""
        async with Node(root) as node, LocalDriver(root, versions=tuple(versions)) as driver:
            instance = await node.instance()
            outcomes = await node.prepare(claim("a"))

        assert instance.api == api
        assert instance.supported_versions == tuple(versions)
        assert driver.told() == [(True, "")]
        assert isinstance(outcomes[A], Prepared)
        assert driver.calls("prepare")[0]["api"] == api

    @pytest.mark.scenario("G01", "G03")
    @pytest.mark.field(69)
    @pytest.mark.parametrize(
        "versions",
        [[], ["1.0.0"], ["v1alpha4"], ["v1alpha3.NodeService"], ["v1.DRAResourceHealth"]],
    )
    async def test_refusal(self, root: Path, versions: list[str]) -> None:
        """A driver without a known service is told so in words, again and again, and not known."""
        async with Node(root) as node, LocalDriver(root, versions=tuple(versions)) as driver:
            await eventually(lambda: len(driver.told()) >= 2, "the driver was told twice")

            status = await node.status("failed")
            assert node.registry.find(DriverName(DRIVER)) is None

        assert not node.heard
        assert all(not registered and "services" in text for registered, text in driver.told())
        assert all(version in status.error for version in versions)

    @pytest.mark.parametrize(
        "options", [{"driver": "Not.A.Driver"}, {"advertise": "dra.sock"}, {"advertise": "/" * 120}]
    )
    async def test_bad_names(self, root: Path, options: dict[str, Any]) -> None:
        """A name or an endpoint that cannot be is refused with the reason."""
        async with Node(root) as node, LocalDriver(root, **options) as driver:
            await eventually(driver.told, "the driver was told")
            await node.status("failed")

        assert not node.heard
        registered, text = driver.told()[0]
        assert not registered
        assert text

    @pytest.mark.field(70)
    @pytest.mark.parametrize("plugin_type", ["CSIPlugin", "DevicePlugin", "", "draplugin"])
    async def test_other_types(self, root: Path, plugin_type: str) -> None:
        """
        A plugin of another type hears nothing at all, and drivers beside it are registered.

        Upstream refuses it; registrars of other types end on a refusal (rule 10).
        """
        async with (
            Node(root) as node,
            LocalDriver(root, driver="csi.example.com", plugin_type=plugin_type) as other,
            LocalDriver(root),
        ):
            await node.instance()
            status = await node.status("ignored")

        assert repr(plugin_type) in status.error
        assert len(other.calls("get_info")) == 1
        assert other.told() == []

    @pytest.mark.scenario("G04")
    @pytest.mark.field(60)
    async def test_get_info_fails_at_first(self, root: Path) -> None:
        """Failures are tried again with doubled delays; the fourth attempt succeeds."""
        fault = {"method": "get_info", "status": "UNAVAILABLE", "times": 3}
        async with Node(root) as node, LocalDriver(root, fault) as driver:
            await node.instance()
            delays = [*node.world.delays]

            (status,) = node.registry.sockets()

        assert delays == [0.5, 1.0, 2.0]
        assert sum(delays) < 10
        assert len(driver.calls("get_info")) == 4
        assert driver.told() == [(True, "")]
        assert (status.state, status.attempts) == ("connected", 0)

    @pytest.mark.field(60)
    async def test_attempts_are_shown(self, root: Path) -> None:
        """While a driver does not answer, its socket shows attempts, error and next try."""
        async with (
            Node(root) as node,
            LocalDriver(root, {"method": "get_info", "status": "INTERNAL"}),
        ):
            await eventually(lambda: len(node.world.delays) > 10, "the delay has reached its limit")

            status = await node.status("failed")

        assert max(node.world.delays) == 122.0
        assert status.attempts > 10
        assert status.retry_seconds == 122.0
        assert "GetInfo" in status.error

    @pytest.mark.field(60)
    async def test_get_info_hangs(self, root: Path) -> None:
        """GetInfo has one second; a driver that is slow once is asked again."""
        fault = {"method": "get_info", "hang": True, "times": 1}
        async with Node(root) as node, LocalDriver(root, fault) as driver:
            await node.instance()

        assert len(driver.calls("get_info")) == 2

    async def test_notification_fails(self, root: Path) -> None:
        """A driver that does not take the good news is not registered; it is asked again."""
        fault = {"method": "notify", "status": "INTERNAL", "times": 2}
        async with Node(root) as node, LocalDriver(root, fault) as driver:
            await node.instance()

            assert len(node.heard) == 1

        assert len(driver.calls("get_info")) == 3
        assert len({instance for _, instance in node.heard}) == 1


class TestComingAndGoing:
    """A driver is what answers now on its socket."""

    @pytest.mark.scenario("G05")
    async def test_manager_restarts(self, root: Path) -> None:
        """A driver that is there when the node manager starts is registered, each time anew."""
        async with LocalDriver(root) as driver:
            async with Node(root) as first:
                before = await first.instance()
            async with Node(root) as second:
                after = await second.instance()
                outcomes = await second.prepare(claim("a"))

        assert before.instance != after.instance
        assert first.heard == [("registered", before.instance)]  # we left, the driver did not
        assert driver.told() == [(True, ""), (True, "")]
        assert isinstance(outcomes[A], Prepared)

    @pytest.mark.scenario("G06")
    async def test_driver_restarts(self, root: Path) -> None:
        """A driver that stops and starts again is another instance."""
        async with Node(root) as node, DriverProcess(root) as driver:
            first = await node.instance()
            assert await driver.stop() == 0
            await node.is_gone(first)
            assert node.registry.find(DriverName(DRIVER)) is None

            await driver.start()
            second = await node.instance()
            heard = [*node.heard]

        assert first.instance != second.instance
        assert [event for event, _ in heard] == ["registered", "gone", "registered"]

    @pytest.mark.field(61, 65)
    async def test_driver_is_killed(self, root: Path) -> None:
        """A killed driver is gone at once though its sockets stay; once back it is registered."""
        async with Node(root) as node, DriverProcess(root) as driver:
            first = await node.instance()
            clock = node.world.monotonic()
            await driver.kill()
            await node.is_gone(first)
            noticed_after = node.world.monotonic() - clock

            assert driver.paths.registration_socket.is_socket()
            assert driver.paths.service_socket.is_socket()
            with pytest.raises(DriverCallError) as caught:
                await node.prepare(claim("a"))

            await driver.start()
            second = await node.instance()
            outcomes = await node.prepare(claim("a"))
            heard = [*node.heard]

        assert noticed_after < 1  # the rule itself is about time
        assert caught.value.outcome == "unreachable"
        assert isinstance(outcomes[A], Prepared)
        # What is late of the first instance cannot touch the second one.
        assert heard == [
            ("registered", first.instance),
            ("gone", first.instance),
            ("registered", second.instance),
        ]

    @pytest.mark.field(66)
    async def test_call_while_the_driver_is_away(self, root: Path) -> None:
        """In the window after a driver's death calls fail as never made; the driver stays known."""
        async with Node(root) as node, DriverProcess(root) as driver:
            first = await node.instance()
            await driver.kill()
            await node.is_gone(first)

            for _ in range(3):
                with pytest.raises(DriverCallError) as caught:
                    await node.prepare(claim("a"))
                assert caught.value.outcome == "unreachable"
            status = await node.status("failed")

        assert status.driver == DRIVER
        assert node.reasons == ["connection lost"]

    async def test_stale_sockets(self, root: Path) -> None:
        """Sockets that a killed driver left are no driver, are asked for ever, and are kept."""
        async with DriverProcess(root) as driver, Node(root) as before:
            await before.instance()
            await driver.kill()
            async with Node(root) as node:
                await eventually(lambda: len(node.world.delays) > 5, "it was tried six times")

                assert node.registry.find(DriverName(DRIVER)) is None
                assert not node.heard

            assert driver.paths.registration_socket.is_socket()
            assert driver.paths.service_socket.is_socket()

    async def test_socket_is_replaced(self, root: Path) -> None:
        """A socket that was replaced in place is another driver, even if nobody saw it missing."""
        async with Node(root) as node, DriverProcess(root) as driver:
            first = await node.instance()
            registration = driver.paths.registration_socket
            async with LocalDriver(root, instance="new") as newer:
                await node.instance(count=2)
                newer.options.registration_socket.rename(registration)
                await node.is_gone(first)

                second = await node.instance()

                assert second.endpoint == str(newer.options.service_socket)

    @pytest.mark.scenario("G12")
    async def test_service_stops_and_returns(self, root: Path) -> None:
        """A service that stops and returns while the registration stays can be called again."""
        async with Node(root) as node, LocalDriver(root) as driver:
            first = await node.instance()
            await node.prepare(claim("a"))
            await driver.stop_service()
            await node.is_gone(first)
            with pytest.raises(DriverCallError) as caught:
                await node.unprepare(claim("a"))

            await driver.start_service()
            second = await node.instance()
            done = await node.unprepare(claim("a"))

        assert caught.value.outcome == "unreachable"
        assert first.instance != second.instance
        assert done == {A: None}

    @pytest.mark.scenario("G11")
    async def test_service_opens_late(self, root: Path) -> None:
        """A driver is told yes at once and counts as there when its service can be reached."""
        async with Node(root) as node, LocalDriver(root) as driver:
            first = await node.instance()
            await driver.stop_service()
            await node.is_gone(first)
            await eventually(lambda: len(driver.told()) == 2, "it was told yes once more")
            await node.status("waiting")
            assert not node.connected

            await driver.start_service()
            await node.instance()

            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

        assert driver.told() == [(True, ""), (True, "")]

    @pytest.mark.scenario("G11")
    async def test_service_opens_after_the_registration(self, root: Path) -> None:
        """A driver whose service is not there at all yet is registered when it is."""
        async with Node(root) as node, LocalDriver(root, service_delay_seconds=0.5) as driver:
            await node.status("waiting")
            assert not driver.options.service_socket.exists()
            known = node.find()
            with pytest.raises(DriverCallError) as caught:
                await node.prepare(claim("a"))

            assert (await node.instance()).instance == known.instance
            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

        assert caught.value.outcome == "unreachable"

    @pytest.mark.scenario("G11")
    async def test_one_socket(self, root: Path) -> None:
        """A driver may serve everything on its registration socket."""
        async with Node(root) as node, LocalDriver(root, one_socket=True) as driver:
            instance = await node.instance()

            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

        assert instance.endpoint == str(driver.options.registration_socket)

    async def test_leaves_during_a_call(self, root: Path) -> None:
        """A call in flight may end when the driver takes its registration away."""
        async with Node(root) as node, LocalDriver(root, {"delay_seconds": 0.5}) as driver:
            first = await node.instance()
            call = asyncio.ensure_future(node.prepare(claim("a")))
            await eventually(lambda: driver.calls("prepare"), "the call has arrived")
            driver.options.registration_socket.unlink()
            await node.is_gone(first)

            assert isinstance((await call)[A], Prepared)

    async def test_flapping(self, root: Path) -> None:
        """A connection that never holds is tried less and less often."""
        async with Node(root) as node, LocalDriver(root) as driver:
            for _ in range(4):
                instance = await node.instance()
                await driver.stop_service()
                await node.is_gone(instance)
                await driver.start_service()
            await node.instance()
            delays = [*node.world.delays]

        assert delays == [0.5, 1.0, 2.0, 4.0]

    @pytest.mark.scenario("G17")
    async def test_deregister_twice(self, root: Path) -> None:
        """A registration that is taken away is gone once, however often that is seen."""
        async with Node(root, rescan_seconds=0.05) as node, LocalDriver(root) as driver:
            first = await node.instance()
            driver.options.registration_socket.unlink()
            await node.is_gone(first)
            for _ in range(3):
                node.registry._scan()

        assert node.heard == [("registered", first.instance), ("gone", first.instance)]
        assert node.reasons == ["socket removed"]
