"""`claimlet claims`: lists, one claim, what can be chosen, and watching."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.adapters.cli.node import Node, call
from tests.adapters.cli.test_pod import check_claim, told
from tests.adapters.service_process import ServiceProcess, eventually, manifest, short_directory

from claimlet.adapters.cli.claims import STATES
from claimlet.adapters.control.protocol import PodClaims, PrepareRequest
from claimlet.engine.lifecycle import Phase, public_state


class TestList:
    def test_has_the_form_that_others_rely_on(self, node: Node) -> None:
        """`-A -o json` is a ClaimList whose items have the documented fields."""
        node.prepared("listed", "listed-a")
        found = node.good("claims", "list", "-A", "-o", "json").json

        assert found.keys() == {"kind", "items"}
        assert found["kind"] == "ClaimList"
        for claim in found["items"]:
            check_claim(claim)
        claim = next(item for item in found["items"] if item["name"] == "listed-a")
        assert claim["state"] == "prepared"
        assert claim["pods"][0]["name"] == "listed"

    def test_is_a_table_for_people(self, node: Node) -> None:
        """The columns are kubectl's; wide adds UID and error."""
        node.prepared("tabled", "tabled-a")
        ran = node.good("claims", "ls", "-n", "ml")

        assert ran.out.split("\n")[0].split() == [
            "NAMESPACE", "CLAIM", "POD", "STATE", "DRIVERS", "DEVICES", "OWED", "AGE", "SINCE",
        ]  # fmt: skip
        row = next(row for row in ran.rows if row[1] == "tabled-a")
        assert row[:7] == [
            "ml", "tabled-a", "tabled", "prepared", "gpu.demo:prepared", "tabled-a", "<none>",
        ]  # fmt: skip
        wide = node.good("claims", "list", "-n", "ml", "-o", "wide")
        assert wide.out.split("\n")[0].split()[-2:] == ["UID", "ERROR"]
        bare = node.good("claims", "list", "-n", "ml", "--no-headers")
        assert "NAMESPACE" not in bare.out

    def test_has_the_same_claims_in_each_form(self, node: Node) -> None:
        """jsonl, yaml and names tell of the same claims as json."""
        node.prepared("formed", "formed-a")
        names = [
            item["name"] for item in node.good("claims", "list", "-A", "-o", "json").json["items"]
        ]

        assert [i["name"] for i in node.good("claims", "list", "-A", "-o", "jsonl").jsonl] == names
        ran = node.good("claims", "list", "-A", "-o", "yaml")
        assert [item["name"] for item in yaml.safe_load(ran.out)["items"]] == names
        ran = node.good("claims", "list", "-A", "-o", "name")
        assert ran.out.splitlines() == [f"ml/{name}" for name in names]

    def test_chooses_by_namespace_driver_and_state(self, node: Node) -> None:
        """What does not fit is left out; nothing left is said on stderr."""
        node.prepared("chosen", "chosen-a")

        ran = node.good("claims", "list")
        assert (ran.out, ran.err) == ("", "no claims\n")
        ran = node.good("claims", "list", "-A", "--driver", "none.example.com")
        assert ran.out == ""
        ran = node.good("claims", "list", "-A", "--driver", "gpu.demo", "--state", "prepared")
        assert {row[3] for row in ran.rows} == {"prepared"}
        ran = node.good("claims", "list", "-A", "--state", "generated", "-o", "json")
        assert ran.json == {"kind": "ClaimList", "items": []}

    def test_chooses_what_is_wrong(self, node: Node) -> None:
        """`--faults` leaves those that something is wrong with, which is shown."""
        node.prepared("fine", "fine-a")
        node.prepared("faulty", "faulty-a")
        node.stuck("faulty", "faulty-a", "in use")

        ran = node.good("claims", "list", "-A", "--faults", "-o", "wide")
        (row,) = ran.rows
        assert row[1] == "faulty-a"
        assert row[6].startswith("unprepare gpu.demo (")
        assert "in use" in row[-1]
        node.script()
        node.good("pod", "unprepare", "ml/faulty", "--wait")

    def test_knows_the_states(self, node: Node) -> None:
        """`--state` takes the public states and refuses others with the list."""
        open_phases = [p for p in Phase if p not in (Phase.ABSENT, Phase.CLOSED)]
        assert set(STATES) == {public_state(phase) for phase in open_phases}

        error = told(node.call("claims", "list", "--state", "ready"), 2)
        assert all(state in error for state in STATES)

    @pytest.mark.parametrize(
        "arguments", [["-n", "a", "-A"], ["-o", "csv"], ["-w", "-o", "json"], ["extra"]]
    )
    def test_refuses_what_makes_no_sense(self, node: Node, arguments: list[str]) -> None:
        """Exit 2 and one line."""
        ran = node.call("claims", "list", *arguments)
        assert ran.code == 2
        assert ran.told[0] == "error"


class TestOne:
    @pytest.mark.parametrize("form", ["table", "wide", "json", "yaml", "name"])
    def test_is_shown_in_each_form(self, node: Node, form: str) -> None:
        """`get` shows a claim as a row, or whole."""
        node.prepared("got", "got-a")
        ran = node.good("claims", "get", "ml/got-a", "-o", form)

        if form == "json":
            check_claim(ran.json)
        elif form == "yaml":
            check_claim(yaml.safe_load(ran.out))
        elif form == "name":
            assert ran.out == "ml/got-a\n"
        else:
            assert ran.rows[0][:3] == ["ml", "got-a", "got"]
        assert node.good("claims", "get", "got-a", "-n", "ml", "-o", "name").out == "ml/got-a\n"

    def test_is_described_for_people(self, node: Node) -> None:
        """`describe` names pods, drivers, devices and CDI ids."""
        found = node.prepared("told", "told-a")
        ran = node.good("claims", "describe", "ml/told-a")

        assert "Claim:      ml/told-a" in ran.out
        assert f"ml/told (uid {found['pod']['uid']})" in ran.out
        assert found["claims"][0]["drivers"][0]["devices"][0]["cdi_device_ids"][0] in ran.out

    def test_is_described_with_what_is_wrong(self, node: Node) -> None:
        """What is owed, since when, and the last error."""
        node.prepared("bad", "bad-a")
        node.stuck("bad", "bad-a", "in use")
        ran = node.good("claims", "describe", "ml/bad-a")

        assert "Owed:       unprepare by gpu.demo since " in ran.out
        assert "Last error: " in ran.out
        assert "in use" in ran.out
        node.script()
        node.good("pod", "unprepare", "ml/bad", "--wait")

    @pytest.mark.parametrize("command", ["get", "describe"])
    def test_is_not_found(self, node: Node, command: str) -> None:
        """Exit 3, and the history as a hint; a UID of another claim is not found either."""
        ran = node.call("claims", command, "ml/nothing")
        assert told(ran, 3) == "error: there is no claim ml/nothing on this node"
        assert "claimlet history claim ml/nothing" in ran.err
        node.prepared("uid", "uid-a")
        assert "with UID u9" in told(node.call("claims", command, "ml/uid-a", "--uid", "u9"), 3)

    def test_is_not_reprepared_if_unknown(self, node: Node) -> None:
        """The service's own error comes through, with exit 3."""
        assert "ml/nothing" in told(node.call("claims", "reprepare", "ml/nothing"), 3)

    def test_is_prepared_again_on_request(self, node: Node) -> None:
        """`reprepare` asks the drivers once more, while the pod is wanted."""
        node.prepared("more", "more-a")
        ran = node.good("claims", "reprepare", "ml/more-a")

        assert ran.out == "the drivers of claim ml/more-a are asked again\n"
        eventually(lambda: len(node.driver.calls("prepare", "more-a")) == 2, "asked again")
        eventually(
            lambda: (
                node.good("claims", "get", "ml/more-a", "-o", "json").json["state"] == "prepared"
            ),
            "prepared again",
        )
        ran = node.good("claims", "reprepare", "ml/more-a", "-o", "json")
        check_claim(ran.json)


@contextmanager
def watching(service: ServiceProcess, *arguments: str) -> Iterator[Watch]:
    """Run a command that has no end; it is interrupted at the end."""
    path = service.directory / f"watch-{len(list(service.directory.glob('watch-*')))}"
    with path.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "claimlet", *arguments, *service.options],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Watch(process, path)
    finally:
        process.kill()
        process.wait()


class Watch:
    """A command that goes on."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self._process = process
        self._path = path

    @property
    def text(self) -> str:
        return self._path.read_text()

    def until(self, *words: str) -> None:
        """Wait until all *words* were written."""
        eventually(
            lambda: all(word in self.text for word in words) or self._process.poll() is not None,
            f"{words} in {self.text!r}",
        )
        assert all(word in self.text for word in words), self.text

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout=20)


class TestWatch:
    def test_goes_on_across_a_crash_and_a_restart(self) -> None:
        """Lists and histories follow the service; Ctrl-C ends them quietly with 130."""
        with short_directory() as directory, ServiceProcess(directory) as service:
            with (
                watching(service, "claims", "watch", "-A") as table,
                watching(service, "claims", "list", "-A", "-w", "-o", "jsonl") as lines,
                watching(service, "history", "node", "-f") as history,
            ):
                table.until("no claims")
                history.until("source_synced")
                self._want(service, "before")
                for watch in (table, lines, history):
                    watch.until("before")
                service.crash()
                service.restart()
                self._want(service, "after")
                for watch in (table, lines, history):
                    watch.until("after")

                assert [watch.interrupt() for watch in (table, lines, history)] == [130] * 3
            assert "\x1b" not in table.text
            assert "Traceback" not in table.text + lines.text + history.text
            items = [json.loads(line) for line in lines.text.splitlines() if line[:1] == "{"]
            assert [item["name"] for item in items] == ["before", "after"]
            rows = [line.split() for line in history.text.splitlines()[1:] if line]
            assert [row[0] for row in rows] == [str(n + 1) for n in range(len(rows))]

    def _want(self, service: ServiceProcess, name: str) -> None:
        """Ask for a pod whose claim needs no driver, so that none has to run."""
        documents = manifest(name, devices={name: ""})
        request = PrepareRequest(documents=documents, wait_seconds=5)
        (pod,) = service.ask("prepare", list[PodClaims], request=request)
        assert pod.state == "prepared", pod

    def test_waits_for_a_service(self) -> None:
        """Without a service the log's claims are shown, and the service is waited for."""
        with short_directory() as directory, ServiceProcess(directory) as service:
            service.stop()
            with watching(service, "claims", "watch", "-A") as watch:
                watch.until("note: no service answers", "waiting for one", "no claims")
                service.up()
                self._want(service, "found")
                watch.until("found")

    def test_needs_a_log(self, tmp_path: Path) -> None:
        """Where there was never a log there is nothing to wait for: exit 4."""
        ran = call("claims", "watch", "--state-dir", str(tmp_path / "none"))
        assert "there is no log in" in told(ran, 4)


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


class TestPainter:
    def test_repaints_a_terminal_in_its_place(
        self, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a terminal each list takes the place of the one before; equal ones are not drawn."""
        from claimlet.adapters.cli.watching import Painter

        node.prepared("painted", "painted-a")
        claims = node.service.state().claims
        shown: list[list[str]] = []
        terminal = _Terminal(io.BytesIO(), "utf-8", write_through=True)
        monkeypatch.setattr(sys, "stdout", terminal)
        painter = Painter(lambda items: shown.append([c.name for c in items]), is_screen=True)
        for items in (claims, list(claims), claims[:1]):
            painter.paint(items)

        assert len(shown) == 2
        assert terminal.buffer.getvalue().count(b"\x1b[H\x1b[2J") == 2  # type: ignore[attr-defined]
