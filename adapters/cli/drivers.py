"""``claimlet drivers``: list drivers, call them again, ask whether one can stop."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from ...engine.errors import NotFoundError, UsageError
from .errors import AnsweredError
from .names import driver_argument
from .options import Invocation, group, output_option, pass_invocation
from .output import Column, Output
from .service import ask, read_state
from .text import counted
from .times import age_since

if TYPE_CHECKING:
    from ...engine.views import ClaimView
    from ..control.protocol import DriverRow, StateReply

__all__ = ["command"]


@group("drivers")
def command() -> None:
    """List drivers, call them again, ask whether one can stop."""


#: States in which containers may run on the claim's devices.
_HELD_STATES = ("prepared", "needs-reprepare-after-boot")


class _Hold(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps a driver from being stopped."""

    namespace: str
    claim: str
    claim_uid: str
    pods: list[str]
    #: holds, owes, waived
    what: str
    reason: str


@command.command("list")
@output_option("table", "wide", "json", "jsonl", "yaml", "name")
@pass_invocation
def list_(invocation: Invocation, output: Output) -> None:
    """List the drivers that are registered, newest instance last, and those that are missed."""
    state = read_state(invocation)
    now = datetime.now(UTC)
    columns: tuple[Column[DriverRow], ...] = (
        Column("DRIVER", lambda d: d.driver),
        Column("API", lambda d: d.api),
        Column("STATE", lambda d: d.state, status=True),
        Column("CLAIMS", lambda d: len(_holds(state, d.driver))),
        Column("FAILING", lambda d: d.failing_claims),
        Column("UPTIME", lambda d: age_since(d.since, now=now)),
        Column("ENDPOINT", lambda d: d.endpoint),
        Column("INSTANCE", lambda d: d.instance, wide=True),
        Column("WAIVED", lambda d: d.waived_debts, wide=True),
        Column("LAST-ERROR", lambda d: d.last_error, wide=True),
    )
    output.items(
        state.drivers,
        columns,
        kind="DriverList",
        name=lambda d: f"driver/{d.driver}",
        empty="no drivers are registered",
    )


@command.command("replay")
@driver_argument
@output_option("table", "json", "yaml")
@pass_invocation
def replay(invocation: Invocation, output: Output, *, name: str) -> None:
    """
    Have every claim with a debt to the driver prepared again, all drivers of it.

    For a driver that has lost what it knew: it is told again, from the log.
    """
    from ..control.protocol import Count, ObjectRequest

    count = ask(invocation, "replay", Count, request=ObjectRequest(name=name))
    output.one(count, lambda: f"prepared again: {counted(count.count, 'claim')}")


@command.command("can-stop")
@driver_argument
@output_option("table", "json", "jsonl", "yaml")
@pass_invocation
def can_stop(invocation: Invocation, output: Output, *, name: str) -> None:
    """
    Say whether the driver can be stopped or upgraded now: exit 0 only if it is safe.

    Lists who holds or owes what through it, and the debts that were waived while it was away.
    """
    state = read_state(invocation)
    holds = _holds(state, name)
    known = any(driver.driver == name for driver in state.drivers)
    if not holds and not known:
        raise NotFoundError(
            f"driver {name} is not registered and no claim names it", hint="claimlet drivers list"
        )
    columns: tuple[Column[_Hold], ...] = (
        Column("NAMESPACE", lambda h: h.namespace),
        Column("CLAIM", lambda h: h.claim),
        Column("PODS", lambda h: ",".join(h.pods)),
        Column("WHAT", lambda h: h.what),
        Column("REASON", lambda h: h.reason),
    )
    if holds or output.format != "table":
        output.items(holds, columns, kind="HoldList")
    if holds:
        claims = counted(len(holds), "claim")
        click.echo(f"{name} cannot stop: something is held or owed for {claims}", err=True)
        raise AnsweredError
    if output.format == "table":
        click.echo(f"{name} can stop: no claim holds or owes anything through it")


@command.command("kubeconfig")
@driver_argument
@pass_invocation
def kubeconfig(invocation: Invocation, *, name: str) -> None:
    """
    Print the path of a kubeconfig for the driver, for its --kubeconfig.

    It leads to the claims gateway of this node, which shows the driver the claims that name it.
    The file can be made before the service has ever run.
    """
    from ..gateway import Credentials

    settings = invocation.settings
    if not settings.gateway.enabled:
        raise UsageError("the claims gateway is off", hint="set enabled = true in [gateway]")
    credentials = Credentials(settings.state_dir, port=settings.gateway.port)
    click.echo(credentials.kubeconfig_for(name))


def _holds(state: StateReply, driver: str) -> list[_Hold]:
    """Return who holds or owes something through *driver*."""
    found = [
        _Hold(
            namespace=claim.namespace,
            claim=claim.name,
            claim_uid=claim.uid,
            pods=[pod.name for pod in claim.pods],
            what=what,
            reason=reason,
        )
        for claim in state.claims
        for what, reason in _hold(claim, driver)
    ]
    found += [
        _Hold(
            namespace=waiver.namespace,
            claim=waiver.name,
            claim_uid=waiver.claim_uid,
            pods=[],
            what="waived",
            reason=f"by {waiver.who}: {waiver.why}",
        )
        for waiver in state.waivers
        if waiver.driver == driver
    ]
    return found


def _hold(claim: ClaimView, driver: str) -> list[tuple[str, str]]:
    """Return what *claim* has to do with *driver*, and why; nothing if the driver may go."""
    owed = next((owed for owed in claim.owed if owed.driver == driver), None)
    if owed and driver in claim.debts:
        return [("owes", f"{owed.operation}: {owed.reason}")]
    # A driver that is never asked to unprepare owes nothing, yet containers run on its devices.
    is_used = claim.state in _HELD_STATES and any(d.name == driver for d in claim.drivers)
    return [("holds", claim.state)] if is_used or driver in claim.debts else []
