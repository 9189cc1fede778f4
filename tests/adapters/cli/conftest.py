"""One service and one driver for all tests of commands; each test has pods of its own names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.adapters.cli.node import Node
from tests.adapters.service_process import ServiceProcess, short_directory


@pytest.fixture(scope="session")
def shared_node() -> Iterator[Node]:
    with short_directory() as directory, ServiceProcess(directory) as service:
        yield Node(service, service.driver(Node.driver_name))


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """Give the node, whose driver does what it should again after the test."""
    yield shared_node
    shared_node.script()
