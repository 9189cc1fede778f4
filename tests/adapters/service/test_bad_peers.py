"""Drivers, clients and servers that misbehave beside a running service: nothing else suffers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.cli.node import Node
from tests.adapters.cli.test_pod import told
from tests.adapters.service.bench import raw_facts
from tests.adapters.service_process import (
    ServiceProcess,
    eventually,
    manifest,
    short_directory,
)
from tests.events.helpers import PLAIN_TEMPLATE, settings_in

from claimlet.events.address import ServerAddress
from claimlet.events.errors import LogUnavailableError
from claimlet.events.jetstream.connection import Connection, Events
from claimlet.events.server.keys import inbox_prefix, seed_file
from claimlet.events.server.process import EmbeddedServer
from claimlet.events.server.status import read_status

_SETTINGS = {
    "CLAIMLET_PREPARE__CALL_TIMEOUT_SECONDS": "2",
    "CLAIMLET_PREPARE__RETRY_MAX_SECONDS": "0.4",
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    """Give a running service with a driver, for tests that leave it as it was."""
    with (
        short_directory() as directory,
        ServiceProcess(directory, environ=_SETTINGS) as service,
    ):
        yield Node(service, service.driver(Node.driver_name))


@pytest.fixture
def node(shared: Node) -> Iterator[Node]:
    """Give the shared node; its driver does what it should again after the test."""
    yield shared
    shared.script()


@pytest.fixture
def fresh() -> Iterator[Node]:
    """Give a node of the test's own."""
    with (
        short_directory() as directory,
        ServiceProcess(directory, environ=_SETTINGS) as service,
    ):
        yield Node(service, service.driver(Node.driver_name))


#: What a driver does, and the code of the failure that it makes.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"answer": "huge"}, "too_large"),
    ({"answer": "huge", "size_bytes": 6 * 1024 * 1024}, "RESOURCE_EXHAUSTED"),
    ({"answer": "many_devices"}, "too_large"),
    ({"answer": "many_cdi", "count": 33}, "too_large"),
    ({"answer": "bad_cdi"}, "cdi_id"),
    ({"answer": "garbage"}, ""),
    ({"answer": "missing"}, ""),
    ({"status": "INTERNAL", "text": "x" * 100_000}, "INTERNAL"),
]


class TestAnswers:
    @pytest.mark.parametrize(
        "wrong",
        BAD,
        ids=lambda wrong: f"{wrong[0].get('answer', 'status')}-{wrong[1]}",
    )
    def test_that_cannot_be_taken_are_failures(
        self, node: Node, wrong: tuple[dict[str, Any], str]
    ) -> None:
        """The claim's error says what was wrong; a good answer later is taken, nothing is lost."""
        step, code = wrong
        name = f"bad-{BAD.index(wrong)}"
        path = node.manifest(name, [f"{name}-a"])
        node.script({"method": "prepare", "claim": f"{name}-a", **step})
        ran = node.call("pod", "prepare", "-f", str(path), "--wait", "--timeout", "1s")
        error = node.good("claims", "get", f"ml/{name}-a", "-o", "json").json["last_error"]

        assert "still wanted" in ran.err
        assert told(ran, 5)
        assert error["driver"] == node.driver_name
        assert not code or error["code"] == code
        assert len(error["text"]) < 5000
        node.script()
        ran = node.call("pod", "prepare", "-f", str(path), "--wait", "-o", "json")
        assert ran.json["state"] == "prepared"
        node.good("pod", "unprepare", f"ml/{name}", "--wait")


@contextmanager
def mute(path: Path) -> Iterator[None]:
    """Listen on *path*, accept everybody, and never say anything."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(64); print(flush=True)\n"
        "kept = []\n"
        "while True: kept.append(s.accept())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()
            path.unlink(missing_ok=True)


class TestSockets:
    def test_that_accept_and_never_answer_hold_up_nobody(self, node: Node) -> None:
        """Registration sockets of mute processes, of files and of dead ones are passed over."""
        registry = node.service.root / "plugins_registry"
        with ExitStack() as stack:
            for number in range(5):
                stack.enter_context(mute(registry / f"mute-{number}-reg.sock"))
            (registry / "file-reg.sock").write_text("no socket")
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(registry / "dead-reg.sock"))
            node.prepared("beside", "beside-a")
            node.good("pod", "unprepare", "ml/beside", "--wait")
            listed = node.good("drivers", "list", "-o", "json").json["items"]
            for name in ("file-reg.sock", "dead-reg.sock"):
                (registry / name).unlink()

        assert [d["driver"] for d in listed] == [node.driver_name]


def connection_as(service: ServiceProcess, user: str, problems: list[str]) -> Any:
    """Return a coroutine that connects to the service's server as *user*."""
    status = read_status(service.state_dir / "server.json")
    assert status is not None
    address = ServerAddress(
        url=f"nats://127.0.0.1:{status.port}",
        seed_file=seed_file(service.state_dir / "keys", user),
        inbox_prefix=inbox_prefix(user),
    )
    return Connection.open(address, name="test", events=Events(problem=problems.append))


def hostile_objects(**changes: Any) -> bytes:
    """Return a request to prepare a pod whose metadata is changed."""
    documents = manifest("hostile", devices={"hostile-a": "gpu.demo/pool/x"})
    documents[0]["metadata"] |= changes
    return json.dumps({"documents": documents}).encode()


#: verb, request, and a word of the answer.
HOSTILE: list[tuple[str, bytes, str]] = [
    ("prepare", b"", "documents"),
    ("prepare", b"{", "truncated"),
    ("prepare", b"\xff\xfe\x00", "JSON"),
    ("prepare", b"[" * 100_000, "object"),
    ("prepare", b'{"documents": 7}', "documents"),
    ("prepare", b'{"documents": [7]}', "documents"),
    ("prepare", b'{"documents": []}', "no Pod"),
    ("prepare", b'{"documents": [], "wait_seconds": "x"}', "wait_seconds"),
    ("prepare", hostile_objects(uid="a.b"), "uid"),
    ("prepare", hostile_objects(uid="*"), "uid"),
    ("prepare", hostile_objects(uid=">"), "uid"),
    ("prepare", hostile_objects(uid="x" * 65), "uid"),
    ("prepare", hostile_objects(namespace="a.b"), "namespace"),
    ("prepare", hostile_objects(namespace="*"), "namespace"),
    ("prepare", hostile_objects(name="x" * 3_900_000), "name"),
    ("unprepare", b'{"namespace": "*", "name": ">"}', ""),
    ("unprepare", b"{}", "namespace"),
    ("reprepare", b'{"namespace": "ml", "name": "\\u0000"}', "no claim"),
    ("replay", b'{"name": "nobody"}', "not registered"),
    ("waive", b'{"namespace": "ml", "name": "x", "driver": "y"}', "reason"),
    ("settle", b'{"namespace": "ml", "name": "x", "driver": "y", "reason": "z"}', "no waived"),
    ("rotate", b'{"users": ["root"]}', "no user"),
]


class TestRequests:
    @pytest.mark.parametrize(
        "request_", HOSTILE, ids=[f"{v}-{n}" for n, (v, *_) in enumerate(HOSTILE)]
    )
    def test_that_are_no_requests_are_refused(
        self, node: Node, request_: tuple[str, bytes, str]
    ) -> None:
        """Each is answered with one line, and nothing is stored."""
        verb, data, word = request_

        async def ask() -> dict[str, Any]:
            connection = await connection_as(node.service, "operator", [])
            try:
                answer = await connection.request(f"claimlet.node-a.{verb}", data)
            finally:
                await connection.close()
            reply: dict[str, Any] = json.loads(answer.data)
            return reply

        before = node.service.state().sequence
        reply = asyncio.run(ask())

        if reply["fault"] is not None:
            message, hint = reply["fault"]["message"], reply["fault"]["hint"]
            assert hint
        else:
            # A pod that is refused is an answer as well; the command makes it one line and a hint.
            result = reply["result"][0] if verb == "prepare" else reply["result"]
            assert result["state"] in ("refused", "unknown")
            message = "; ".join(result["reasons"])
        assert word.lower() in message.lower()
        assert "internal error" not in message
        assert "\n" not in message
        assert len(json.dumps(reply)) < 5000
        assert node.service.state().sequence == before

    def test_that_are_too_large_do_not_reach_the_service(self, node: Node) -> None:
        """More than the server takes at once is refused at the client, in one line."""
        path = node.service.directory / "large.json"
        documents = manifest("large", devices={"large-a": "gpu.demo/pool/x"})
        documents[0]["metadata"]["annotations"] = {"x": "y" * 9 * 1024 * 1024}
        path.write_text(json.dumps({"kind": "List", "items": documents}))

        told(node.call("pod", "prepare", "-f", str(path)), 2)

    def test_of_a_reader_are_refused(self, node: Node) -> None:
        """It can neither write a fact nor give a command."""
        problems: list[str] = []

        async def attempt() -> None:
            connection = await connection_as(node.service, "reader", problems)
            try:
                for subject in ("dra.node-a.node.stopped", "claimlet.node-a.prepare"):
                    with pytest.raises(LogUnavailableError, match="ermissions"):
                        await connection.request(subject, b"{}", timeout_seconds=1)
            finally:
                await connection.close()

        before = node.service.state().sequence
        asyncio.run(attempt())

        assert len(problems) == 2
        assert node.service.state().sequence == before


class TestSignals:
    def test_a_stop_waits_for_the_call_in_flight(self, fresh: Node) -> None:
        """SIGTERM lets the driver answer, records it, and ends with 0."""
        path = fresh.manifest("p", ["a"])
        fresh.script({"method": "prepare", "delay_seconds": 1.0})
        fresh.good("pod", "prepare", "-f", str(path))
        eventually(lambda: fresh.driver.calls("prepare"), "the call is there")
        code = fresh.service.stop()
        facts = [fact.word for fact in stored(fresh.service)]

        assert code == 0
        assert facts[-1] == "stopped"
        assert "prepared" in facts
        assert len(fresh.driver.calls("prepare")) == 1

    def test_an_interrupt_stops_the_service_as_well(self, fresh: Node) -> None:
        """Ctrl-C on a terminal is asking it to stop."""
        fresh.service.signal(signal.SIGINT)

        assert fresh.service.wait() == 0
        assert stored(fresh.service)[-1].word == "stopped"

    def test_an_interrupted_wait_leaves_the_wish(self, node: Node) -> None:
        """Ctrl-C ends a waiting command with 130; the pod is still wanted."""
        path = node.manifest("interrupted", ["interrupted-a"])
        node.failing("prepare", "interrupted-a", "not now")
        arguments = [*node.service.options, "pod", "prepare", "-f", str(path), "--wait"]
        process = subprocess.Popen(
            [sys.executable, "-m", "claimlet", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            eventually(lambda: "ml/interrupted-a" in node.service.claims(), "the wish is stored")
            node.until_failed("interrupted-a")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        status = node.good("pod", "status", "ml/interrupted", "-o", "json").json["items"][0]
        node.script()
        node.good("pod", "unprepare", "ml/interrupted", "--wait")

        assert process.returncode == 130
        assert out == b""
        assert b"Traceback" not in err
        assert status["state"] == "pending"

    def test_a_frozen_log_server_is_waited_for(self, fresh: Node) -> None:
        """Nobody is told of a success meanwhile; afterwards all goes on by itself."""
        fresh.prepared("p", "a")
        status = read_status(fresh.service.state_dir / "server.json")
        assert status is not None
        path = fresh.manifest("q", ["b"])
        os.kill(status.pid, signal.SIGSTOP)
        try:
            ran = fresh.call("pod", "prepare", "-f", str(path))
        finally:
            os.kill(status.pid, signal.SIGCONT)
        ok = fresh.call("pod", "prepare", "-f", str(path), "--wait", "-o", "json")

        assert told(ran, 4)
        assert ok.json["state"] == "prepared"
        assert fresh.service.claims()["ml/a"].state == "prepared"
        assert len(fresh.driver.calls("prepare", "b")) == 1


def stored(service: ServiceProcess) -> list[Any]:
    """Return the facts of a log whose service has stopped."""
    from claimlet.adapters.service.reading import records_of_log

    return list(asyncio.run(records_of_log(service.settings)))


class TestExistingServer:
    def test_is_used_as_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pod's life on a server that somebody else runs, without keys; it is left running."""

        async def start() -> EmbeddedServer:
            server = EmbeddedServer(settings_in(tmp_path / "theirs", template=PLAIN_TEMPLATE))
            await server.start()
            return server

        with asyncio.Runner() as runner:
            server = runner.run(start())
            try:
                url = f"nats://127.0.0.1:{server.port}"
                monkeypatch.setenv("CLAIMLET_LOG__URL", url)
                with short_directory() as directory:
                    environ = _SETTINGS | {"CLAIMLET_LOG__URL": url}
                    with ServiceProcess(directory, environ=environ) as service:
                        node = Node(service, service.driver(Node.driver_name))
                        node.prepared("p", "a")
                        service.crash()
                        node.good("pod", "unprepare", "ml/p", "--wait")
                        assert service.stop() == 0
                        assert not (service.state_dir / "js").exists()
                        facts = node.good("history", "claim", "ml/a", "-o", "json").json["items"]
            finally:
                runner.run(server.stop())

        assert facts[-1]["fact"] == "unprepared"


class TestSecrets:
    def test_of_drivers_stay_private(self, node: Node) -> None:
        """Opaque parameters are in no public fact, log line or answer; only the driver has them."""
        secret = "hunter2-7f3e"
        documents = manifest("secret", devices={"secret-a": "gpu.demo/pool/secret-a"})
        documents[1]["spec"] = {
            "devices": {
                "requests": [{"name": "devices", "exactly": {"deviceClassName": "gpu"}}],
                "config": [
                    {
                        "requests": ["devices"],
                        "opaque": {"driver": "gpu.demo", "parameters": {"password": secret}},
                    }
                ],
            }
        }
        path = node.service.directory / "secret.json"
        path.write_text(json.dumps({"kind": "List", "items": documents}))
        ran = node.good("pod", "prepare", "-f", str(path), "--wait", "-o", "json")
        shown = [ran.out, node.service.said()]
        shown += [node.good("claims", "describe", "ml/secret-a").out]
        shown += [node.good("history", "node", "-o", "json").out]
        public = [f for f in raw_facts(node.service) if ".private." not in f.subject]
        private = [f for f in raw_facts(node.service) if ".private." in f.subject]
        node.good("pod", "unprepare", "ml/secret", "--wait")

        assert not any(secret in text for text in shown)
        assert not any(secret in json.dumps(fact.record) for fact in public)
        assert sum(secret in json.dumps(fact.record) for fact in private) <= 1
