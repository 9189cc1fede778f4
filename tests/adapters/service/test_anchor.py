"""A log that lost its end, or was made anew, is not gone on with as if nothing had been."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.cli.node import Node
from tests.adapters.service_process import ServiceProcess, short_directory

from claimlet.events.server.anchor import read_anchor

pytestmark = pytest.mark.damage


@pytest.fixture
def node() -> Iterator[Node]:
    """Give a node with one prepared pod."""
    with short_directory() as directory, ServiceProcess(directory) as service:
        node = Node(service, service.driver(Node.driver_name))
        node.prepared("p", "a")
        yield node


def anchor_of(node: Node) -> Path:
    return node.service.state_dir / "anchor"


def refused(node: Node) -> str:
    """Return the error of a start that must be refused with exit code 4 and a hint."""
    ran = subprocess.run(
        [sys.executable, "-m", "claimlet", "run", *node.service.options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = [line for line in ran.stderr.splitlines() if not line.startswith("{")]
    assert ran.returncode == 4, ran
    assert [line.partition(":")[0] for line in told] == ["error", "hint"]
    assert "remove the file anchor" in told[1]
    return told[0]


class TestAnchor:
    def test_is_where_the_log_ends(self, node: Node) -> None:
        """A service that has stopped leaves it at the last record; one that was killed, near it."""
        node.service.stop()
        anchor = read_anchor(anchor_of(node))
        assert anchor is not None
        assert anchor.sequence == node.service.state().sequence

        node.service.up()
        node.service.crash()
        assert node.service.claims()["ml/a"].state == "prepared"

    @pytest.mark.field(112)
    def test_shows_that_the_end_was_lost(self, node: Node) -> None:
        """An older copy of the store is refused, until an operator accepts what was lost."""
        js, copy = node.service.state_dir / "js", node.service.directory / "copy"
        node.service.stop()
        shutil.copytree(js, copy)
        node.service.up()
        node.prepared("q", "b")
        node.service.stop()
        shutil.rmtree(js)
        copy.rename(js)
        before = anchor_of(node).read_bytes()

        assert "was acknowledged" in refused(node)
        assert anchor_of(node).read_bytes() == before
        anchor_of(node).unlink()
        node.service.up()
        assert set(node.service.claims()) == {"ml/a"}

    @pytest.mark.field(112)
    def test_shows_that_the_log_is_gone(self, node: Node) -> None:
        """No fresh stream is made in the place of one that was there."""
        node.service.stop()
        kept = node.service.directory / "kept"
        (node.service.state_dir / "js").rename(kept)
        error = refused(node)
        shutil.rmtree(node.service.state_dir / "js")
        kept.rename(node.service.state_dir / "js")
        node.service.up()

        assert "the log is gone" in error
        assert node.service.claims()["ml/a"].state == "prepared"

    def test_shows_that_it_is_another_log(self, node: Node) -> None:
        """A log of the same node that was written anew is told from the one that was."""
        node.service.stop()
        anchor = anchor_of(node).read_bytes()
        shutil.rmtree(node.service.state_dir / "js")
        anchor_of(node).unlink()
        node.service.up()
        for number in range(3):
            node.prepared(f"new-{number}", f"new-{number}-a")
        node.service.stop()
        anchor_of(node).write_bytes(anchor)

        assert "is not the one that was acknowledged" in refused(node)

    @pytest.mark.field(55)
    def test_that_is_broken_is_made_anew(self, node: Node) -> None:
        """The log wins over a file that says nothing."""
        node.service.stop()
        anchor_of(node).write_bytes(b"garbage")
        node.service.up()
        warned = "anchor_unreadable" in node.service.said()
        node.service.stop()

        assert warned
        assert read_anchor(anchor_of(node)) is not None
