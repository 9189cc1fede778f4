"""A running gateway and drivers that ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.adapters.gateway.client import NODE, Claims, Client

from claimlet.adapters.gateway.server import ClaimsGateway
from claimlet.adapters.world import RealWorld


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
async def gateway(claims: Claims, tmp_path: Path) -> AsyncIterator[ClaimsGateway]:
    async with (
        RealWorld() as world,
        ClaimsGateway(claims, state_dir=tmp_path, node=NODE, world=world) as gateway,
    ):
        yield gateway


@pytest.fixture
def client(gateway: ClaimsGateway) -> Callable[[str], Client]:
    """Return a function that makes a driver's client."""
    return lambda driver: Client(gateway.kubeconfig_for(driver))
