"""`claimlet doctor`: each trouble by name, with what to do, whatever else is broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.adapters.cli.node import Node, Ran
from tests.adapters.cli.test_log import damage
from tests.adapters.service_process import ServiceProcess, short_directory

from claimlet.events.log import Head
from claimlet.events.server.anchor import anchor_file, write_anchor
from claimlet.events.server.keys import seed_file

pytestmark = pytest.mark.damage


@pytest.fixture(scope="module")
def patient() -> Iterator[Node]:
    """Give a node that is treated badly; its log is whole until the last test."""
    with short_directory() as directory, ServiceProcess(directory) as service:
        yield Node(service, service.driver(Node.driver_name))


def found(ran: Ran) -> dict[str, dict[str, Any]]:
    """Return the findings by check; each that is not ok says what to do."""
    items = ran.json["items"]
    for item in items:
        assert item["state"] == "ok" or item["hint"], item
    assert ran.code == (1 if any(item["state"] == "error" for item in items) else 0)
    return {item["check"]: item for item in items}


def examined(node: Node) -> dict[str, dict[str, Any]]:
    return found(node.call("doctor", "-o", "json"))


class TestDoctor:
    def test_of_a_well_node(self, patient: Node) -> None:
        """Everything is looked at, and found well, in a table and as data."""
        patient.prepared("p1", "a")
        findings = examined(patient)
        table = patient.good("doctor").out

        assert {name for name, item in findings.items() if item["state"] == "error"} == set()
        for name in ("boot id", "disk", "keys", "service", "log server", "stream", "log", "claims"):
            assert findings[name]["text"], name
            assert f"\n{name} " in table
        assert "healthy" in findings["log server"]["text"]
        assert "facts read and checked" in findings["log"]["text"]
        assert findings["clock"]["state"] == "ok"

    def test_of_a_disk_that_is_nearly_full(
        self, patient: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Little room is an error, less than the log may take a warning."""

        def free(count: int) -> None:
            usage = SimpleNamespace(free=count)
            monkeypatch.setattr("shutil.disk_usage", lambda _: usage)

        free(1024**2)
        assert examined(patient)["disk"]["state"] == "error"
        free(200 * 1024**2)
        assert "log.max_file_store_bytes" in examined(patient)["disk"]["hint"]

    def test_of_claims_in_trouble(self, patient: Node) -> None:
        """A waived debt is named with its driver."""
        patient.prepared("p-w", "w")
        patient.stuck("p-w", "w", "never again")
        waive = ("unprepare", "waive", "ml/w", "--driver", Node.driver_name, "--reason", "gone")
        patient.good(*waive)

        assert f"ml/w: {Node.driver_name}" in examined(patient)["claims"]["text"]

    def test_of_a_stopped_node(self, patient: Node) -> None:
        """Without a service the log is read all the same, and nothing is left running."""
        assert patient.service.stop() == 0
        findings = examined(patient)

        assert findings["service"]["text"] == "not running"
        assert findings["log"]["state"] == "ok"
        assert "log server" not in findings

    @pytest.mark.parametrize("mode", [0o755, 0o777])
    def test_of_a_state_directory_that_is_open(self, patient: Node, mode: int) -> None:
        """A directory that others can read is a warning, one that they can write an error."""
        patient.service.state_dir.chmod(mode)
        findings = examined(patient)
        patient.service.state_dir.chmod(0o700)

        assert findings["state directory"]["state"] == ("error" if mode & 0o022 else "warn")
        assert findings["state directory"]["hint"].startswith("chmod 700")

    def test_without_keys(self, patient: Node) -> None:
        """A missing key is named, the log is left alone, and no new key is made."""
        file = seed_file(patient.service.state_dir / "keys", "writer")
        seed = file.read_bytes()
        file.unlink()
        findings = examined(patient)
        is_made = file.exists()
        file.write_bytes(seed)
        file.chmod(0o600)

        assert not is_made
        assert findings["keys"]["text"].endswith(": writer")
        assert findings["log"]["text"] == "not looked at: keys are missing"

    def test_without_a_server_program(self, patient: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that is not there is an error of its own, told once for each check."""
        monkeypatch.setenv("CLAIMLET_NATS_SERVER", "/nowhere/nats-server")
        findings = examined(patient)

        assert "/nowhere/nats-server" in findings["nats-server"]["text"]
        assert findings["boot id"]["state"] == "ok"

    def test_without_anything(self, tmp_path: Path) -> None:
        """Before the first start there is nothing wrong, and nothing is made."""
        from tests.adapters.cli.node import call

        state = tmp_path / "state"
        findings = found(call("doctor", "-o", "json", "--state-dir", f"{state}"))

        assert findings["log"]["text"] == f"there is none in {state} yet"
        assert not state.exists()

    def test_of_a_bad_boot_id(self, patient: Node) -> None:
        """A file without a boot id is named."""
        patient.service.set_boot("?")
        findings = examined(patient)
        patient.service.set_boot("boot-1")

        assert findings["boot id"]["state"] == "error"

    @pytest.mark.field(53)
    def test_of_a_damaged_log(self, patient: Node) -> None:
        """The damage is named by its stream and range, with the command that gives it up."""
        patient.service.up()
        sequence = damage(patient, "driver_prepared", name="a")
        findings = examined(patient)

        assert findings["log"]["text"].startswith(f"EVENTS, records {sequence} to {sequence}: ")
        assert f"--from {sequence} --to {sequence} --why" in findings["log"]["hint"]

    def test_of_a_log_that_lost_its_end(self, patient: Node) -> None:
        """An end before what was acknowledged is told, with both sequences."""
        state_dir = patient.service.state_dir
        write_anchor(anchor_file(state_dir), Head(sequence=99_999, id="x", link=bytes(32)))
        findings = patient.call("doctor", "-o", "json").json["items"]

        assert any("but record 99999 was acknowledged" in item["text"] for item in findings)
