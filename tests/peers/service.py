"""A whole service as a process, a third party's driver beside it, told by commands what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.adapters.cli.node import Ran, call
from tests.adapters.service_process import NODE, ServiceProcess, eventually, manifest
from tests.peers.peer import (
    Driver,
    ExampleDriver,
    HelperDriver,
    PydraDriver,
    Resolution,
    resolve,
)

__all__ = ["PEERS", "Peer", "PeerService", "made"]

#: A call that a kill has cut may act until its deadline; nobody wants to wait for that here.
_SETTINGS = {"CLAIMLET_PREPARE__CALL_TIMEOUT_SECONDS": "3"}
_WAIT = ("--wait", "--timeout", "60s", "-o", "json")


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of driver: its device for a claim, and what is known of it."""

    driver: Callable[..., Driver]
    name: str
    #: The fixture that has its program.
    program: str
    #: `pool/device`, one for each claim that there may be at once.
    devices: tuple[str, ...]
    #: Whether it makes its CDI files again when it is asked again after a reboot.
    is_good_after_reboot: bool = True
    #: Whether it is given the gateway to talk to.
    has_client: bool = True


PEERS = {
    "helper": Peer(
        driver=HelperDriver,
        name=HelperDriver.name,
        program="helperdriver",
        devices=(f"{NODE}/dev-0", f"{NODE}/dev-1"),
    ),
    # It answers from its own checkpoint and leaves the files away (kubernetes/kubernetes#141433).
    "example": Peer(
        driver=ExampleDriver,
        name=ExampleDriver.name,
        program="example_driver",
        devices=(f"{NODE}/gpu-0", f"{NODE}/gpu-1"),
        is_good_after_reboot=False,
    ),
    # Given an API server to publish to, it ends when that goes away.
    "pydra": Peer(
        driver=PydraDriver,
        name=PydraDriver.name,
        program="pydra_python",
        devices=(f"{PydraDriver.name}/0",),
        has_client=False,
    ),
}


class PeerService:
    """A running service and one driver of *peer*, which is started and killed by the test."""

    def __init__(self, service: ServiceProcess, driver: Driver, peer: Peer) -> None:
        self.service = service
        self.driver = driver
        self.peer = peer

    def call(self, *arguments: str) -> Ran:
        """Run a command against the service."""
        return call(*self.service.options, *arguments)

    def good(self, *arguments: str) -> Any:
        """Run a command that must succeed and return its document."""
        ran = self.call(*arguments)
        assert ran.code == 0, ran
        return ran.json

    def until_registered(self, count: int = 1) -> None:
        """Wait until so many instances of the driver are recorded."""

        def instances() -> int:
            drivers = self.service.state().drivers
            return sum(d.driver == self.driver.name and d.state == "connected" for d in drivers)

        eventually(lambda: instances() == count, f"{count} of {self.driver.name} registered")

    def manifest(self, pod: str, *claims: str, first: int = 0) -> Path:
        """Write a pod with *claims*, each with a device of the driver, from the *first* one on."""
        devices = {
            claim: f"{self.driver.name}/{device}"
            for claim, device in zip(claims, self.peer.devices[first:], strict=False)
        }
        path = self.service.directory / f"{pod}.json"
        documents = manifest(pod, devices=devices)
        path.write_text(json.dumps({"kind": "List", "items": documents}))
        return path

    def prepare(self, manifest: Path) -> list[str]:
        """Have the pod of *manifest* prepared and return its CDI ids."""
        found = self.good("pod", "prepare", "-f", str(manifest), *_WAIT)
        assert found["state"] == "prepared"
        return [
            cdi
            for claim in found["claims"]
            for driver in claim["drivers"]
            for device in driver["devices"]
            for cdi in device["cdi_device_ids"]
        ]

    def unprepare(self, pod: str) -> None:
        """Have the pod's claims unprepared."""
        self.good("pod", "unprepare", f"ml/{pod}", *_WAIT)

    def resolved(self, program: Path, ids: list[str]) -> Resolution:
        """Return what the reference library makes of *ids*."""
        return resolve(program, self.driver.cdi_dir, ids)

    def history(self, claim: str) -> list[dict[str, Any]]:
        """Return the facts of the claim, as `claimlet history` tells them."""
        found: list[dict[str, Any]] = self.good("history", "claim", claim, "-o", "json")["items"]
        return found

    def reboot(self, boot: str) -> None:
        """Let the node be in *boot*: all processes gone, CDI files gone, the service back."""
        self.driver.kill()
        self.service.kill()
        for file in self.driver.cdi_dir.glob("*"):
            file.unlink()
        self.service.set_boot(boot)
        self.service.up()


@contextmanager
def made(directory: Path, peer: Peer, program: Any, **options: Any) -> Iterator[PeerService]:
    """Yield a running service with a registered driver of *peer*."""
    looked_up = {"CLAIMLET_DRIVERS__CDI_DIRS": json.dumps([str(directory / "root" / "cdi")])}
    with (
        ServiceProcess(directory, environ=_SETTINGS | looked_up) as service,
        driver_of(service, peer, program, **options) as driver,
    ):
        found = PeerService(service, driver, peer)
        found.until_registered()
        yield found


def driver_of(service: ServiceProcess, peer: Peer, program: Any, **options: Any) -> Driver:
    """Return a driver of *peer* for *service*, not started."""
    ran = call(*service.options, "drivers", "kubeconfig", peer.name)
    assert ran.code == 0, ran
    if peer.has_client:
        options |= {"kubeconfig": Path(ran.out.strip())}
    return peer.driver(program, service.root, node=NODE, **options)
