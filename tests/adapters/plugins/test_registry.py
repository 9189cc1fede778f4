"""
Registration as the kubelet does it, with real drivers on real sockets.

The rows G of spec/node-manager.md section 8 and kind I of spec/field-reports.md.  Delays between
attempts are noted and shortened; connections and calls take the time that they take.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.plugins.driver_process import (
    DRIVER,
    DriverProcess,
    calls_in,
    eventually,
    write_script,
)
from tests.adapters.plugins.node import Node, claim

from claimlet.adapters.plugins.simulator.driver import SimulatedDriver
from claimlet.adapters.plugins.simulator.options import DriverOptions
from claimlet.engine.ports import DriverCallError, Prepared
from claimlet.events.values import ClaimUid, DriverName

A = ClaimUid("uid-a")


class Driver(SimulatedDriver):
    """A simulated driver in this process, with its ledger and its script."""

    def __init__(self, root: Path, *steps: dict[str, Any], **options: Any) -> None:
        name = options.pop("driver", DRIVER)
        self.ledger = root / f"{name}{options.get('instance', '')}.ledger"
        script = root / f"{name}{options.get('instance', '')}.script.json"
        write_script(script, steps=steps)
        super().__init__(
            DriverOptions(root=root, driver=name, script=script, ledger=self.ledger, **options)
        )

    def calls(self, method: str = "") -> list[dict[str, Any]]:
        return calls_in(self.ledger, method)

    def told(self) -> list[tuple[bool, str]]:
        """Return what the driver was told about its registration."""
        statuses = [call["status"] for call in self.calls("notify")]
        return [(status["registered"], status["error"]) for status in statuses]


@asynccontextmanager
async def counting(front: Path, back: Path) -> AsyncIterator[list[int]]:
    """Forward connections from *front* to *back* and give the list that counts them."""
    accepted: list[int] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(len(accepted) + 1)
        back_reader, back_writer = await asyncio.open_unix_connection(str(back))
        await asyncio.gather(copy(reader, back_writer), copy(back_reader, writer))
        done.set()

    done = asyncio.Event()
    async with await asyncio.start_unix_server(forward, front):
        yield accepted
    await done.wait()


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
        async with Node(root) as node, Driver(root, versions=tuple(versions)) as driver:
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
        async with Node(root) as node, Driver(root, versions=tuple(versions)) as driver:
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
        async with Node(root) as node, Driver(root, **options) as driver:
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

        Upstream refuses it; registrars of other types end on a refusal (design.md rule 10).
        """
        async with (
            Node(root) as node,
            Driver(root, driver="csi.example.com", plugin_type=plugin_type) as other,
            Driver(root),
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
        async with Node(root) as node, Driver(root, fault) as driver:
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
        async with Node(root) as node, Driver(root, {"method": "get_info", "status": "INTERNAL"}):
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
        async with Node(root) as node, Driver(root, fault) as driver:
            await node.instance()

        assert len(driver.calls("get_info")) == 2

    async def test_notification_fails(self, root: Path) -> None:
        """A driver that does not take the good news is not registered; it is asked again."""
        fault = {"method": "notify", "status": "INTERNAL", "times": 2}
        async with Node(root) as node, Driver(root, fault) as driver:
            await node.instance()

            assert len(node.heard) == 1

        assert len(driver.calls("get_info")) == 3
        assert len({instance for _, instance in node.heard}) == 1


class TestComingAndGoing:
    """A driver is what answers now on its socket."""

    @pytest.mark.scenario("G05")
    async def test_manager_restarts(self, root: Path) -> None:
        """A driver that is there when the node manager starts is registered, each time anew."""
        async with Driver(root) as driver:
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
            async with Driver(root, instance="new") as newer:
                await node.instance(count=2)
                newer.options.registration_socket.rename(registration)
                await node.is_gone(first)

                second = await node.instance()

                assert second.endpoint == str(newer.options.service_socket)

    @pytest.mark.scenario("G12")
    @pytest.mark.parametrize("one_socket", [False])
    async def test_service_stops_and_returns(self, root: Path, *, one_socket: bool) -> None:
        """A service that stops and returns while the registration stays can be called again."""
        async with Node(root) as node, Driver(root, one_socket=one_socket) as driver:
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
        async with Node(root) as node, Driver(root) as driver:
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
        async with Node(root) as node, Driver(root, service_delay_seconds=0.5) as driver:
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
        async with Node(root) as node, Driver(root, one_socket=True) as driver:
            instance = await node.instance()

            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

        assert instance.endpoint == str(driver.options.registration_socket)

    async def test_leaves_during_a_call(self, root: Path) -> None:
        """A call in flight may end when the driver takes its registration away."""
        async with Node(root) as node, Driver(root, {"delay_seconds": 0.5}) as driver:
            first = await node.instance()
            call = asyncio.ensure_future(node.prepare(claim("a")))
            await eventually(lambda: driver.calls("prepare"), "the call has arrived")
            driver.options.registration_socket.unlink()
            await node.is_gone(first)

            assert isinstance((await call)[A], Prepared)

    async def test_flapping(self, root: Path) -> None:
        """A connection that never holds is tried less and less often."""
        async with Node(root) as node, Driver(root) as driver:
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
        async with Node(root, rescan_seconds=0.05) as node, Driver(root) as driver:
            first = await node.instance()
            driver.options.registration_socket.unlink()
            await node.is_gone(first)
            for _ in range(3):
                node.registry._scan()

        assert node.heard == [("registered", first.instance), ("gone", first.instance)]
        assert node.reasons == ["socket removed"]


class TestInstances:
    """Several instances of one driver, as during a rolling update."""

    @pytest.mark.scenario("G07", "G08")
    @pytest.mark.field(64)
    async def test_newest_connected(self, root: Path) -> None:
        """The newest is called; when it dies the older one; when that leaves, the newer stays."""
        async with (
            Node(root) as node,
            Driver(root, instance="old") as old,
            DriverProcess(root, DRIVER, "--instance", "new") as new,
        ):
            both = await node.instance(count=2)
            assert both.endpoint == str(new.paths.service_socket)

            await new.kill()
            fallen_back = await node.instance()
            assert fallen_back.endpoint == str(old.options.service_socket)
            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

            await new.start()
            again = await node.instance(count=2)
            assert again.endpoint == str(new.paths.service_socket)

            old.options.registration_socket.unlink()
            await node.is_gone(fallen_back)
            assert node.find() == again
            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

    @pytest.mark.field(64)
    async def test_flap_of_the_old_one(self, root: Path) -> None:
        """An old instance whose connection was lost for a moment does not overtake the new one."""
        async with Node(root) as node, Driver(root, instance="old") as old:
            first = await node.instance()
            async with Driver(root, instance="new") as new:
                await node.instance(count=2)
                await old.stop_service()
                await node.is_gone(first)
                await old.start_service()

                found = await node.instance(count=2)

                assert found.endpoint == str(new.options.service_socket)

    @pytest.mark.scenario("G07")
    async def test_same_endpoint(self, root: Path) -> None:
        """The same driver at the same endpoint is refused while the first one is there."""
        async with Node(root) as node, Driver(root, instance="a") as first:
            instance = await node.instance()
            same = {"instance": "b", "advertise": str(first.options.service_socket)}
            async with Driver(root, **same) as second:
                await eventually(second.told, "the second one was told")

                assert node.find() == instance

                first.options.registration_socket.unlink()
                await eventually(lambda: (True, "") in second.told(), "the endpoint was free")
                await node.is_gone(instance)
                await node.instance()

        registered, text = second.told()[0]
        assert not registered
        assert "already" in text

    async def test_same_endpoint_after_a_kill(self, root: Path) -> None:
        """A dead instance does not keep its endpoint from one that registers under another name."""
        async with Node(root) as node, DriverProcess(root, DRIVER, "--instance", "a") as first:
            instance = await node.instance()
            await first.kill()
            await node.is_gone(instance)
            first.paths.service_socket.unlink()
            async with Driver(root, instance="b") as second:
                second.options.service_socket.rename(first.paths.service_socket)
                second.options.service_socket.symlink_to(first.paths.service_socket)
                found = await node.instance()

                assert found.endpoint == str(second.options.service_socket)

    @pytest.mark.scenario("G09")
    async def test_none_connected(self, root: Path) -> None:
        """Where none is connected the newest is called, and its error is what the caller gets."""
        async with (
            Node(root) as node,
            DriverProcess(root, DRIVER, "--instance", "old") as old,
        ):
            await node.instance()
            async with DriverProcess(root, DRIVER, "--instance", "new") as new:
                await node.instance(count=2)
                await old.kill()
                await new.kill()
                await eventually(lambda: not node.connected, "both are gone")

                assert node.find().endpoint == str(new.paths.service_socket)
                with pytest.raises(DriverCallError, match="dra-new") as caught:
                    await node.prepare(claim("a"))

        assert caught.value.outcome == "unreachable"

    @pytest.mark.scenario("G10")
    async def test_handover(self, root: Path) -> None:
        """What the old instance prepared, the new one knows and unprepares."""
        async with Node(root) as node, DriverProcess(root, DRIVER, "--instance", "old") as old:
            before = await node.instance()
            first = await node.prepare(claim("a"))
            async with DriverProcess(root, DRIVER, "--instance", "new") as new:
                await node.instance(count=2)
                await old.stop()
                await node.is_gone(before)

                again = await node.prepare(claim("a"))
                done = await node.unprepare(claim("a"))

        assert first == again
        assert done == {A: None}
        assert [len(d.calls("unprepare")) for d in (old, new)] == [0, 1]
        assert not list((root / "cdi").iterdir())


class TestConnection:
    """One connection for each endpoint, watched."""

    @pytest.mark.scenario("G13")
    @pytest.mark.field(74)
    async def test_one_for_all_calls(self, root: Path) -> None:
        """All calls go through one connection, also at the same time."""
        front = root / "front.sock"
        async with (
            Driver(root, advertise=str(front)) as driver,
            counting(front, driver.options.service_socket) as accepted,
            Node(root) as node,
        ):
            await node.instance()
            for _ in range(3):
                await node.prepare(claim("a"))
            await asyncio.gather(*(node.unprepare(claim("a")) for _ in range(10)))

        assert len(driver.calls("unprepare")) == 10
        assert accepted == [1]

    @pytest.mark.scenario("G14")
    async def test_idle(self, root: Path) -> None:
        """A connection that the driver closed for being idle is back, and the driver never left."""
        front = root / "front.sock"
        options = (("grpc.max_connection_idle_ms", 100),)
        async with (
            Driver(root, advertise=str(front), server_options=options) as driver,
            counting(front, driver.options.service_socket) as accepted,
            Node(root) as node,
        ):
            await node.instance()
            await eventually(lambda: len(accepted) >= 3, "it was closed twice")

            outcomes = await node.prepare(claim("a"))
            heard = [*node.heard]

        assert isinstance(outcomes[A], Prepared)
        assert [event for event, _ in heard] == ["registered"]

    async def test_silent_socket_holds_up_nobody(self, root: Path) -> None:
        """A socket that accepts and says nothing costs other drivers no time."""
        registry = root / "plugins_registry"
        registry.mkdir()

        async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await stopped.wait()
            writer.close()

        stopped = asyncio.Event()
        async with await asyncio.start_unix_server(say_nothing, registry / "a-reg.sock"):
            async with Node(root) as node, Driver(root):
                await node.instance()

                silent = await node.status("asking")
            stopped.set()

        assert silent.path == str(registry / "a-reg.sock")

    async def test_noise_holds_up_nobody(self, root: Path) -> None:
        """A socket that speaks something else is tried again, beside the others."""
        registry = root / "plugins_registry"
        registry.mkdir()

        async def make_noise(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\x00\xff" * 10_000)
            writer.close()

        async with (
            await asyncio.start_unix_server(make_noise, registry / "a-reg.sock"),
            Node(root) as node,
            Driver(root),
        ):
            await node.instance()
            await node.status("failed")


class TestDirectory:
    """What lies in the directory, and what becomes of it."""

    async def test_subdirectory(self, root: Path) -> None:
        """A socket in a new subdirectory is found; one with a dot first is not."""
        async with Node(root) as node, Driver(root) as driver:
            first = await node.instance()
            socket = driver.options.registration_socket
            (socket.parent / "sub").mkdir()
            socket.rename(socket.parent / "sub" / socket.name)
            await node.is_gone(first)
            second = await node.instance()

            (socket.parent / "sub" / socket.name).rename(socket.parent / f".{socket.name}")
            await node.is_gone(second)

            assert node.registry.sockets() == ()

    async def test_directory_is_replaced(self, root: Path) -> None:
        """A directory that is removed is made again, and watched again."""
        async with Node(root) as node:
            async with Driver(root) as driver:
                first = await node.instance()
                driver.options.registration_socket.unlink()
                driver.options.registration_socket.parent.rmdir()
                await node.is_gone(first)
                await eventually(node.registry.directory.is_dir, "the directory is there again")
            async with Driver(root):
                await node.instance()

    async def test_what_the_kernel_did_not_tell(self, root: Path) -> None:
        """A socket that appeared behind a link, of which nobody is told, is found by the rescan."""
        elsewhere = root / "elsewhere"
        elsewhere.mkdir()
        async with Node(root, rescan_seconds=0.1) as node:
            link = node.registry.directory / "d.sock"
            link.symlink_to(elsewhere / "plugins_registry" / f"{DRIVER}-reg.sock")
            async with Driver(elsewhere):
                instance = await node.instance()

        assert instance.endpoint.startswith(str(elsewhere))

    @pytest.mark.field(68)
    async def test_all_below_the_root(self, root: Path) -> None:
        """Everything is below the one root; no path of the kubelet's is opened."""
        touched: list[str] = []
        watching = True

        def hear(event: str, arguments: tuple[Any, ...]) -> None:
            if watching and event in {"open", "os.mkdir", "os.scandir", "os.listdir"}:
                touched.append(str(arguments[0]))

        sys.addaudithook(hear)  # it cannot be taken off again
        async with Node(root) as node, Driver(root) as driver:
            await node.instance()
            await node.prepare(claim("a"))
        watching = False

        assert str(node.registry.directory) in touched
        assert not [path for path in touched if path.startswith("/var/lib")]
        assert driver.options.registration_socket.is_relative_to(root)
        assert (root / "plugins").is_dir()

    async def test_container_endpoint(self, root: Path) -> None:
        """An endpoint in a driver's own mount namespace is found through the map."""
        mapped = {"/var/lib/kubelet/plugins": str(root / "plugins")}
        inside = f"/var/lib/kubelet/plugins/{DRIVER}/dra.sock"
        async with Node(root, endpoint_map=mapped) as node, Driver(root, advertise=inside):
            instance = await node.instance()

            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

        assert instance.endpoint == str(root / "plugins" / DRIVER / "dra.sock")
