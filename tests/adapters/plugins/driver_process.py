"""
A simulated driver as a process, for one registry: started, killed, stopped, its script changed.

Driver and registry share a root directory; what the driver was asked stands in its ledger.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from claimlet.adapters.plugins.simulator.options import DriverOptions

__all__ = ["DRIVER", "DriverProcess", "calls_in", "eventually", "write_script"]

T = TypeVar("T")

DRIVER = "gpu.example.com"

_PATIENCE_SECONDS = 30.0


async def eventually(condition: Callable[[], T], what: str) -> T:
    """Return what *condition* gives once it is true; looked at again and again for a while."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not (value := condition()):  # noqa: ASYNC110 -- other processes set no event
                await asyncio.sleep(0.01)
            return value
    except TimeoutError:
        raise AssertionError(f"still not: {what}") from None


def write_script(path: Path, **script: Any) -> None:
    """Make *script* (`steps`, `devices`, …) what the driver that reads *path* does from now on."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(script))
    new.replace(path)


def calls_in(ledger: Path, method: str = "") -> list[dict[str, Any]]:
    """Return the calls in *ledger*; those that were answered have an `answer`."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    calls: dict[str, dict[str, Any]] = {}
    for line in map(json.loads, lines):
        calls.setdefault(line["call"], {}).update(line)
    return [call for call in calls.values() if method in {"", call["method"]}]


class DriverProcess:
    """
    The driver *name* of the node below *root*; `async with` starts and kills it.

    *options* are more of its command line, *script* is what it does from its start.
    """

    def __init__(self, root: Path, name: str = DRIVER, *options: str, **script: Any) -> None:
        self.name = name
        suffix = "".join(options).replace("/", "_")
        self.script_file = root / f"{name}{suffix}.script.json"
        self.ledger_file = root / f"{name}{suffix}.ledger"
        instance = dict(zip(options[::2], options[1::2], strict=False)).get("--instance", "")
        self.paths = DriverOptions(root=root, driver=name, instance=instance)
        write_script(self.script_file, **script)
        self._arguments = [
            *("-m", "claimlet.adapters.plugins.simulator", "--root", str(root)),
            *("--driver", name, "--script", str(self.script_file)),
            *("--ledger", str(self.ledger_file), *options),
        ]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start it; a driver is ready when the registry says so."""
        self._process = await asyncio.create_subprocess_exec(sys.executable, *self._arguments)

    async def kill(self) -> None:
        """End it with SIGKILL, so that its sockets stay."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        await self.wait()

    async def stop(self) -> int:
        """End it with SIGTERM and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return await self.wait()

    async def wait(self) -> int:
        """Wait for its end and return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    def script(self, *steps: dict[str, Any], **more: Any) -> None:
        """Let it do *steps* from now on."""
        write_script(self.script_file, steps=steps, **more)

    def calls(self, method: str = "") -> list[dict[str, Any]]:
        """Return the calls that arrived; those that were answered have an `answer`."""
        return calls_in(self.ledger_file, method)
