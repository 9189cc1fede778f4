"""`claimlet replay`: the log folded again, compared, and looked at fact by fact."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.adapters.cli.node import Node, call
from tests.adapters.cli.test_pod import told
from tests.adapters.service_process import ServiceProcess, short_directory

from claimlet.adapters.cli.output import Output
from claimlet.adapters.cli.replay import _verification_text
from claimlet.adapters.service import verifying
from claimlet.adapters.service.addresses import server_settings
from claimlet.adapters.world import RealWorld
from claimlet.events.facts import SnapshotTaken
from claimlet.events.jetstream.log import open_log
from claimlet.events.record import Draft, Record, Stamp
from claimlet.events.server.process import EmbeddedServer


def by_what(document: Any) -> dict[str, dict[str, Any]]:
    return {item["what"]: item for item in document["comparisons"]}


@pytest.fixture
def stopped() -> Iterator[ServiceProcess]:
    """Give a service that has worked and does not run any more."""
    with short_directory() as directory, ServiceProcess(directory) as service:
        service.driver()
        Node(service, service._drivers[0]).prepared("p", "a")
        service.stop()
        yield service


def append_snapshot(service: ServiceProcess, **changes: Any) -> None:
    """Record a snapshot as the service would, and *changes* in what it says."""

    async def do() -> None:
        server = EmbeddedServer(server_settings(service.settings))
        records: list[Record] = []
        stamp = Stamp(node=service.settings.node, boot="b", writer="test")
        async with server, RealWorld() as world:
            log = await open_log(
                server.address("writer"),
                admin=server.address("admin"),
                stamp=stamp,
                fold=records.append,
                world=world,
            )
            async with log:
                [last] = [r.fact for r in records if isinstance(r.fact, SnapshotTaken)]
                await log.append([Draft(fact=msgspec.structs.replace(last, **changes))])

    ServiceProcess._apart(lambda: asyncio.run(do()))


class TestVerify:
    def test_compares_with_the_running_service(self, node: Node) -> None:
        """A whole replay gives the digest that the service has, whatever it is doing."""
        node.prepared("verified", "verified-a")
        ran = node.good("replay", "verify", "-o", "json")
        service = by_what(ran.json)["service"]

        assert ran.json["kind"] == "ReplayVerification"
        assert service["result"] == "match"
        assert service["digest"] == service["replayed"]
        assert ran.json["first"] == 1
        # Private facts come to no reader.
        assert 0 < ran.json["facts"] <= ran.json["last"]

    def test_is_told_to_people(self, node: Node) -> None:
        """What was replayed, then a line for each comparison."""
        ran = node.good("replay", "verify")
        lines = ran.out.splitlines()

        assert lines[0].startswith("log of node-a   seq 1")
        assert "every link of the chain" in lines[1]
        assert [line.split()[-1] for line in lines[2:] if line.startswith("service")] == ["MATCH"]

    def test_compares_with_the_newest_snapshot(self, stopped: ServiceProcess) -> None:
        """Where no service runs, with the snapshot alone, which is at the end of a clean log."""
        ran = call("replay", "verify", "-o", "json", *stopped.options)
        compared = by_what(ran.json)

        assert ran.code == 0
        assert compared["snapshot"]["result"] == "match"
        assert compared["snapshot"]["sequence"] == ran.json["last"] - 2
        assert (compared["service"]["result"], compared["service"]["reason"]) == (
            "none",
            "none runs",
        )

    def test_ends_with_1_where_a_snapshot_differs(self, stopped: ServiceProcess) -> None:
        """A snapshot that is not what the log says is bad news, shown with both digests."""
        append_snapshot(stopped, digest="f" * 64)
        ran = call("replay", "verify", *stopped.options)

        assert ran.code == 1
        [line] = [line for line in ran.out.splitlines() if line.startswith("snapshot")]
        assert line.endswith("MISMATCH")
        assert "sha256:ffffffffffff…  ≠  sha256:" in line

    def test_says_what_it_cannot_compare(self, stopped: ServiceProcess) -> None:
        """A snapshot of another version of the fold proves nothing."""
        append_snapshot(stopped, fold_version=99)
        ran = call("replay", "verify", *stopped.options)

        assert ran.code == 0
        assert "nothing to compare: it was made by another version of the fold" in ran.out

    def test_shows_which_fields_differ(self, node: Node) -> None:
        """Where the service holds something else than the log says, it is named."""
        node.prepared("differing", "differing-a")
        live = node.service.state()
        claims = [
            msgspec.structs.replace(c, state="unprepared") if c.name == "differing-a" else c
            for c in live.claims
        ]
        live = msgspec.structs.replace(live, claims=claims, digest="0" * 64)
        found = ServiceProcess._apart(
            lambda: asyncio.run(verifying.verify(node.service.settings, live))
        )

        assert not found.is_good
        text = _verification_text(found, Output())
        rows = [line.split() for line in text.splitlines()]
        assert ["claim", "ml/differing-a", "state", "unprepared", "prepared"] in rows


class TestStep:
    @pytest.fixture
    def place(self, node: Node) -> int:
        """Have a claim prepared, and return where that is recorded."""
        if not node.driver.calls("prepare", "stepped-a"):
            node.prepared("stepped", "stepped-a")
        facts = node.good("history", "claim", "ml/stepped-a", "-o", "jsonl").jsonl
        return int(next(f["sequence"] for f in facts if f["fact"] == "prepared"))

    def test_shows_what_each_fact_changes(self, node: Node, place: int) -> None:
        """The facts about one claim, each with the fields that it changed."""
        ran = node.good("replay", "step", "--claim", "ml/stepped-a", "-o", "json")
        steps = {item["fact"]: item for item in ran.json["items"]}
        changed = {
            (c["kind"], c["field"]): (c["before"], c["after"]) for c in steps["prepared"]["changes"]
        }

        assert ran.json["kind"] == "StepList"
        assert list(steps) == [
            "generated",
            "bound",
            "prepare_started",
            "driver_prepared",
            "prepared",
        ]
        assert changed["claim", "state"] == ("bound", "prepared")
        assert changed["pod", "state"] == ("pending", "prepared")

    def test_shows_a_part_of_the_log(self, node: Node, place: int) -> None:
        """From one place to another, both included, facts about pods and the node too."""
        ran = node.good(
            *("replay", "step", "--from", f"seq:{place - 2}"), "--to", f"seq:{place}", "-o", "jsonl"
        )

        assert [item["sequence"] for item in ran.jsonl][-1] == place
        started = node.good("replay", "step", "--to", "seq:3", "-o", "jsonl").jsonl
        fields = {c["field"]: c["after"] for item in started for c in item["changes"]}
        assert started[0]["fact"] == "writer_started"
        assert fields["boot"] == started[0]["boot"]

    def test_is_told_to_people(self, node: Node, place: int) -> None:
        """A line for the fact, and below it one for each field."""
        ran = node.good("replay", "step", "--from", f"seq:{place}", "--to", f"seq:{place}")
        lines = ran.out.splitlines()

        assert lines[0].split()[0] == str(place)
        assert lines[0].endswith("   prepared   ml/stepped-a")
        assert ["claim", "ml/stepped-a", "state", "bound", "→", "prepared"] in [
            line.split() for line in lines[1:]
        ]

    def test_of_a_claim_that_was_not(self, node: Node) -> None:
        """A name that the log does not know ends with 3; what is no name with 2."""
        assert "knows no claim" in told(node.call("replay", "step", "--claim", "ml/none"), 3)
        assert "no name" in told(node.call("replay", "step", "--claim", "a/b/c"), 2)
