"""
The play: each act does something to the node, and ends the demo where it shows something else.

Drivers are asked through the service alone; what they were asked is read from the driver's own
ledger, what a container would find from the CDI directory, what happened from the log.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from ...engine.node import Node
from ...engine.state import Policy
from ...engine.views import ClaimView
from ...events.facts import DriverFailed
from ..control.protocol import PodClaims, PrepareRequest, StateReply, TeardownRequest
from ..control.state import of_node
from ..kubernetes.documents import parse_documents
from .stage import DRIVER, DemoError, Stage, registered
from .timeline import Timeline, read_timeline, trail

__all__ = ["Play"]

_WAIT_SECONDS = 10.0
#: How long a pod runs before it is deleted, so that the timeline shows it.
_RUN_SECONDS = 0.5
_INJECTED = "gpu-2 is busy (injected)"
#: The devices that the driver hands out: those that the manifests' annotations allocate.
_DEVICES = {
    claim: [{"pool": "demo", "device": device, "requests": ["gpu"]}]
    for claim, device in {
        "train-a-left": "gpu-0",
        "train-a-right": "gpu-1",
        "tts-0-gpu": "gpu-2",
    }.items()
}

#: Takes what was done, and what was seen of it.
Tell = Callable[..., None]


class Play:
    """The acts, on *stage*; *tell* hears of each as soon as it is over."""

    def __init__(self, stage: Stage, tell: Tell) -> None:
        self._stage = stage
        self._tell = tell
        self._node = Node(stage.settings.node, Policy())

    async def run(self) -> Timeline:
        """
        Play all acts and return what the log says of the devices.

        Raises:
            DemoError: An act did not show what it should.
            ClaimletError: The service does not answer, or the log cannot be read.
        """
        await self._start()
        await self._prepare()
        await self._refuse()
        await self._force_delete()
        await self._crash()
        was = await self._reboot()
        await self._reprepare(was)
        await self._unprepare()
        return await self._stop()

    # --- the acts --------------------------------------------------------------------------------

    async def _start(self) -> None:
        stage = self._stage
        stage.boot(str(uuid.uuid4()))
        stage.script(devices=_DEVICES)
        stage.start_service()
        stage.start_driver()
        await stage.service_answers()
        await stage.driver_registered()
        self._tell("the service has started", f"with nats-server {await stage.server_version()}")
        self._tell("a driver has registered", f"{DRIVER}, a process of its own, over gRPC")

    async def _prepare(self) -> None:
        pod = await self._want("train-a.yaml")
        calls = self._stage.calls("prepare", "train-a-left")
        _check(
            [sorted(names) for names in calls] == [["train-a-left", "train-a-right"]],
            f"one call should have prepared both claims, not {calls}",
        )
        ids = _cdi_ids(pod.claims)
        _check(set(ids) <= self._stage.cdi_devices(), f"CDI files should have {ids}")
        self._tell(
            "pod ml/train-a needs 2 claims",
            f"{await self._states(pod.claims[0])}, both in one call",
            *map(_short, ids),
        )

    async def _refuse(self) -> None:
        step = {"method": "prepare", "claim": "tts-0-gpu", "times": 1, "fail": _INJECTED}
        self._stage.script(devices=_DEVICES, steps=[step])
        pod = await self._want("tts-0.yaml")
        (claim,) = pod.claims
        failures = [
            record.fact
            for record in await self._stage.records()
            if isinstance(record.fact, DriverFailed)
            and record.claim
            and record.claim.uid == claim.uid
        ]
        _check(
            [failure.text for failure in failures] == [_INJECTED],
            f"the log should hold the driver's refusal once, not {failures}",
        )
        calls = len(self._stage.calls("prepare", "tts-0-gpu"))
        _check(calls == 2, f"the driver should have been asked twice, not {calls} times")
        self._tell(
            "pod web/tts-0 needs 1 claim",
            f"refused: {_INJECTED}",
            f"asked again after {failures[0].retry_delay_seconds:.1f} s: {claim.state}",
        )

    async def _force_delete(self) -> None:
        await asyncio.sleep(_RUN_SECONDS)
        for manifest in self._stage.directory.glob("train-a.yaml"):
            manifest.unlink()
        pod = await self._end("ml", "train-a", reason="force-deleted")
        calls = self._stage.calls("unprepare", "train-a-left")
        _check(len(calls) == 1, f"one call should have unprepared both claims, not {calls}")
        claims = [c for c in (await self._stage.state()).claims if c.namespace == "ml"]
        _check(
            [(c.state, c.debts) for c in claims] == [("unprepared", [])] * 2,
            f"both claims should be unprepared, not {[c.state for c in claims]}",
        )
        left = {cdi_id for cdi_id in self._stage.cdi_devices() if "gpu-2" not in cdi_id}
        _check(not left, f"the CDI devices should be gone, not {left}")
        self._tell("pod ml/train-a is force-deleted", f"{pod.state}: unprepared from the log alone")

    async def _crash(self) -> None:
        stage = self._stage
        before = await stage.state()
        calls = self._calls()
        stage.kill_service()
        replayed = await self._replayed()
        _check_same(before, replayed, "the log replayed while the service is dead")
        stage.start_service()
        await stage.service_answers()
        after = await stage.state()
        _check_same(before, after, "the service started again")
        await stage.driver_registered()
        _check(self._calls() == calls, "no driver should have been called because of a crash")
        self._tell(
            "kill -9 of the service",
            f"{before.sequence} facts replayed, {len(after.claims)} claims, no driver called",
            f"state digest {before.digest[:12]} before, {after.digest[:12]} after: equal",
        )

    async def _reboot(self) -> ClaimView:
        """Reboot the node and return its one claim as it was before."""
        stage = self._stage
        was = _claim(await stage.state(), "tts-0-gpu")
        stage.kill_driver()
        stage.kill_service()
        await stage.end_server()
        stage.boot(str(uuid.uuid4()))
        stage.start_service()
        await stage.service_answers()
        state = await stage.state()
        back = registered(state)
        _check(not back, f"no driver should be back yet, but {back}")
        claim = _claim(state, "tts-0-gpu")
        _check(
            claim.state == "needs-reprepare-after-boot",
            f"the claim should need its driver again, but is {claim.state}",
        )
        ids = _cdi_ids([claim])
        _check(
            bool(ids) and ids == _cdi_ids([was]),
            f"devices should be answered as before, not as {ids}",
        )
        self._tell(
            "reboot: all killed, CDI files wiped",
            f"web/tts-0: {claim.state}",
            f"no driver is back, yet replay answers: {_short(ids[0])}",
        )
        return was

    async def _reprepare(self, was: ClaimView) -> None:
        stage = self._stage
        calls = len(stage.calls("prepare", "tts-0-gpu"))
        stage.start_driver()
        await stage.driver_registered()
        seen = len(stage.calls("prepare", "tts-0-gpu"))
        _check(seen == calls, "a driver should not be called before its pod is asked for again")
        pod = await self._want("tts-0.yaml")
        await self._want("tts-0.yaml")
        seen = len(stage.calls("prepare", "tts-0-gpu")) - calls
        _check(seen == 1, f"the driver should have been called once since the boot, not {seen}")
        ids = _cdi_ids(pod.claims)
        _check(ids == _cdi_ids([was]), f"the answer should be the same as before the boot: {ids}")
        _check(set(ids) <= stage.cdi_devices(), f"CDI files should have {ids} again")
        self._tell(
            "the driver is back, pod asked again",
            f"{await self._states(was)}",
            "prepared once since the boot, with the same answer",
        )

    async def _unprepare(self) -> None:
        await asyncio.sleep(_RUN_SECONDS)
        await self._end("web", "tts-0", reason="deleted")
        state = await self._stage.state()
        owing = [f"{claim.name} {claim.state}" for claim in state.claims if claim.debts]
        _check(not owing and not state.pods, f"nothing should be owed, but {owing or state.pods}")
        left = self._stage.cdi_devices()
        _check(not left, f"no CDI device should be left, but {left}")
        self._tell("pod web/tts-0 is deleted", "unprepared; nothing is owed, nothing is left")

    async def _stop(self) -> Timeline:
        before = await self._stage.state()
        code = await self._stage.stop_service()
        _check(code == 0, f"the service should stop with exit code 0, not {code}")
        records = await self._stage.records()
        timeline = read_timeline(records, self._node)
        _check_same(before, of_node(self._node), "the whole log replayed")
        odd = [record.word for record in records if record.word == "anomaly_found"]
        _check(not odd, "the log should hold no anomaly")
        self._tell(
            "the service has stopped",
            f"all {len(records)} facts replayed: state digest {before.digest[:12]}, equal",
        )
        return timeline

    # --- what they do ----------------------------------------------------------------------------

    async def _want(self, manifest: str) -> PodClaims:
        """Ask for the pod of a manifest and return it prepared."""
        path: Path = self._stage.manifest(manifest)
        request = PrepareRequest(
            documents=parse_documents(path.read_bytes(), origin=str(path)),
            wait_seconds=_WAIT_SECONDS,
        )
        (pod,) = await self._stage.ask("prepare", request, list[PodClaims], seconds=_WAIT_SECONDS)
        states = [claim.state for claim in pod.claims]
        _check(
            pod.state == "prepared" and set(states) == {"prepared"},
            f"pod {pod.pod.name} should be prepared, but is {pod.state}: {'; '.join(pod.reasons)}",
        )
        return pod

    async def _end(self, namespace: str, name: str, *, reason: str) -> PodClaims:
        """Say that a pod is gone and return it closed."""
        request = TeardownRequest(
            namespace=namespace, name=name, reason=reason, wait_seconds=_WAIT_SECONDS
        )
        pod = await self._stage.ask("unprepare", request, PodClaims, seconds=_WAIT_SECONDS)
        _check(pod.state == "closed", f"pod {namespace}/{name} should be closed, not {pod.state}")
        return pod

    async def _states(self, claim: ClaimView) -> str:
        """Return the states that the log has seen the claim in."""
        node = Node(self._stage.settings.node, Policy())
        return " → ".join(trail(await self._stage.records(), node, claim.uid))

    async def _replayed(self) -> StateReply:
        node = Node(self._stage.settings.node, Policy())
        for record in await self._stage.records():
            node.fold(record)
        return of_node(node)

    def _calls(self) -> int:
        """Return how many calls the driver got about the claim that is prepared."""
        return sum(len(self._stage.calls(m, "tts-0-gpu")) for m in ("prepare", "unprepare"))


def _check(is_so: bool, text: str) -> None:  # noqa: FBT001 -- reads as an assertion
    """
    End the demo where it does not show what it should.

    Raises:
        DemoError: It does not; *text* says what should have been.
    """
    if not is_so:
        raise DemoError(text)


def _check_same(before: StateReply, after: StateReply, what: str) -> None:
    _check(
        before.digest == after.digest,
        f"{what} should give the state digest {before.digest}, not {after.digest}",
    )


def _claim(state: StateReply, name: str) -> ClaimView:
    found = [claim for claim in state.claims if claim.name == name]
    _check(len(found) == 1, f"there should be one claim {name}, not {len(found)}")
    return found[0]


def _cdi_ids(claims: Sequence[ClaimView]) -> list[str]:
    return [
        cdi_id
        for claim in claims
        for driver in claim.drivers
        for device in driver.devices
        for cdi_id in device.cdi_device_ids
    ]


def _short(cdi_id: str) -> str:
    """Return the id without most of the UID in it."""
    kind, _, name = cdi_id.partition("=")
    return f"{kind}={name[:8]}…{name[36:]}"
