"""The service takes snapshots beside its work, compares them at start, and says what it finds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from tests.adapters.service.bench import raw_facts
from tests.adapters.service_process import ServiceProcess, eventually, manifest, short_directory

from claimlet.adapters.control.protocol import Hello, PodClaims, PrepareRequest
from claimlet.adapters.service.addresses import server_settings
from claimlet.events.jetstream.connection import Connection
from claimlet.events.jetstream.snapshots import SnapshotStore
from claimlet.events.server import keys
from claimlet.events.server.process import address_of
from claimlet.events.server.status import read_status

pytestmark = pytest.mark.damage


@contextmanager
def service_in(environ: Mapping[str, str]) -> Iterator[ServiceProcess]:
    with short_directory() as directory, ServiceProcess(directory, environ=environ) as service:
        yield service


def prepared(service: ServiceProcess, pod: str) -> None:
    """Have a pod with one claim prepared."""
    documents = manifest(pod, devices={f"{pod}-c": f"gpu.demo/pool/{pod}"})
    request = PrepareRequest(documents=documents, wait_seconds=20.0)
    [answer] = service.ask("prepare", list[PodClaims], request=request)
    assert answer.state == "prepared"


def snapshots(service: ServiceProcess) -> list[dict[str, Any]]:
    """Return the facts that tell of snapshots."""
    facts = raw_facts(service)
    return [fact.record["body"] for fact in facts if fact.word == "snapshot_taken"]


def said(service: ServiceProcess, event: str) -> list[dict[str, Any]]:
    """Return what the service has said of *event* since its start."""
    lines = (json.loads(line) for line in service.said().splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == event]


def harm(service: ServiceProcess, change: Mapping[str, Any]) -> None:
    """Write other values into the newest snapshot, as the writer can."""
    own = server_settings(service.settings)
    status = read_status(own.status_file)
    assert status is not None
    address = address_of(own, port=status.port, user=keys.WRITER)

    async def do() -> None:
        connection = await Connection.open(address, name="test")
        try:
            store = SnapshotStore(connection, service.settings.node)
            taken = await store.newest()
            assert taken is not None
            await store.write(taken.fact.slot, _forged(await store.read(taken), change))
        finally:
            await connection.close()

    ServiceProcess._apart(lambda: asyncio.run(do()))


def _forged(content: bytes, change: Mapping[str, Any]) -> bytes:
    return json.dumps(json.loads(content) | dict(change)).encode()


class TestSnapshots:
    def test_are_taken_every_so_many_facts_and_at_the_end(self) -> None:
        """While it works and when it stops; not again where nothing new was stored."""
        with service_in({"CLAIMLET_LOG__SNAPSHOT_EVERY_FACTS": "10"}) as service:
            service.driver()
            for number in range(3):
                prepared(service, f"p{number}")
            taken = eventually(lambda: snapshots(service), "a snapshot is taken")
            places = [fact["sequence"] for fact in taken]
            assert places == sorted(set(places))
            assert places[0] >= 10
            service.restart()
            words = [fact.word for fact in raw_facts(service)]
            assert words[words.index("stopped") - 1] == "snapshot_taken"
            [replayed] = said(service, "replayed")
            assert replayed["kind"] == "full"
            assert replayed["snapshot"] == snapshots(service)[-1]["sequence"]
            assert not said(service, "snapshot_not_used")
            assert not said(service, "snapshot_mismatch")

    @pytest.mark.field(57)
    def test_one_that_is_broken_costs_a_warning(self) -> None:
        """The log is replayed, one line says why, and a new snapshot is taken at once."""
        with service_in({}) as service:
            service.driver()
            prepared(service, "p")
            service.restart()
            count = len(snapshots(service))
            harm(service, {"sequence": 1})
            service.kill()
            service.up()
            [warning] = said(service, "snapshot_not_used")
            assert "not what was written" in warning["reason"]
            hello = service.ask("hello", Hello)
            assert hello.replay is not None
            assert (hello.replay.kind, hello.replay.problem) == ("full", warning["reason"])
            assert service.claims()["ml/p-c"].state == "prepared"
            eventually(lambda: len(snapshots(service)) > count, "a new one is taken")
            service.restart()
            assert not said(service, "snapshot_not_used")
