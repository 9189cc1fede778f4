"""What lies in the registry directory, what becomes of it, and where it may be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.plugins.driver_process import DRIVER, eventually
from tests.adapters.plugins.local_driver import LocalDriver
from tests.adapters.plugins.node import Node, claim

from claimlet.adapters.plugins.registry import RegistryError
from claimlet.adapters.plugins.sockets import SocketPathError
from claimlet.engine.ports import Prepared
from claimlet.events.values import ClaimUid

A = ClaimUid("uid-a")


class TestDirectory:
    """What lies in the directory, and what becomes of it."""

    async def test_subdirectory(self, root: Path) -> None:
        """A socket in a new subdirectory is found; one with a dot first is not."""
        async with Node(root) as node, LocalDriver(root) as driver:
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
            async with LocalDriver(root) as driver:
                first = await node.instance()
                driver.options.registration_socket.unlink()
                driver.options.registration_socket.parent.rmdir()
                await node.is_gone(first)
                await eventually(node.registry.directory.is_dir, "the directory is there again")
            async with LocalDriver(root):
                await node.instance()

    async def test_directory_is_out_of_reach(self, root: Path) -> None:
        """A directory that cannot be had for a while costs nothing that is connected."""
        async with Node(root) as node, LocalDriver(root) as first:
            instance = await node.instance()
            directory = node.registry.directory
            directory.rename(root / "aside")
            directory.symlink_to(root / "nowhere")
            await eventually(lambda: node.registry._problems, "it was noticed")
            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

            directory.unlink()
            (root / "aside").rename(directory)
            async with LocalDriver(root, driver="nic.example.com"):
                await node.instance("nic.example.com")

            assert node.find() == instance
            assert first.told() == [(True, "")]

    async def test_what_the_kernel_did_not_tell(self, root: Path) -> None:
        """A socket that appeared behind a link, of which nobody is told, is found by the rescan."""
        elsewhere = root / "elsewhere"
        elsewhere.mkdir()
        async with Node(root, rescan_seconds=0.1) as node:
            link = node.registry.directory / "d.sock"
            link.symlink_to(elsewhere / "plugins_registry" / f"{DRIVER}-reg.sock")
            async with LocalDriver(elsewhere):
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
        async with Node(root) as node, LocalDriver(root) as driver:
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
        async with Node(root, endpoint_map=mapped) as node, LocalDriver(root, advertise=inside):
            instance = await node.instance()

            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

        assert instance.endpoint == str(root / "plugins" / DRIVER / "dra.sock")

    @pytest.mark.parametrize("name", ["root", "root/plugins_registry"])
    async def test_root_that_cannot_be(self, root: Path, name: str) -> None:
        """A file where a directory should be is one clear line with a hint."""
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()

        with pytest.raises(RegistryError, match="plugins_registry") as caught:
            async with Node(root / "root"):
                pass

        assert caught.value.hint
        assert caught.value.exit_code == 4

    async def test_root_that_is_too_long(self, root: Path) -> None:
        """A root so long that no driver could be dialled is refused, with the limit."""
        with pytest.raises(SocketPathError, match="at most 107"):
            async with Node(root / ("x" * 100)):
                pass

        assert not list(root.iterdir())
