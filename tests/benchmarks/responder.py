"""Answer each request on ``claimlet.NODE.floor`` at once: the bare side of a control call."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Any

import nats


async def main(arguments: Sequence[str]) -> None:
    """Respond until SIGTERM; *arguments* are URL, seed file, inbox prefix and node."""
    url, seed_file, inbox_prefix, node = arguments
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    connection = await nats.connect(url, nkeys_seed=seed_file, inbox_prefix=inbox_prefix)

    async def respond(message: Any) -> None:
        await message.respond(message.data)

    await connection.subscribe(f"claimlet.{node}.floor", cb=respond)
    await stop.wait()
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:5]))
