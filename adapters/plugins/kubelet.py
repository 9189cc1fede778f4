"""
Is there a kubelet?  Never two managers for one driver (rule 10).

A driver that two managers call gets an unprepare from one while the other still uses the claim.
So the root directory is refused where a kubelet answers, and the kubelet's own root must be named
as it is, not reached through a link or a relative path.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from ...events.errors import PermanentError
from ...events.world import World

__all__ = ["KUBELET_ROOT", "KubeletError", "check_no_kubelet"]

KUBELET_ROOT = Path("/var/lib/kubelet")
HEALTHZ_PORT = 10248

_ANSWER_SECONDS = 1.0


class KubeletError(PermanentError):
    """The root directory belongs to a kubelet."""

    exit_code = 6


async def check_no_kubelet(
    root: Path, *, world: World, kubelet_root: Path = KUBELET_ROOT, port: int = HEALTHZ_PORT
) -> None:
    """
    Raise where a kubelet answers on *root*, or where it is the kubelet's root by another name.

    Raises:
        KubeletError: Claimlet must not manage drivers there.
    """
    is_kubelet_root = root.resolve() == kubelet_root.resolve()
    if is_kubelet_root and root != kubelet_root:
        raise KubeletError(
            f"{root} is the kubelet's {kubelet_root} by another name",
            hint=f"name {kubelet_root} itself if no kubelet manages DRA on this node",
        )
    socket = root / "pod-resources" / "kubelet.sock"
    if await _accepts(socket, world=world):
        raise _found(root, f"{socket} accepts connections")
    if is_kubelet_root and await _is_healthy(port, world=world):
        raise _found(root, f"http://127.0.0.1:{port}/healthz answers")


def _found(root: Path, how: str) -> KubeletError:
    return KubeletError(
        f"a kubelet manages {root}: {how}",
        hint="a driver must have one manager: use another root, or stop the kubelet",
    )


async def _accepts(socket: Path, *, world: World) -> bool:
    try:
        async with world.timeout(_ANSWER_SECONDS):
            _, writer = await asyncio.open_unix_connection(str(socket))
    except (OSError, ValueError):  # TimeoutError is an OSError: a full backlog is no answer
        return False
    await _close(writer)
    return True


async def _is_healthy(port: int, *, world: World) -> bool:
    try:
        async with world.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(
                    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                return (await reader.read(64)).startswith(b"HTTP/1.")
            finally:
                await _close(writer)
    except OSError:
        return False


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):  # the peer was quicker
        await writer.wait_closed()
