"""A process that starts the log's server in a directory, tells its pid, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.events.helpers import settings_in

from claimlet.events.server.process import EmbeddedServer


async def main() -> None:
    """Start the server."""
    server = EmbeddedServer(settings_in(Path(sys.argv[1])))
    await server.start()
    print(server.pid, server.port, flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
