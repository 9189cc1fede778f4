"""A process that opens the log, waits for a line, issues many facts, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.events.helpers import generated, open_writer, settings_in

from claimlet.events.server.process import address_of
from claimlet.events.server.status import read_status


async def main() -> None:
    """Issue the facts without waiting for their answers."""
    settings = settings_in(Path(sys.argv[1]))
    status = read_status(settings.status_file)
    assert status is not None
    async with open_writer(
        address_of(settings, port=status.port, user="writer"),
        admin=address_of(settings, port=status.port, user="admin"),
        writer="killed",
    ) as log:
        print("open", flush=True)
        sys.stdin.readline()
        tasks = [asyncio.create_task(log.append([generated(f"k-{n}")])) for n in range(200)]
        for _ in range(10):
            await asyncio.sleep(0)
        print("issued", flush=True)
        await asyncio.gather(*tasks)
        await asyncio.Event().wait()


asyncio.run(main())
