"""Commands run in this process against a node: what they return and write, and pods for them."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
from tests.adapters.service_process import DriverProcess, ServiceProcess, eventually, manifest

from claimlet.adapters.cli import invoke

__all__ = ["Node", "Ran", "call"]


class Ran(msgspec.Struct, frozen=True):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the one document that was written."""
        return json.loads(self.out)

    @property
    def jsonl(self) -> list[Any]:
        """Return the documents that were written, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        """Return the cells of the table that was written, without the header."""
        return [re.split(r" {3,}", line) for line in self.out.splitlines()[1:]]

    @property
    def told(self) -> list[str]:
        """Return the kinds of lines on stderr: error, hint, note."""
        return [line.partition(":")[0] for line in self.err.splitlines()]


def call(*arguments: str, stdin: bytes = b"") -> Ran:
    """Run ``claimlet ARGUMENTS…`` here."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = invoke(arguments)
    finally:
        sys.stdin = before
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Ran(code, *texts)


class Node:
    """A running service with one driver, and its commands."""

    driver_name = "gpu.demo"

    def __init__(self, service: ServiceProcess, driver: DriverProcess) -> None:
        self.service = service
        self.driver = driver
        self._devices: dict[str, Any] = {}

    def call(self, *arguments: str, stdin: bytes = b"") -> Ran:
        """Run a command against this node."""
        return call(*self.service.options, *arguments, stdin=stdin)

    def good(self, *arguments: str) -> Ran:
        """Run a command that must succeed."""
        ran = self.call(*arguments)
        assert ran.code == 0, ran
        return ran

    def script(self, *steps: Mapping[str, Any]) -> None:
        """Let the driver do *steps*; its answers are what was allocated."""
        self.driver.script(devices=self._devices, steps=list(steps))

    def manifest(
        self,
        pod: str,
        claims: Sequence[str],
        *,
        driver: str = driver_name,
        unused: Sequence[str] = (),
    ) -> Path:
        """Write a pod with *claims*, each with a device of its own, and return the file."""
        for claim in claims:
            device = {"pool": "pool", "device": claim, "requests": ["devices"]}
            self._devices[claim] = [device]
        self.script()
        devices = {claim: f"{driver}/pool/{claim}" for claim in claims}
        documents = manifest(pod, devices=devices, unused=unused)
        path = self.service.directory / f"{pod}.json"
        path.write_text(json.dumps({"kind": "List", "items": documents}))
        return path

    def prepared(self, pod: str, *claims: str) -> dict[str, Any]:
        """Have a pod with *claims* prepared and return it as the command writes it."""
        path = self.manifest(pod, claims)
        found: dict[str, Any] = self.good(
            "pod", "prepare", "-f", str(path), "--wait", "-o", "json"
        ).json
        assert found["state"] == "prepared"
        return found

    def failing(self, method: str, claim: str, text: str) -> None:
        """Let the driver fail *method* for *claim*."""
        self.script({"method": method, "claim": claim, "fail": text})

    def stuck(self, pod: str, claim: str, text: str) -> None:
        """End *pod*, whose claim's driver fails to unprepare it, and wait until that is seen."""
        self.failing("unprepare", claim, text)
        self.good("pod", "unprepare", f"ml/{pod}")
        self.until_failed(claim)

    def until_failed(self, claim: str) -> None:
        """Wait until the claim's last call has failed."""
        eventually(lambda: self.service.claims()[f"ml/{claim}"].last_error, f"{claim} failed")
