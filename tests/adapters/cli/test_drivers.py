"""`claimlet drivers`: who is there, who may stop, and who is told everything again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.adapters.cli.node import Node, call
from tests.adapters.cli.test_pod import told
from tests.adapters.service_process import ServiceProcess, eventually, short_directory

from claimlet.adapters.cli.drivers import _holds


class TestList:
    @pytest.mark.parametrize("form", ["table", "wide", "json", "jsonl", "yaml", "name"])
    def test_shows_who_is_registered(self, node: Node, form: str) -> None:
        """Each form has the driver."""
        ran = node.good("drivers", "list", "-o", form)

        if form == "json":
            assert ran.json["kind"] == "DriverList"
            row = next(item for item in ran.json["items"] if item["driver"] == "gpu.demo")
            assert row["state"] == "connected"
        elif form == "name":
            assert "driver/gpu.demo\n" in ran.out
        else:
            assert "gpu.demo" in ran.out

    def test_answers_without_a_service_too(self) -> None:
        """From the log it is known who was registered, not who is there; a note says so."""
        with short_directory() as directory, ServiceProcess(directory) as service:
            service.driver("gpu.demo")
            service.stop()
            ran = call("drivers", "list", "-o", "json", *service.options)

            assert ran.code == 0
            assert ran.told == ["note"]
            assert [(d["driver"], d["state"]) for d in ran.json["items"]] == [
                ("gpu.demo", "registered")
            ]
            assert call("drivers", "can-stop", "gpu.demo", *service.options).code == 0


@pytest.fixture
def pod(node: Node) -> Iterator[str]:
    """Give a pod that holds a claim of the driver."""
    node.prepared("holder", "holder-a")
    yield "ml/holder"
    node.script()
    node.good("pod", "unprepare", "ml/holder", "--wait")


class TestCanStop:
    def test_is_not_said_while_claims_hold_something(self, node: Node, pod: str) -> None:
        """Exit 1 and the claims that hold something, with their pods."""
        ran = node.call("drivers", "can-stop", "gpu.demo")

        assert ran.code == 1
        row = next(row for row in ran.rows if row[1] == "holder-a")
        assert row == ["ml", "holder-a", "holder", "holds", "prepared"]
        assert "gpu.demo cannot stop: something is held or owed for " in ran.err
        found = node.call("drivers", "can-stop", "gpu.demo", "-o", "json").json
        assert found["kind"] == "HoldList"

    def test_is_not_said_while_something_is_owed(self, node: Node, pod: str) -> None:
        """An unprepare that is owed is named with its reason."""
        node.stuck("holder", "holder-a", "in use")

        ran = node.call("drivers", "can-stop", "gpu.demo", "-o", "jsonl")
        assert ran.code == 1
        hold = next(item for item in ran.jsonl if item["claim"] == "holder-a")
        assert hold["what"] == "owes"
        assert "in use" in hold["reason"]

    def test_is_said_when_nothing_is_left(self) -> None:
        """Exit 0 only then."""
        with short_directory() as directory, ServiceProcess(directory) as service:
            node = Node(service, service.driver(Node.driver_name))
            ran = node.good("drivers", "can-stop", "gpu.demo")
            assert ran.out == "gpu.demo can stop: no claim holds or owes anything through it\n"
            node.prepared("p", "a")
            assert node.call("drivers", "can-stop", "gpu.demo").code == 1
            node.good("pod", "unprepare", "ml/p", "--wait")
            ran = node.good("drivers", "can-stop", "gpu.demo", "-o", "json")
            assert ran.json == {"kind": "HoldList", "items": []}

    def test_counts_claims_that_owe_nothing(self, node: Node, pod: str) -> None:
        """A driver that is never asked to unprepare holds what is prepared, debt or not."""
        state = node.service.state()
        claim = node.service.claims()["ml/holder-a"]
        assert claim.debts
        replace = msgspec.structs.replace
        free = replace(state, claims=[replace(claim, debts=[])], waivers=[])

        assert [hold.what for hold in _holds(free, "gpu.demo")] == ["holds"]
        assert not _holds(free, "other.example.com")

    def test_does_not_know_every_driver(self, node: Node) -> None:
        """A driver that nobody named: exit 3."""
        assert "none.example.com" in told(node.call("drivers", "can-stop", "none.example.com"), 3)


class TestReplay:
    def test_has_all_claims_prepared_again(self, node: Node, pod: str) -> None:
        """Each claim with a debt to the driver is prepared once more."""
        before = len(node.driver.calls("prepare", "holder-a"))
        ran = node.good("drivers", "replay", "gpu.demo", "-o", "json")

        assert ran.json["count"] >= 1
        eventually(
            lambda: len(node.driver.calls("prepare", "holder-a")) == before + 1, "asked again"
        )

    def test_of_an_unknown_driver_touches_nothing(self, node: Node) -> None:
        """Nobody owes it anything: exit 3."""
        ran = node.call("drivers", "replay", "none.example.com")
        assert "none.example.com is not registered" in told(ran, 3)


class TestWithoutService:
    def test_replay_needs_it(self, tmp_path: Path) -> None:
        """Exit 4."""
        ran = call("drivers", "replay", "gpu.demo", "--state-dir", str(tmp_path))
        assert "no claimlet service" in told(ran, 4)
