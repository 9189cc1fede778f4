"""
The language of `tests/scenarios/*.txt`: facts in, phases and planned steps out.

A block is commands, `----`, and what they lead to.  A command is a claim fact's word, or one of
`registered`, `gone`, `synced`, `starts`, `request`, `ends`, `policy` and `conclude`, with
`key=value` arguments: `claim` and `pod` say whom it is about, by default c1 and p1.  `conclude`
records what is planned until nothing is left to conclude, as the loop does.  The node is started
as writer w1 in boot b1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tests.simulation.rig import allocation, device

from claimlet.engine.node import Node
from claimlet.engine.plan import CallPrepare, CallUnprepare, Record, Step, Wait, plan
from claimlet.engine.state import Policy
from claimlet.events import facts as f
from claimlet.events.record import Draft, Stamp, stamp
from claimlet.events.values import (
    AllocatedDevice,
    Call,
    ClaimRef,
    ClaimUid,
    DriverName,
    PodClaim,
    PodRef,
    PodUid,
)

__all__ = ["Interaction"]


class Interaction:
    """One node that a scenario tells facts to."""

    def __init__(self) -> None:
        self.node = Node("node-a")
        self._start("w1", "b1")

    def _start(self, writer: str, boot: str) -> None:
        self._by = Stamp(node="node-a", boot=boot, writer=writer)
        self._fold(Draft(fact=f.WriterStarted(writer=writer, boot=boot)))

    def block(self, commands: Sequence[str]) -> list[str]:
        """Do *commands* and return what there is after them."""
        lines = [line for command in commands for line in self._do(*command.split())]
        return [*lines, *self._state()]

    def _do(self, word: str, *texts: str) -> list[str]:
        arguments = dict(text.split("=", 1) for text in texts)
        if word == "conclude":
            return self._conclude()
        if word == "policy":
            self.node.policy = msgspec.convert(arguments, Policy, strict=False)
            return []
        if word == "starts":
            self._start(arguments["writer"], arguments.get("boot", self._by.boot))
            return []
        make = _NODE_AND_POD.get(word) or _claim_fact(word)
        self._fold(make({"boot": self._by.boot} | arguments))
        return []

    def _fold(self, draft: Draft) -> None:
        sequence = self.node.sequence + 1
        record = stamp(draft, self._by, sequence=sequence, record_id=f"{sequence}", wall_time_ns=0)
        self.node.fold(record)

    def _conclude(self) -> list[str]:
        lines: list[str] = []
        while records := [step.draft for step in plan(self.node) if isinstance(step, Record)]:
            for draft in records:
                self._fold(draft)
                lines.append(f"recorded {_draft_text(draft)}")
        return lines

    def _state(self) -> list[str]:
        lines = [_claim_text(self.node, uid) for uid in sorted(self.node.claims)]
        steps = [_step_text(self.node, step) for step in plan(self.node)]
        return [*lines, *(f"  -> {text}" for text in steps)] or ["nothing"]


# --- commands ------------------------------------------------------------------------------------

_Arguments = dict[str, str]


def _pod(arguments: _Arguments) -> PodRef:
    name = arguments.get("pod", "p1")
    return PodRef(uid=PodUid(name), namespace="ml", name=name)


def _registered(arguments: _Arguments) -> Draft:
    driver = DriverName(arguments["driver"])
    return Draft(fact=f.DriverRegistered(driver=driver, instance=driver, endpoint="/x.sock"))


def _gone(arguments: _Arguments) -> Draft:
    driver = DriverName(arguments["driver"])
    return Draft(fact=f.DriverGone(driver=driver, instance=driver))


def _request(arguments: _Arguments) -> Draft:
    names = arguments.get("claims", "c1").split(",")
    claims = tuple(PodClaim(name=name, claim_uid=ClaimUid(name)) for name in names)
    source = arguments.get("source", "control")
    return Draft(fact=f.PrepareRequested(source=source, claims=claims), pod=_pod(arguments))


_NODE_AND_POD: dict[str, Callable[[_Arguments], Draft]] = {
    "registered": _registered,
    "gone": _gone,
    "synced": lambda a: Draft(fact=f.SourceSynced(source=a.get("source", "control"))),
    "request": _request,
    "ends": lambda a: Draft(fact=f.UnprepareRequested(reason="deleted"), pod=_pod(a)),
}


def _claim_fact(word: str) -> Callable[[_Arguments], Draft]:
    kind = f.CLAIM_FACTS[word]

    def make(arguments: _Arguments) -> Draft:
        name = arguments.get("claim", "c1")
        ref = ClaimRef(uid=ClaimUid(name), namespace="ml", name=name)
        fields = _fields(word, arguments)
        known = {key: value for key, value in fields.items() if key in kind.__struct_fields__}
        return Draft(fact=msgspec.convert(known, kind), claim=ref)

    return make


def _fields(word: str, arguments: _Arguments) -> dict[str, Any]:
    """Return the arguments as a fact's fields, with what every scenario leaves out."""
    pod = _pod(arguments)
    drivers = {n: [d for d in arguments.get(n, "").split(",") if d] for n in ("calls", "debts")}
    fields: dict[str, Any] = {
        "reason": "unused" if word == "prepare_skipped" else "deleted",
        "operation": "op",
        "outcome": "refused",
        "why": "request" if word == "prepare_started" else "boot",
        "who": "ops",
        "how": "deleted",
    }
    fields |= arguments | {
        "pod": pod,
        "pod_uid": pod.uid,
        "consumers": (pod,) if "pod" in arguments else (),
        "calls": tuple(Call(driver=DriverName(driver)) for driver in drivers["calls"]),
        "debts": drivers["debts"],
        "final": arguments.get("final") != "no",
    }
    if texts := fields.pop("devices", ""):
        fields["allocation"] = allocation(*map(_device, texts.split(",")))
    return fields


def _device(text: str) -> AllocatedDevice:
    """Return a device from `driver/device`, `driver/device:admin` or `driver/device:@share`."""
    name, _, flag = text.partition(":")
    share_id = flag.removeprefix("@") if flag.startswith("@") else None
    return device(name, admin_access=flag == "admin", share_id=share_id)


# --- answers -------------------------------------------------------------------------------------


def _claim_text(node: Node, uid: ClaimUid) -> str:
    claim = node.claims[uid]
    parts = [f"{uid} {claim.phase.value}"]
    if claim.consumers:
        pods = (f"{c.pod.uid}{' (skips)' if c.skipped else ''}" for c in claim.consumers)
        parts.append(f"for {', '.join(pods)}")
    if claim.debts:
        owing = (f"{d.driver}{' (not final)' if d.provisional else ''}" for d in claim.debts)
        parts.append(f"owed by {', '.join(owing)}")
    if void := [answer.driver for answer in claim.answers if answer.void]:
        parts.append(f"void {', '.join(void)}")
    if claim.lost:
        parts.append(claim.lost)
    if claim.suspect:
        parts.append(f"suspect: {claim.suspect}")
    return ", ".join(parts)


def _step_text(node: Node, step: Step) -> str:
    match step:
        case Record(draft=draft):
            return f"Record {_draft_text(draft)}"
        case CallPrepare() | CallUnprepare():
            return f"{type(step).__name__} {step.driver} {', '.join(step.claims)}"
        case Wait(seconds=seconds, then=draft):
            return f"Wait {seconds:g} s, {_draft_text(draft)}"


def _draft_text(draft: Draft) -> str:
    about = draft.claim.name if draft.claim else draft.pod.name if draft.pod else ""
    more = [
        str(value)
        for name in ("pod_uid", "reason", "why", "driver", "kind", "other_claim_uid")
        if (value := getattr(draft.fact, name, None))
    ]
    if calls := getattr(draft.fact, "calls", ()):
        more.append("+".join(call.driver for call in calls))
    return " ".join([draft.fact.word, about, *more])
