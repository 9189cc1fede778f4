"""Several instances of one driver, and the one connection to each (rows G, kind I)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.adapters.plugins.driver_process import DRIVER, DriverProcess, eventually
from tests.adapters.plugins.local_driver import LocalDriver
from tests.adapters.plugins.node import Node, claim

from claimlet.engine.ports import DriverCallError, Prepared
from claimlet.events.values import ClaimUid

A = ClaimUid("uid-a")


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


class TestInstances:
    """Several instances of one driver, as during a rolling update."""

    @pytest.mark.scenario("G07", "G08")
    @pytest.mark.field(64)
    async def test_newest_connected(self, root: Path) -> None:
        """The newest is called; when it dies the older one; when that leaves, the newer stays."""
        async with (
            Node(root) as node,
            LocalDriver(root, instance="old") as old,
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
        async with Node(root) as node, LocalDriver(root, instance="old") as old:
            first = await node.instance()
            async with LocalDriver(root, instance="new") as new:
                await node.instance(count=2)
                await old.stop_service()
                await node.is_gone(first)
                await old.start_service()

                found = await node.instance(count=2)

                assert found.endpoint == str(new.options.service_socket)

    @pytest.mark.scenario("G07")
    async def test_same_endpoint(self, root: Path) -> None:
        """The same driver at the same endpoint is refused while the first one is there."""
        async with Node(root) as node, LocalDriver(root, instance="a") as first:
            instance = await node.instance()
            endpoint = str(first.options.service_socket)
            async with LocalDriver(root, instance="b", advertise=endpoint) as second:
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
            async with LocalDriver(root, instance="b") as second:
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
            LocalDriver(root, advertise=str(front)) as driver,
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
            LocalDriver(root, advertise=str(front), server_options=options) as driver,
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
            async with Node(root) as node, LocalDriver(root):
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
            LocalDriver(root),
        ):
            await node.instance()
            await node.status("failed")
