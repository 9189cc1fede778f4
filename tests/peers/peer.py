"""Third-party drivers as processes: how each is started, killed, and told where to look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

import msgspec

__all__ = ["Driver", "ExampleDriver", "HelperDriver", "PydraDriver", "cdi_ids", "resolve"]


class Driver:
    """A driver process; its output is in `log`, which a failing test shows."""

    name: str
    cdi_dir: Path

    def __init__(self, argv: list[str], *, environment: dict[str, str], log: Path) -> None:
        self._argv = argv
        self._environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"} | environment
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        print(f"--- {self.log.name}\n{self.log.read_text()[-20_000:]}")

    def start(self) -> None:
        """Start the process; it appends to its log."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask the process to end and return its exit code."""
        return self._end(signal.SIGTERM)

    @property
    def has_ended(self) -> bool:
        """Return whether the process is gone."""
        return self._process is None or self._process.poll() is not None

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(timeout=30)
        self._process = None
        return code


class HelperDriver(Driver):
    """Our driver on upstream's helper; see `go/helperdriver`."""

    name = "helper.example.com"

    def __init__(
        self, program: Path, root: Path, *, node: str, kubeconfig: Path, uid: str = "", **flags: Any
    ) -> None:
        self.cdi_dir = root / "cdi"
        self.faults_file = root / f"faults{uid}.json"
        self.ledger_file = root / f"ledger{uid}.jsonl"
        given: dict[str, Any] = {
            "driver-name": self.name,
            "node-name": node,
            "kubeconfig": kubeconfig,
            "registrar-dir": root / "plugins_registry",
            "plugins-dir": root / "plugins",
            "cdi-root": self.cdi_dir,
            "pod-uid": uid,
            "faults": self.faults_file,
            "ledger": self.ledger_file,
            "v": 5,
        }
        given |= {name.replace("_", "-"): value for name, value in flags.items()}
        arguments = [f"-{name}={value}" for name, value in given.items()]
        super().__init__(
            [str(program), *arguments], environment={}, log=root / f"helperdriver{uid}.log"
        )

    def inject(self, **faults: Any) -> None:
        """Let the following calls go wrong; nothing: let them go right."""
        temporary = self.faults_file.with_suffix(".new")
        temporary.write_text(json.dumps(faults))
        temporary.rename(self.faults_file)

    def calls(self, method: str) -> list[dict[str, Any]]:
        """Return the calls of *method* so far."""
        if not self.ledger_file.exists():
            return []
        lines = [json.loads(line) for line in self.ledger_file.read_text().splitlines()]
        return [line for line in lines if line["method"] == method]


class ExampleDriver(Driver):
    """Upstream's example driver: real, unmodified, and its GPUs are made up."""

    name = "gpu.example.com"

    def __init__(self, program: Path, root: Path, *, node: str, kubeconfig: Path) -> None:
        self.cdi_dir = root / "cdi"
        given: dict[str, Any] = {
            "node-name": node,
            "kubeconfig": kubeconfig,
            "kubelet-registrar-directory-path": root / "plugins_registry",
            "kubelet-plugins-directory-path": root / "plugins",
            "cdi-root": self.cdi_dir,
        }
        arguments = [f"--{name}={value}" for name, value in given.items()]
        super().__init__([str(program), *arguments], environment={}, log=root / "example.log")


class PydraDriver(Driver):
    """The TPU driver of kubernetes-pydra: real, unmodified, and content without a TPU."""

    name = "tpu.google.com"

    def __init__(
        self, python: str, root: Path, *, node: str, kubeconfig: Path | None = None
    ) -> None:
        self.cdi_dir = root / "cdi"
        environment = {
            "SOCKET_PATH": str(root / "plugins" / self.name / "plugin.sock"),
            "REGISTRATION_SOCKET_PATH": str(root / "plugins_registry" / f"{self.name}-reg.sock"),
            "CDI_DIR": str(self.cdi_dir),
            "NODE_NAME": node,
        }
        if kubeconfig is not None:
            environment["KUBECONFIG"] = str(kubeconfig)
        argv = [python, "-m", "pydra.plugins.tpu.driver"]
        super().__init__(argv, environment=environment, log=root / "pydra.log")


class Resolution(msgspec.Struct):
    """What the CDI reference library says of some ids."""

    resolved: list[str]
    unresolved: list[str]
    file_errors: dict[str, list[str]]
    error: str = ""
    oci: dict[str, Any] | None = None

    @property
    def environment(self) -> list[str]:
        """Return the environment that was injected into the empty OCI spec."""
        process = (self.oci or {}).get("process") or {}
        environment: list[str] = process.get("env") or []
        return environment


def resolve(program: Path, directory: Path, ids: list[str]) -> Resolution:
    """Ask the reference library for *ids*; the program's exit code must fit its answer."""
    done = subprocess.run(
        [program, "-dir", directory, *ids], capture_output=True, check=False, timeout=60
    )
    answer = msgspec.json.decode(done.stdout, type=Resolution)
    assert done.returncode == (1 if answer.unresolved or answer.error else 0)
    return answer


def cdi_ids(devices: Any) -> list[str]:
    """Return the CDI ids of *devices*, each once."""
    return list(dict.fromkeys(i for device in devices for i in device.cdi_device_ids))
