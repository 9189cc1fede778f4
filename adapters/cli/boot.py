"""``claimlet boot``: the current boot, and what a reboot would do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from .options import Invocation, group, output_option, pass_invocation
from .output import Output
from .service import read_state
from .text import counted

if TYPE_CHECKING:
    from ...engine.views import ClaimView
    from ..control.protocol import StateReply

__all__ = ["command"]


@group("boot")
def command() -> None:
    """Show the current boot, and what a reboot would do."""


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a reboot now would do."""

    kind: str = "BootPlan"
    node: str
    #: driver → claims that it is asked again for.
    reprepare: dict[str, int]
    claims: list[str]
    pods: list[str]
    unpreparing: list[str]
    cdi_device_ids: int


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    """The boot that the node is in."""

    kind: str = "BootStatus"
    node: str
    boot: str
    since: str
    recorded_boot: str
    reprepare_on: str
    waiting: list[str]


@command.command("status")
@output_option("table", "json", "yaml")
@pass_invocation
def status(invocation: Invocation, output: Output) -> None:
    """Show the boot, and which claims have not been prepared again since."""
    from ..service.boot import read_boot_id

    state = read_state(invocation)
    boot = read_boot_id(invocation.settings.boot_id_file)
    waiting = [c for c in state.claims if c.state == "needs-reprepare-after-boot"]
    if boot != state.boot.boot:
        # The log has not heard of this boot yet: everything that was prepared waits.
        waiting += [c for c in state.claims if c.state == "prepared" and not _is_unpreparing(c)]
    view = _Status(
        node=state.node,
        boot=boot,
        since=state.boot.since,
        recorded_boot=state.boot.boot,
        reprepare_on=state.boot.reprepare_on,
        waiting=[_label(claim) for claim in waiting],
    )
    output.one(view, lambda: _status_text(view, state))


@command.command("plan")
@output_option("table", "json", "yaml")
@pass_invocation
def plan(invocation: Invocation, output: Output) -> None:
    """Say what a reboot now would do."""
    state = read_state(invocation)
    again = [c for c in state.claims if _is_prepared_again(c)]
    drivers = Counter(d.name for c in again for d in c.drivers if d.devices or d.state != "pending")
    view = _Plan(
        node=state.node,
        reprepare=dict(sorted(drivers.items())),
        claims=[_label(claim) for claim in again],
        pods=sorted({f"{p.namespace}/{p.name}" for c in again for p in c.pods}),
        unpreparing=[_label(c) for c in state.claims if _is_unpreparing(c)],
        cdi_device_ids=sum(
            len(device.cdi_device_ids) for c in again for d in c.drivers for device in d.devices
        ),
    )
    output.one(view, lambda: _plan_text(view))


def _is_unpreparing(claim: ClaimView) -> bool:
    return claim.phase.endswith("_unpreparing")


def _is_prepared_again(claim: ClaimView) -> bool:
    """Return whether a reboot voids something of the claim and a pod still uses it."""
    if _is_unpreparing(claim) or claim.lost or claim.suspect:
        return False
    used = len(claim.pods) > len(claim.skipped_pods)
    voided = any(driver.state == "prepared" for driver in claim.drivers)
    return used and (voided or claim.state in ("prepared", "needs-reprepare-after-boot"))


def _label(claim: ClaimView) -> str:
    return f"{claim.namespace}/{claim.name}"


def _status_text(view: _Status, state: StateReply) -> str:
    lines = [
        f"node       {view.node}",
        f"boot       {view.boot}" + (f" since {view.since}" if view.since else ""),
        f"reprepare  on {view.reprepare_on}",
    ]
    if view.boot != view.recorded_boot:
        lines.append(f"           the log still says {view.recorded_boot or 'nothing'}")
    lines.append(f"waiting    {len(view.waiting)} of {counted(len(state.claims), 'claim')}")
    lines += [f"           {label}" for label in view.waiting]
    return "\n".join(lines)


def _plan_text(view: _Plan) -> str:
    drivers = ", ".join(f"{name} {count}" for name, count in view.reprepare.items()) or "no driver"
    claims, pods = counted(len(view.claims), "claim"), counted(len(view.pods), "pod")
    lines = [
        f"A reboot of {view.node} now would:",
        f"  re-prepare   {claims} for {pods}   ({drivers})",
    ]
    lines += [f"               {label}" for label in view.claims]
    if view.unpreparing:
        lines.append(f"  go on        unpreparing {counted(len(view.unpreparing), 'claim')}")
    lines.append(
        f"  CDI          {counted(view.cdi_device_ids, 'device id')} must be there again"
        " when containers start"
    )
    lines.append("Each pod must be asked for again, once its sandbox is made anew.")
    return "\n".join(lines)
