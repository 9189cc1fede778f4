"""Never beside a kubelet: rule 10."""

from __future__ import annotations

import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from claimlet.adapters.plugins.kubelet import KubeletError, check_no_kubelet
from claimlet.adapters.world import RealWorld

WORLD = RealWorld()


class _Health(socketserver.BaseRequestHandler):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(self.answer)


class _Noise(_Health):
    answer = b"SSH-2.0-OpenSSH_9.9\r\n"


@contextmanager
def health(handler: type[_Health]) -> Iterator[int]:
    """Answer on a port, and give it."""
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


class TestKubelet:
    """A kubelet that answers on a root keeps it."""

    async def test_no_kubelet(self, root: Path) -> None:
        """A root of our own is taken, also where a kubelet's socket was left."""
        (root / "pod-resources").mkdir()
        (root / "pod-resources" / "kubelet.sock").touch()

        await check_no_kubelet(root, world=WORLD, kubelet_root=root / "kubelet", port=1)

    async def test_socket_answers(self, root: Path) -> None:
        """Where the kubelet's socket accepts, the root is refused with a hint and exit code 6."""
        (root / "pod-resources").mkdir()
        path = root / "pod-resources" / "kubelet.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            with pytest.raises(KubeletError, match="accepts connections") as caught:
                await check_no_kubelet(root, world=WORLD)

        assert caught.value.exit_code == 6
        assert caught.value.hint

    async def test_health_answers(self, root: Path) -> None:
        """On the kubelet's own root its health port counts; on another root it does not."""
        with health(_Health) as port:
            with pytest.raises(KubeletError, match="healthz"):
                await check_no_kubelet(root, world=WORLD, kubelet_root=root, port=port)

            await check_no_kubelet(root, world=WORLD, kubelet_root=root / "elsewhere", port=port)

    async def test_something_else_on_the_port(self, root: Path) -> None:
        """What speaks no HTTP is no kubelet."""
        with health(_Noise) as port:
            await check_no_kubelet(root, world=WORLD, kubelet_root=root, port=port)

    async def test_by_another_name(self, root: Path) -> None:
        """The kubelet's root is taken only under its own name."""
        (root / "kubelet").mkdir()
        (root / "link").symlink_to(root / "kubelet")

        with pytest.raises(KubeletError, match="another name") as caught:
            await check_no_kubelet(
                root / "link", world=WORLD, kubelet_root=root / "kubelet", port=1
            )
        await check_no_kubelet(root / "kubelet", world=WORLD, kubelet_root=root / "kubelet", port=1)

        assert "name" in caught.value.hint
