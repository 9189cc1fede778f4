"""
The stage: a service and a driver as processes below one directory, and what is asked of them.

Whoever leaves the stage leaves no process behind, however it ends: each is ended by a handle that
cannot mean another one.  The machine's own settings are kept out, so that a demo shows the same
everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Self, TypeVar

from ...config.settings import DEFAULTS_FILE, Settings, load_settings
from ...engine.errors import NotReadyError
from ...events.errors import ClaimletError
from ...events.record import Record
from ...events.server.child import ServerProcess
from ...events.server.process import ServerSettings
from ...events.server.status import greet, read_status
from ..control.client import connect_control
from ..control.protocol import Hello, StateReply
from ..service.addresses import server_settings
from ..service.reading import control_address, records_of_log

__all__ = ["DRIVER", "DemoError", "Stage", "demo_directory", "registered", "uninterrupted"]

T = TypeVar("T")

NODE = "demo"
DRIVER = "gpu.demo"

_PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.02
#: The longest directory whose sockets can still be dialled.
_DIRECTORY_BYTES_MAX = 60


class DemoError(ClaimletError):
    """Something did not show what it should."""


def demo_directory() -> Path:
    """Make a directory for a demo where temporary files belong, and return it."""
    usual = tempfile.gettempdir()
    short = usual if len(os.fsencode(usual)) <= _DIRECTORY_BYTES_MAX else "/tmp"  # noqa: S108 -- a socket's path may have 107 bytes
    return Path(tempfile.mkdtemp(prefix="claimlet-demo-", dir=short))


class Stage:
    """Processes in *directory*, which stays; `async with` ends them."""

    def __init__(self, directory: Path, *, nats_server: Path) -> None:
        self.directory = directory
        self.cdi_dir = directory / "cdi"
        self.ledger_file = directory / "driver.ledger"
        self.script_file = directory / "driver.json"
        self.boot_id_file = directory / "boot_id"
        self.settings = _settings(directory, self.boot_id_file, nats_server)
        self._service: subprocess.Popen[bytes] | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        self._writer = ""

    async def __aenter__(self) -> Self:
        self.cdi_dir.mkdir()
        return self

    async def __aexit__(self, *_: object) -> None:
        with uninterrupted():
            for process in (self._service, self._driver):
                if process is not None:
                    process.kill()
                    process.wait()
            await self.end_server()

    # --- the service -----------------------------------------------------------------------------

    def start_service(self) -> None:
        """Start the service; `service_answers` waits for it."""
        settings = self.settings
        arguments = ["-m", "claimlet", "run", "--config", str(DEFAULTS_FILE)]
        arguments += ["--state-dir", str(settings.state_dir), "--root", str(settings.root)]
        arguments += ["--node", settings.node, "--boot-id-file", str(self.boot_id_file)]
        self._service = self._start(arguments, "service.log")

    async def service_answers(self) -> None:
        """Wait until a service answers that is another one than the last."""

        async def is_new() -> bool:
            try:
                answer = await self.ask("hello", None, Hello)
            except NotReadyError:
                return False
            was, self._writer = self._writer, answer.writer
            return answer.writer != was

        await self._until(is_new, "the service answers", self._service)

    def kill_service(self) -> None:
        """End the service with SIGKILL."""
        _kill(self._service)

    async def stop_service(self) -> int:
        """Ask the service to stop and return its exit code."""
        process = self._service
        assert process is not None
        process.terminate()

        async def has_ended() -> bool:
            return process.poll() is not None

        await self._until(has_ended, "the service stops", None)
        return process.returncode

    async def end_server(self) -> None:
        """End the log's server if it is there, as it survives a killed service."""
        own = self._server_settings()
        status = read_status(own.status_file)
        if status is None:
            return
        server = ServerProcess.adopt(
            status.pid, started_at_ticks=status.start_ticks, conf=own.conf_file
        )
        if server is not None:
            await server.end()

    async def server_version(self) -> str:
        """Return the version that the log's server greets with."""
        status = read_status(self._server_settings().status_file)
        greeting = await greet(status.port) if status is not None else None
        return greeting.version if greeting is not None else "?"

    def _server_settings(self) -> ServerSettings:
        return server_settings(self.settings)

    # --- the driver ------------------------------------------------------------------------------

    def start_driver(self) -> None:
        """Start the driver; `driver_registered` waits for it."""
        arguments = ["-m", "claimlet.adapters.plugins.simulator", "--driver", DRIVER]
        arguments += ["--root", str(self.settings.root), "--cdi-dir", str(self.cdi_dir)]
        arguments += ["--script", str(self.script_file), "--ledger", str(self.ledger_file)]
        self._driver = self._start(arguments, "driver.log")

    async def driver_registered(self) -> None:
        """Wait until the service knows the driver."""

        async def known() -> bool:
            return DRIVER in registered(await self.state())

        await self._until(known, f"driver {DRIVER} is registered", self._driver)

    def kill_driver(self) -> None:
        """End the driver with SIGKILL."""
        _kill(self._driver)

    def script(self, **script: Any) -> None:
        """Let the driver do *script* from now on."""
        new = self.script_file.with_suffix(".new")
        new.write_text(json.dumps(script))
        new.replace(self.script_file)

    def calls(self, method: str, claim: str) -> list[list[str]]:
        """Return the claims of each call of *method* that the driver got about *claim*."""
        if not self.ledger_file.exists():
            return []
        lines = [json.loads(line) for line in self.ledger_file.read_text().splitlines()]
        calls = [
            [found["name"] for found in line["claims"]]
            for line in lines
            if (line["event"], line["method"]) == ("arrived", method)
        ]
        return [names for names in calls if claim in names]

    # --- the node --------------------------------------------------------------------------------

    def boot(self, boot_id: str) -> None:
        """Let the node have booted: another boot id, and no CDI file any more."""
        self.boot_id_file.write_text(f"{boot_id}\n")
        for file in self.cdi_dir.iterdir():
            file.unlink()

    def cdi_devices(self) -> set[str]:
        """Return the devices that a container runtime would find in the CDI directory."""
        specs = [json.loads(file.read_text()) for file in self.cdi_dir.glob("*.json")]
        return {f"{spec['kind']}={device['name']}" for spec in specs for device in spec["devices"]}

    def manifest(self, name: str) -> Path:
        """Put the manifest *name* into the directory and return its file."""
        path = self.directory / name
        path.write_bytes(resources.files("claimlet.adapters.demo").joinpath(name).read_bytes())
        return path

    # --- what is asked ---------------------------------------------------------------------------

    async def ask(self, verb: str, request: Any, kind: type[T], *, seconds: float = 0.0) -> T:
        """
        Return the service's answer; it may hold it back for *seconds*.

        Raises:
            NotReadyError: No service answers.
        """
        address = await control_address(self.settings)
        async with connect_control(address, node=self.settings.node) as client:
            return await client.ask(verb, request, kind, hold_seconds=seconds)

    async def state(self) -> StateReply:
        """Return what the service holds."""
        return await self.ask("state", None, StateReply)

    async def records(self) -> list[Record]:
        """Return the whole log."""
        return await records_of_log(self.settings)

    # --- processes -------------------------------------------------------------------------------

    def _start(self, arguments: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        """Start a program of ours in a session of its own: a Ctrl-C is for the demo alone."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CLAIMLET_")}
        environ["CLAIMLET_LOG__NATS_SERVER"] = str(self.settings.log.nats_server)
        environ["TMPDIR"] = str(self.directory)  # what a killed process leaves goes with the rest
        with (self.directory / log).open("ab") as output:
            return subprocess.Popen(
                # -P: a module of the current directory's is none of ours.
                [sys.executable, "-P", *arguments],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def _until(
        self,
        look: Callable[[], Awaitable[bool]],
        what: str,
        process: subprocess.Popen[bytes] | None,
    ) -> None:
        """
        Wait until *look* says yes, as long as *process* runs.

        Raises:
            DemoError: It took too long, or the process ended.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not await look():
            if process is not None and process.poll() is not None:
                raise DemoError(f"a process ended before {what}: {self._last_words()}")
            if time.monotonic() > deadline:
                raise DemoError(f"not within {_PATIENCE_SECONDS:g} s: {what}")
            await asyncio.sleep(_PAUSE_SECONDS)

    def _last_words(self) -> str:
        """Return the last line that a process of the stage has written."""
        logs = [p for p in self.directory.glob("*.log") if p.stat().st_size]
        newest = max(logs, key=lambda path: path.stat().st_mtime_ns, default=None)
        lines = newest.read_text(errors="replace").splitlines() if newest else []
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it said nothing"])[-1]


def _settings(directory: Path, boot_id_file: Path, nats_server: Path) -> Settings:
    """Return the settings of the demo's node: the defaults, whatever the machine says."""
    flags = {
        "node": NODE,
        "state_dir": directory / "state",
        "root": directory / "root",
        "boot_id_file": boot_id_file,
        "log.nats_server": nats_server,
    }
    return load_settings(flags=flags, environ={}, file=DEFAULTS_FILE).settings


def registered(state: StateReply) -> set[str]:
    """Return the drivers that have an instance here."""
    return {row.driver for row in state.drivers if row.instance}


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    assert process is not None
    process.kill()
    process.wait()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a second Ctrl-C wait: what was started is ended first, which is bounded."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
