"""
What a pod's life costs: ``python -m tests.benchmarks.node [--quick]``.

One claim is prepared and unprepared through a driver that answers at once, over real sockets and
real servers, in turn with the bare floor of `floor.py`, so that both meet the same machine.  The
last line is one JSON object with `ratios`:

* ``pod_over_floor_p50``: a pod's life against the floor (goal: 1.5 or less),
* ``pod_1000_over_pod_0_p50``: beside 1,000 other live claims against none (goal: 1.1),
* ``burst_over_ideal``: 110 pods at once through a driver that serialises 10 ms calls, against
  1.1 s and one pod's floor (goal: 1.3).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from claimlet.adapters.control.client import ControlClient, connect_control
from claimlet.adapters.control.protocol import (
    Hello,
    PodClaims,
    PrepareRequest,
    StateReply,
    TeardownRequest,
)
from claimlet.adapters.service.reading import control_address, records_of_log
from claimlet.events.errors import ClaimletError
from claimlet.events.record import Record

from .floor import Floor, Group, group_of
from .processes import NODE, Processes, settings_for, wait_until

_DRIVER = "gpu.bench"
_SLOW = "slow.bench"
_SLOW_SECONDS = 0.010
_BURST_PODS = 110
#: The last fact of each of the four groups of a pod's life.
_GROUP_ENDS = ("prepare_started", "prepared", "unprepare_started", "pod_closed")


def manifest(pod: str, *claims: tuple[str, str]) -> list[dict[str, Any]]:
    """Return a pod that uses *claims*, each a name and a `driver/pool/device`."""
    documents: list[dict[str, Any]] = [
        {
            "kind": "Pod",
            "metadata": {"name": pod, "namespace": "bench"},
            "spec": {
                "containers": [
                    {"name": "main", "resources": {"claims": [{"name": n} for n, _ in claims]}}
                ],
                "resourceClaims": [{"name": n, "resourceClaimName": n} for n, _ in claims],
            },
        }
    ]
    documents += [
        {
            "kind": "ResourceClaim",
            "metadata": {
                "name": name,
                "namespace": "bench",
                "annotations": {"claimlet.dev/devices": device},
            },
        }
        for name, device in claims
    ]
    return documents


class Node:
    """A running service with its client."""

    def __init__(self, directory: Path, client: ControlClient) -> None:
        self.directory = directory
        self._client = client

    async def prepare(self, documents: list[dict[str, Any]], *, seconds: float = 30.0) -> None:
        """Ask for a pod and wait until it is prepared."""
        request = PrepareRequest(documents=documents, wait_seconds=seconds)
        (pod,) = await self._client.ask("prepare", request, list[PodClaims], hold_seconds=seconds)
        assert pod.state == "prepared", pod.reasons

    async def unprepare(self, pod: str, *, seconds: float = 30.0) -> None:
        """Say that a pod is gone and wait until it is closed."""
        request = TeardownRequest(namespace="bench", name=pod, wait_seconds=seconds)
        reply = await self._client.ask("unprepare", request, PodClaims, hold_seconds=seconds)
        assert reply.state == "closed", reply.state

    async def life(self, number: int) -> float:
        """Return the seconds that one pod's life takes."""
        documents = manifest(f"pod-{number}", (f"claim-{number}", f"{_DRIVER}/{NODE}/gpu-0"))
        begin = time.perf_counter()
        await self.prepare(documents)
        await self.unprepare(f"pod-{number}")
        return time.perf_counter() - begin

    async def ready(self, drivers: int) -> None:
        """Wait until the service answers and its drivers have registered."""
        for _ in range(400):
            try:
                await self._client.ask("hello", None, Hello)
                state = await self._client.ask("state", None, StateReply)
            except ClaimletError:
                await asyncio.sleep(0.05)
                continue
            if len({driver.driver for driver in state.drivers if driver.instance}) >= drivers:
                return
            await asyncio.sleep(0.05)
        raise TimeoutError(f"the service in {self.directory} is not ready")


async def groups_of_a_life(directory: Path) -> list[Group]:
    """Return the facts of the last pod's life, in the groups that they were appended in."""
    records = await records_of_log(settings_for(directory))
    ends = [i for i, record in enumerate(records) if record.word == "pod_closed"]
    life: list[Record] = records[ends[-2] + 1 : ends[-1] + 1]
    groups: list[list[Record]] = [[]]
    for record in life:
        groups[-1].append(record)
        if record.word in _GROUP_ENDS:
            groups.append([])
    assert len(groups) == len(_GROUP_ENDS) + 1, [record.word for record in life]
    return [group_of(group) for group in groups[:-1]]


async def resident(node: Node, count: int) -> None:
    """Prepare *count* claims that stay."""
    for start in range(0, count, 20):
        claims = [(f"live-{n}", f"{_DRIVER}/{NODE}/live-{n}") for n in range(start, start + 20)]
        await node.prepare(manifest(f"live-{start}", *claims))


async def burst(node: Node, round_number: int) -> float:
    """Return the seconds until 110 pods that come at once are all prepared."""
    pods = [
        manifest(f"burst-{n}", (f"burst-{n}", f"{_SLOW}/{NODE}/slow-{n}"))
        for n in range(_BURST_PODS)
    ]
    begin = time.perf_counter()
    await asyncio.gather(*(node.prepare(pod) for pod in pods))
    seconds = time.perf_counter() - begin
    await asyncio.gather(*(node.unprepare(f"burst-{n}") for n in range(_BURST_PODS)))
    print(f"burst {round_number}: {seconds:.3f} s", flush=True)
    return seconds


async def measure(directory: Path, processes: Processes, *, lives: int, bursts: int) -> None:
    """Run everything and print the figures."""
    empty, full = directory / "empty", directory / "full"
    for place in (empty, full):
        place.mkdir(parents=True)
        processes.service(place)
        processes.driver(place, _DRIVER)
    script = directory / "slow.json"
    script.write_text(json.dumps({"serialize_seconds": _SLOW_SECONDS}))
    processes.driver(empty, _SLOW, script=script)
    for place in (empty, full):
        await wait_until(settings_for(place))
    addresses = [await control_address(settings_for(place)) for place in (empty, full)]
    async with (
        connect_control(addresses[0], node=NODE) as empty_client,
        connect_control(addresses[1], node=NODE) as full_client,
    ):
        nodes = Node(empty, empty_client), Node(full, full_client)
        await nodes[0].ready(2)
        await nodes[1].ready(1)
        await resident(nodes[1], 1000)
        for number in range(10):
            await nodes[0].life(number)
            await nodes[1].life(number)
        groups = await groups_of_a_life(empty)
        settings = settings_for(directory / "floor")
        endpoint = empty / "root" / "plugins" / _DRIVER / "dra.sock"
        async with Floor(settings, endpoint, processes=processes) as floor:
            await floor.ready()
            await report(nodes, floor, groups=groups, lives=lives, bursts=bursts)


async def report(
    nodes: tuple[Node, Node], floor: Floor, *, groups: list[Group], lives: int, bursts: int
) -> None:
    """Measure in turn and print the figures, the ratios last."""
    request = json.dumps(manifest("pod-1", ("claim-1", f"{_DRIVER}/{NODE}/gpu-0"))).encode()
    with_none, with_1000, bare = [], [], []
    for number in range(100, 100 + lives):
        bare.append(await floor.life(groups, request))
        with_none.append(await nodes[0].life(number))
        with_1000.append(await nodes[1].life(number))
    floor_p50 = statistics.median(bare)
    for name, values in (("floor", bare), ("pod, 0 claims", with_none), ("pod, 1000", with_1000)):
        p99 = statistics.quantiles(values, n=100)[98]
        print(f"{name:<15} p50 {statistics.median(values) * 1e3:7.2f} ms   p99 {p99 * 1e3:7.2f} ms")
    facts = [record for group in groups for record in group]
    print(f"facts per pod life: {len(facts)} in {len(groups)} groups")
    print(f"bytes per pod life: {sum(len(data) for _, data in facts)}", flush=True)
    ideal = _BURST_PODS * _SLOW_SECONDS + floor_p50
    seconds = [await burst(nodes[0], number) for number in range(bursts)]
    ratios = {
        "pod_over_floor_p50": statistics.median(with_none) / floor_p50,
        "pod_1000_over_pod_0_p50": statistics.median(with_1000) / statistics.median(with_none),
        "burst_over_ideal": statistics.median(seconds) / ideal,
    }
    print(json.dumps({"ratios": {name: round(value, 3) for name, value in ratios.items()}}))


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description="Measure what a pod's life costs.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, within 50 s")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="claimlet-bench-"))
    processes = Processes()
    lives, bursts = (150, 2) if arguments.quick else (1000, 7)
    try:
        asyncio.run(measure(directory, processes, lives=lives, bursts=bursts))
    finally:
        processes.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
