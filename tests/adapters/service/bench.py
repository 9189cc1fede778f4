"""
One service and its drivers as processes, asked by a command's own code, and what they all did.

Cases share the processes: each has claims of names that nobody else has, and is judged by the
drivers' ledgers and by the log's facts with the times at which the log's server stored them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
import nats
from tests.adapters.service_process import (
    DriverProcess,
    ServiceProcess,
    eventually,
    manifest,
    short_directory,
)

from claimlet.adapters.cli.options import Invocation
from claimlet.adapters.cli.pod import _prepare, _unprepare
from claimlet.adapters.cli.service import ordered
from claimlet.adapters.control.protocol import PodClaims, TeardownRequest
from claimlet.adapters.service.addresses import server_settings
from claimlet.events.server import keys
from claimlet.events.server.process import address_of
from claimlet.events.server.status import read_status

__all__ = ["SETTINGS", "Bench", "Case", "Fact", "bench_in", "invocation", "raw_facts"]

#: Short delays, so that what is tried again is tried soon.
SETTINGS = {
    "CLAIMLET_PREPARE__RETRY_FIRST_SECONDS": "0.05",
    "CLAIMLET_PREPARE__RETRY_MAX_SECONDS": "0.4",
    "CLAIMLET_PREPARE__CALL_TIMEOUT_SECONDS": "1",
}
_PATIENCE_SECONDS = 30.0

#: Facts after which no call of the kind may arrive any more, until the next intent.
_INTENTS = {"prepare": "prepare_started", "unprepare": "unprepare_started"}
_ENDS = {"prepare": {"prepared", "reprepare_needed"}, "unprepare": {"unprepared"}}


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A record as the log's server has it."""

    sequence: int
    stored: float
    subject: str
    word: str
    record: dict[str, Any]
    #: The record as it is stored.
    data: bytes


def _seconds(time: str) -> float:
    """Return an RFC 3339 time with any number of decimals as Unix time."""
    whole, _, rest = time.rstrip("Z").removesuffix("+00:00").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")


def invocation(service: ServiceProcess) -> Invocation:
    """Return how a command is told where *service* is."""
    return service._invocation()


def raw_facts(service: ServiceProcess, *, after: int = 0) -> list[Fact]:
    """Return all facts stored after sequence *after*, private ones too, as the admin reads them."""
    own = server_settings(service.settings)
    status = read_status(own.status_file)
    assert status is not None
    address = address_of(own, port=status.port, user=keys.ADMIN)

    async def read() -> list[Fact]:
        connection = await nats.connect(
            address.url,
            nkeys_seed=str(address.seed_file),
            inbox_prefix=address.inbox_prefix.encode(),
        )
        try:
            facts: list[Fact] = []
            info = json.loads((await connection.request("$JS.API.STREAM.INFO.EVENTS", b"")).data)
            for sequence in range(after + 1, info["state"]["last_seq"] + 1):
                asked = json.dumps({"seq": sequence}).encode()
                reply = await connection.request("$JS.API.STREAM.MSG.GET.EVENTS", asked)
                message = json.loads(reply.data)["message"]
                data = base64.b64decode(message["data"])
                record = json.loads(data)
                facts.append(
                    Fact(
                        sequence=sequence,
                        stored=_seconds(message["time"]),
                        subject=message["subject"],
                        word=record["t"],
                        record=record,
                        data=data,
                    )
                )
            return facts
        finally:
            await connection.close()

    return ServiceProcess._apart(lambda: asyncio.run(read()))


class Case:
    """A pod with claims of its own, each with a device of every driver."""

    def __init__(self, bench: Bench, name: str, *, claims: int, drivers: Sequence[str]) -> None:
        self.bench = bench
        self.name = name
        self.drivers = list(drivers)
        self.claims = [f"{name}-c{n}" for n in range(claims)]
        self.after = bench.last_sequence()
        #: What the drivers answer: what was allocated.
        self.devices = {
            c: [{"pool": "pool", "device": c, "requests": ["devices"]}] for c in self.claims
        }
        for driver in self.drivers:
            bench.drivers[driver].script(devices=self.devices)
        self.documents = manifest(
            name,
            devices={c: ",".join(f"{d}/pool/{c}" for d in self.drivers) for c in self.claims},
        )

    @property
    def driver(self) -> DriverProcess:
        """Return the driver that faults happen to."""
        return self.bench.drivers[self.drivers[0]]

    # --- orders, as `claimlet pod … --wait` gives them --------------------------------------------

    def prepare(self, *, patience_seconds: float = _PATIENCE_SECONDS) -> Future[list[PodClaims]]:
        """Ask for the pod as `claimlet pod prepare --wait` does; it goes on beside."""
        return self.bench.order(
            partial(_prepare, documents=self.documents, patience_seconds=patience_seconds)
        )

    def unprepare(self, *, patience_seconds: float = _PATIENCE_SECONDS) -> Future[PodClaims]:
        """Say that the pod is gone as `claimlet pod unprepare --wait` does; it goes on beside."""
        request = TeardownRequest(namespace="ml", name=self.name)
        return self.bench.order(
            partial(_unprepare, request=request, patience_seconds=patience_seconds)
        )

    def prepared(self) -> None:
        """Prepare the pod and see that all of it is."""
        self.check_prepared(self.prepare().result(_PATIENCE_SECONDS))

    def unprepared(self) -> None:
        """Unprepare the pod and see that nothing of it is left."""
        self.check_unprepared(self.unprepare().result(_PATIENCE_SECONDS))

    def check_prepared(self, pods: list[PodClaims]) -> None:
        """Check that every claim is prepared by every driver."""
        (pod,) = pods
        assert pod.state == "prepared", pod
        assert sorted(c.name for c in pod.claims) == sorted(self.claims)
        for claim in pod.claims:
            assert claim.state == "prepared"
            assert {d.name: d.state for d in claim.drivers} == dict.fromkeys(
                self.drivers, "prepared"
            )
            assert all(d.devices for d in claim.drivers)
            assert not claim.owed

    def check_unprepared(self, pod: PodClaims) -> None:
        """Check that the pod is closed."""
        assert pod.state == "closed", pod
        assert {c.state for c in pod.claims} <= {"unprepared"}

    # --- what a driver is to do wrong -------------------------------------------------------------

    def fault(self, method: str, **step: Any) -> None:
        """Let a step happen to calls about the case's first claim."""
        step = {"times": 1, "claim": self.claims[0], "id": f"{self.name}-{method}"} | step
        self.driver.script(steps=[{"method": method} | step], devices=self.devices)

    def until_called(self, method: str) -> None:
        """Wait until the driver has the call."""
        eventually(lambda: self.driver.calls(method, self.claims[0]), f"{method} called")

    def until_owed(self, code: str) -> None:
        """Wait until the service says of each claim that its driver owes something, and why."""

        def is_owed() -> bool:
            views = [c for c in self.bench.service.state().claims if c.name in self.claims]
            return all(v.owed and v.last_error and v.last_error.code == code for v in views)

        self.bench.service.until(is_owed, f"owed: {code}")

    # --- what came of it --------------------------------------------------------------------------

    def failures(self) -> list[dict[str, Any]]:
        """Return what the log says about calls for the first claim that went wrong."""
        return [
            fact.record["body"]
            for fact in raw_facts(self.bench.service, after=self.after)
            if fact.word == "driver_failed" and fact.record["claim"]["name"] == self.claims[0]
        ]

    def check(self) -> None:
        """Check that nothing is lost or leaked, and that no call came before its intent."""
        facts = raw_facts(self.bench.service, after=self.after)
        views = {c.name: c for c in self.bench.service.state().claims}
        for name in self.claims:
            own = [f for f in facts if (f.record.get("claim") or {}).get("name") == name]
            assert own, f"{name} is lost"
            uids = {fact.record["claim"]["uid"] for fact in own}
            assert len(uids) == 1, f"{name} has several UIDs"
            (uid,) = uids
            assert own[-1].word == "unprepared"
            assert views[name].state == "unprepared"
            assert not views[name].owed
            for driver in self.drivers:
                self._check_calls(own, name, driver)
                assert not self.bench.held(driver, uid), f"{driver} still has {name}"

    def _check_calls(self, facts: Sequence[Fact], claim: str, driver: str) -> None:
        """Check each call against what the log's server had stored when it arrived (rule 1)."""
        for method, intent in _INTENTS.items():
            calls = self.bench.drivers[driver].calls(method, claim)
            assert calls, f"{driver} was never asked to {method} {claim}"
            for call in calls:
                arrived = _seconds(call["time"])
                known = [f for f in facts if f.stored < arrived]
                intents = [
                    f.sequence
                    for f in known
                    if f.word == intent
                    and driver in {c["driver"] for c in f.record["body"]["calls"]}
                ]
                ends = [f.sequence for f in known if f.word in _ENDS[method]]
                assert intents, f"{driver} was asked to {method} {claim} without an intent"
                assert intents[-1] > max(ends, default=0), f"{method} {claim} after its end"


class Bench:
    """The processes, and names for cases."""

    def __init__(self, service: ServiceProcess, drivers: Sequence[str]) -> None:
        self.service = service
        self.drivers = {name: service.driver(name) for name in drivers}
        self._pool = ThreadPoolExecutor(max_workers=8)
        self._cases = 0

    def close(self) -> None:
        """Wait for orders that are still out."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def case(self, *, claims: int = 1, drivers: int = 1) -> Case:
        """Return a new case, on the first *drivers*; faults happen to one of them at a time."""
        self._cases += 1
        names = list(self.drivers)[:drivers]
        return Case(self, f"case-{self._cases}", claims=claims, drivers=names)

    def order(self, work: Any) -> Future[Any]:
        """Do *work* with the service's client, beside the caller."""
        return self._pool.submit(ordered, invocation(self.service), work)

    def last_sequence(self) -> int:
        """Return the sequence up to which the service has folded."""
        return self.service.state().sequence

    def held(self, driver: str, claim_uid: str) -> bool:
        """Return whether the driver still has the claim in its checkpoint."""
        claims = self.service.root / "plugins" / driver / "claims"
        return (claims / f"{claim_uid}.json").exists()

    # --- faults -----------------------------------------------------------------------------------

    def restart_driver(self, name: str) -> None:
        """Kill a driver and start it again."""
        self.drivers[name].kill()
        self.drivers[name].up()

    def kill_driver(self, name: str) -> None:
        """Kill a driver and wait until the service has seen that."""
        self.drivers[name].kill()
        self.service.until(
            lambda: name not in {d.driver for d in self.service.state().drivers if d.instance},
            f"{name} is gone",
        )

    def server_pid(self) -> int:
        """Return the process id of the log's server."""
        status = read_status(self.service.state_dir / "server.json")
        assert status is not None
        return status.pid

    def kill_server(self) -> None:
        """Kill the log's server."""
        os.kill(self.server_pid(), signal.SIGKILL)


@contextmanager
def bench_in(
    *,
    drivers: Sequence[str] = ("a.example.com", "b.example.com"),
    settings: Mapping[str, str] | None = None,
) -> Iterator[Bench]:
    """Give a running service with *drivers*; *settings* are for its environment."""
    with short_directory() as directory:
        service = ServiceProcess(directory, environ=SETTINGS | dict(settings or {}))
        with service:
            bench = Bench(service, drivers)
            try:
                yield bench
            finally:
                bench.close()
