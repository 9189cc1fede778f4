"""What a driver sees of a node: a registry that calls it, claims it may read, and a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from tests.adapters.gateway.client import NODE, Claims, Client
from tests.peers.peer import HelperDriver

from claimlet.adapters.gateway import GatewayClaim
from claimlet.adapters.gateway.server import ClaimsGateway
from claimlet.adapters.plugins.registry import DriverRegistry
from claimlet.adapters.world import RealWorld
from claimlet.engine.ports import Claim, DriverInstance, Failed, Prepared
from claimlet.events.values import ClaimUid, DriverName

__all__ = ["PeerNode", "eventually"]

#: A driver's first call may wait for its client's rate limit.
CALL_SECONDS = 45.0
_PATIENCE_SECONDS = 60.0


async def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Return what *condition* gives once it is true; looked at again and again, up to a minute."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not (value := condition()):  # noqa: ASYNC110 -- other processes set no event
                await asyncio.sleep(0.02)
            return value
    except TimeoutError:
        raise AssertionError(f"still not: {what}") from None


class PeerNode:
    """Registry, claims and gateway of a node in *root*; it listens to its drivers itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_dir = root / "state"
        self.claims = Claims()
        self.connected: dict[str, DriverInstance] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.world = await self._stack.enter_async_context(RealWorld())
        self.gateway = await self._stack.enter_async_context(self.make_gateway())
        self.registry = await self._stack.enter_async_context(
            DriverRegistry(self.root, world=self.world, listener=self)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def make_gateway(self) -> ClaimsGateway:
        return ClaimsGateway(self.claims, state_dir=self.state_dir, node=NODE, world=self.world)

    def registered(self, instance: DriverInstance) -> None:
        self.connected[instance.instance] = instance

    def gone(self, driver: DriverName, instance: str, reason: str) -> None:
        self.connected.pop(instance, None)

    def add(self, claim: GatewayClaim) -> Claim:
        """Let drivers see *claim*, and return it as an adapter gets it."""
        self.claims.claims[claim.ref.namespace, claim.ref.name] = claim
        return Claim(ref=claim.ref, allocation=claim.allocation)

    def helper_driver(self, program: Path, **options: Any) -> HelperDriver:
        """Return a driver for this node; not started."""
        kubeconfig = self.gateway.kubeconfig_for(HelperDriver.name)
        return HelperDriver(program, self.root, node=NODE, kubeconfig=kubeconfig, **options)

    def client(self, driver: str) -> Client:
        """Return a client of the gateway in *driver*'s name."""
        return Client(self.gateway.kubeconfig_for(driver))

    def instances(self, driver: str) -> list[DriverInstance]:
        """Return the connected instances of *driver*, oldest first."""
        return [i for i in self.connected.values() if i.driver == driver]

    async def instance(self, driver: str, *, count: int = 1) -> DriverInstance:
        """Wait for *count* connected instances of *driver* and return the one to be called."""
        await eventually(
            lambda: len(self.instances(driver)) == count, f"{count} instances of {driver}"
        )
        found = self.registry.find(DriverName(driver))
        assert found is not None
        return found

    async def prepare(self, driver: str, *claims: Claim) -> Mapping[ClaimUid, Prepared | Failed]:
        instance = await self.instance(driver)
        return await instance.adapter.prepare(claims, timeout_seconds=CALL_SECONDS)

    async def unprepare(self, driver: str, *claims: Claim) -> Mapping[ClaimUid, Failed | None]:
        instance = await self.instance(driver)
        return await instance.adapter.unprepare(claims, timeout_seconds=CALL_SECONDS)
