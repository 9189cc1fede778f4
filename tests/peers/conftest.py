"""Peers that are there, and a node's drivers, claims and gateway for them to meet."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.peers import go_peers
from tests.peers.node import PeerNode


def _go_program(name: str) -> Path:
    if reason := go_peers.missing():
        pytest.skip(reason)
    return go_peers.build(name)


@pytest.fixture(scope="session")
def helperdriver() -> Path:
    """Return the program of the driver on upstream's helper."""
    return _go_program("helperdriver")


@pytest.fixture(scope="session")
def example_driver() -> Path:
    """Return the program of upstream's example driver."""
    return _go_program("dra-example-kubeletplugin")


@pytest.fixture(scope="session")
def cdiresolve() -> Path:
    """Return the program that asks the CDI reference library."""
    return _go_program("cdiresolve")


@pytest.fixture(scope="session")
def pydra_python() -> str:
    """Return the Python of the environment with kubernetes-pydra in it."""
    python = os.environ.get("CLAIMLET_PEERS_PYTHON")
    if not python:
        pytest.skip("CLAIMLET_PEERS_PYTHON is not set; python -m tests.peers.make_env makes one")
    return python


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Return a directory whose sockets have short paths: 107 bytes are all that there may be."""
    with TemporaryDirectory(prefix="peers-") as directory:
        yield Path(directory)


@pytest.fixture
async def node(short_dir: Path) -> AsyncIterator[PeerNode]:
    """Return a node without an engine: what drivers see of it."""
    async with PeerNode(short_dir) as node:
        yield node


@pytest.fixture
def go_driver(helperdriver: Path, node: PeerNode) -> Callable[..., object]:
    """Return a function that makes a driver on upstream's helper for the node."""
    return lambda **options: node.helper_driver(helperdriver, **options)
