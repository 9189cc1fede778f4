"""
The node service and simulated drivers as processes: started, killed, stopped and started again.

Everything lies below one directory.  A service is ready when it says so, a driver when the service
has recorded it; what a process wrote is shown where it did not come up.  The methods block; from a
coroutine they are called through `asyncio.to_thread`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from claimlet.adapters.cli.options import Invocation
from claimlet.adapters.cli.service import ask, read_state
from claimlet.adapters.control.protocol import StateReply
from claimlet.config.settings import Settings, load_settings
from claimlet.engine.views import ClaimView

__all__ = [
    "BOOTS",
    "NODE",
    "DriverProcess",
    "ServiceProcess",
    "eventually",
    "manifest",
    "short_directory",
]

T = TypeVar("T")

NODE = "node-a"
BOOTS = (
    "11111111-1111-4111-8111-111111111111",
    "22222222-2222-4222-8222-222222222222",
    "33333333-3333-4333-8333-333333333333",
)
_PATIENCE_SECONDS = 30.0
_PAUSE_SECONDS = 0.02


def eventually(
    condition: Callable[[], T], what: str, *, patience_seconds: float = _PATIENCE_SECONDS
) -> T:
    """Return what *condition* gives once it is true; fail with *what* after the patience."""
    deadline = time.monotonic() + patience_seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still not: {what}")
        time.sleep(_PAUSE_SECONDS)
    return value


@contextmanager
def short_directory() -> Iterator[Path]:
    """Give a directory for a service: pytest's own are too long for the sockets of drivers."""
    with tempfile.TemporaryDirectory(prefix="claimlet-") as directory:
        yield Path(directory)


class _Process:
    """A program of ours; what it says goes to `log`, one start after another."""

    def __init__(self, arguments: Sequence[str], *, log: Path, environ: Mapping[str, str]) -> None:
        self.log = log
        self._arguments = [sys.executable, *arguments]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CLAIMLET_")}
        self._environ = clean | dict(environ)
        self._said_before = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the id of the process that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """Return what the process has said since it was started last."""
        return self.log.read_bytes()[self._said_before :].decode(errors="replace")

    def start(self) -> None:
        """Start it; it need not be ready yet."""
        assert not self.is_running
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._arguments,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send it *number*, as SIGSTOP and SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=_PATIENCE_SECONDS)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        if self._process is not None and self.is_running:
            self._process.kill()
        if self._process is not None:
            self._process.wait()

    def stop(self) -> int:
        """End it with SIGTERM and return its exit code."""
        assert self._process is not None
        if self.is_running:
            self._process.terminate()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it does not stop:\n{self.said()}") from None

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Return what *condition* gives once it is true, as long as the process runs."""

        def look() -> T:
            value = condition()
            if not value and not self.is_running:
                raise AssertionError(f"it ended before: {what}\n{self.said()}")
            return value

        try:
            return eventually(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None


class ServiceProcess(_Process):
    """
    A `claimlet run` below *directory*, its boot id in a file; `with` starts and ends it.

    *environ* holds settings, as ``CLAIMLET_PREPARE__OVERLAP``.
    """

    def __init__(self, directory: Path, *, environ: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.state_dir = directory / "state"
        self.root = directory / "root"
        self.boot_id_file = directory / "boot_id"
        self.cdi_dir = directory / "cdi"
        self._given = {"CLAIMLET_PREPARE__RETRY_FIRST_SECONDS": "0.1", **(environ or {})}
        self.set_boot(BOOTS[0])
        super().__init__(
            ["-m", "claimlet", "run", *self.options],
            log=directory / "service.log",
            environ={"CLAIMLET_SERVICE__LOG_FORMAT": "json"} | self._given,
        )
        self._drivers: list[DriverProcess] = []

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self._drivers:
            driver.kill()
        if self._process is not None:
            self.stop()

    @property
    def options(self) -> list[str]:
        """Return the options that name this node, for any command."""
        return [
            *("--state-dir", str(self.state_dir), "--root", str(self.root), "--node", NODE),
            *("--boot-id-file", str(self.boot_id_file)),
        ]

    @property
    def settings(self) -> Settings:
        flags = {
            "state_dir": self.state_dir,
            "root": self.root,
            "node": NODE,
            "boot_id_file": self.boot_id_file,
        }
        return load_settings(flags=flags, environ=self._given).settings

    # --- its life --------------------------------------------------------------------------------

    def up(self) -> None:
        """Start it and wait until it is ready."""
        self.start()
        self.until(lambda: '"event":"ready"' in self.said(), "the service is ready")

    def restart(self) -> None:
        """Stop it in good order and start it again."""
        assert self.stop() == 0, self.said()
        self.up()

    def crash(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.up()

    def set_boot(self, boot: str) -> None:
        """Let the node be in *boot*, from the next start on."""
        self.boot_id_file.write_text(f"{boot}\n")

    def reboot(self, boot: str) -> None:
        """Kill service and drivers, lose what a reboot loses, and start the service alone."""
        for driver in self._drivers:
            driver.kill()
        self.kill()
        for file in self.cdi_dir.glob("*"):
            file.unlink()
        self.set_boot(boot)
        self.up()

    # --- its drivers -----------------------------------------------------------------------------

    def driver(self, name: str = "gpu.demo", *options: str, **script: Any) -> DriverProcess:
        """Start a simulated driver and wait until the service has recorded it."""
        driver = DriverProcess(self, name, options=options, script=script)
        self._drivers.append(driver)
        driver.up()
        return driver

    # --- what it holds ---------------------------------------------------------------------------

    def state(self) -> StateReply:
        """Return what the service holds, or what the log says where no service runs."""
        return self._apart(partial(read_state, self._invocation()))

    def claims(self) -> dict[str, ClaimView]:
        """Return the claims on the node by `namespace/name`; of equals, the newest."""
        return {f"{claim.namespace}/{claim.name}": claim for claim in self.state().claims}

    def ask(self, verb: str, kind: type[T], *, request: Any = None) -> T:
        """Return the service's answer to one request of the control interface."""
        return self._apart(partial(ask, self._invocation(), verb, kind, request=request))

    def _invocation(self) -> Invocation:
        invocation = Invocation()
        invocation.flags = {
            "state_dir": str(self.state_dir),
            "root": str(self.root),
            "node": NODE,
            "boot_id_file": str(self.boot_id_file),
        }
        return invocation

    @staticmethod
    def _apart(call: Callable[[], T]) -> T:
        """Do *call* in a thread of its own: it has an event loop, and so may the caller."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(call).result()


class DriverProcess(_Process):
    """A simulated driver of *service*; its script can be changed while it runs."""

    def __init__(
        self,
        service: ServiceProcess,
        name: str,
        *,
        options: Sequence[str] = (),
        script: Mapping[str, Any] | None = None,
    ) -> None:
        suffix = f"{name}{''.join(options).replace('/', '_')}"
        self.name = name
        self.script_file = service.directory / f"{suffix}.script.json"
        self.ledger_file = service.directory / f"{suffix}.ledger"
        self.script(**(script or {}))
        super().__init__(
            [
                *("-m", "claimlet.adapters.plugins.simulator", "--root", str(service.root)),
                *("--driver", name, "--script", str(self.script_file)),
                *("--ledger", str(self.ledger_file), "--cdi-dir", str(service.cdi_dir)),
                *options,
            ],
            log=service.directory / f"{suffix}.log",
            environ={},
        )
        self._service = service

    def up(self) -> None:
        """Start it and wait until the service has recorded it."""
        before = self._instances()
        self.start()
        self.until(lambda: self._instances() - before, f"driver {self.name} is registered")

    def script(self, **script: Any) -> None:
        """Let it do *script* from now on: `steps` and `devices`, as the simulator's module says."""
        temporary = self.script_file.with_suffix(".new")
        temporary.write_text(json.dumps(script))
        temporary.replace(self.script_file)

    def calls(self, method: str, claim: str = "") -> list[dict[str, Any]]:
        """Return the calls of *method* that arrived, those about *claim* where it is named."""
        if not self.ledger_file.exists():
            return []
        lines = [json.loads(line) for line in self.ledger_file.read_text().splitlines()]
        return [
            line
            for line in lines
            if (line["event"], line["method"]) == ("arrived", method)
            and (not claim or any(found["name"] == claim for found in line["claims"]))
        ]

    def _instances(self) -> set[str]:
        drivers = self._service.state().drivers
        return {d.instance for d in drivers if d.driver == self.name and d.instance}


def manifest(
    pod: str,
    *,
    devices: Mapping[str, str],
    namespace: str = "ml",
    unused: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """
    Return a pod and its claims with simulated allocations, as objects.

    *devices*: claim → its devices, as ``gpu.demo/node-a/gpu-0``, by commas.
    """
    names = {claim: f"c{number}" for number, claim in enumerate(devices)}
    used = [{"name": names[claim]} for claim in devices if claim not in unused]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod, "namespace": namespace},
            "spec": {
                "containers": [{"name": "main", "resources": {"claims": used}}],
                "resourceClaims": [
                    {"name": names[claim], "resourceClaimName": claim} for claim in devices
                ],
            },
        },
        *(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {
                    "name": claim,
                    "namespace": namespace,
                    "annotations": {"claimlet.dev/devices": text},
                },
            }
            for claim, text in devices.items()
        ),
    ]
