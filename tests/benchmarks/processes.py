"""The processes that a benchmark runs: a service of its own, a driver, a bare NATS responder."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from claimlet.adapters.service.reading import control_address
from claimlet.config.settings import Settings, load_settings
from claimlet.events.errors import ClaimletError

__all__ = ["Processes", "settings_for", "wait_until"]

NODE = "bench"


def settings_for(directory: Path) -> Settings:
    """Return the settings of the service in *directory*."""
    flags = {"state_dir": str(directory / "state"), "root": str(directory / "root"), "node": NODE}
    return load_settings(flags=flags, environ={}).settings


class Processes:
    """Starts processes and ends them, by pid."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, arguments: Sequence[str], *, output: Path) -> subprocess.Popen[bytes]:
        """Start ``python ARGUMENTS…``; what it says goes to *output*."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CLAIMLET_")}
        with output.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, *arguments], stdout=file, stderr=file, env=environ
            )
        self._running.append(process)
        return process

    def service(self, directory: Path) -> subprocess.Popen[bytes]:
        """Start the node service of *directory*."""
        settings = settings_for(directory)
        arguments = ["-m", "claimlet", "run", "--node", NODE]
        arguments += ["--state-dir", str(settings.state_dir), "--root", str(settings.root)]
        return self.start(arguments, output=directory / "service.log")

    def driver(self, directory: Path, name: str, *, script: Path | None = None) -> None:
        """Start a simulated driver that keeps nothing on disk."""
        arguments = ["-m", "claimlet.adapters.plugins.simulator", "--in-memory"]
        arguments += ["--root", str(directory / "root"), "--driver", name]
        if script is not None:
            arguments += ["--script", str(script)]
        self.start(arguments, output=directory / f"{name}.log")

    def stop(self) -> None:
        """End everything that was started, the newest first."""
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._running):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


async def wait_until(settings: Settings) -> None:
    """Wait until the service has written down where its server is."""
    for _ in range(400):
        try:
            await control_address(settings)
        except ClaimletError:
            await asyncio.sleep(0.05)
        else:
            return
    raise TimeoutError(f"no service in {settings.state_dir}")
