"""``claimlet claims``: list, describe and watch claims, or have them prepared again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ...engine.errors import AmbiguousError, NotFoundError, UsageError
from .names import Target, target_argument
from .options import (
    Invocation,
    group,
    namespace_options,
    output_option,
    pass_invocation,
    watch_option,
)
from .output import Column, Output, draw_table
from .service import ask, read_state
from .text import printable
from .times import age_since

if TYPE_CHECKING:
    from ...engine.views import ClaimView

__all__ = ["STATES", "columns", "command"]

#: The states that people see (engine/README.md).
STATES = ("generated", "bound", "prepared", "needs-reprepare-after-boot", "unprepared")


@group("claims")
def command() -> None:
    """List, describe and watch claims, or have them prepared again."""


@command.command("list")
@namespace_options
@click.option("--driver", help="Only claims with a device of this driver.")
@click.option("--state", type=click.Choice(STATES), help="Only claims in this state.")
@click.option("--faults", is_flag=True, help="Only claims that something is wrong with.")
@watch_option
@output_option("table", "wide", "json", "jsonl", "yaml", "name")
@pass_invocation
def list_(
    invocation: Invocation,
    output: Output,
    *,
    namespace: str | None,
    driver: str | None,
    state: str | None,
    faults: bool,
    watch: bool,
) -> None:
    """List the claims on this node."""

    def wanted(claim: ClaimView) -> bool:
        return (
            (namespace is None or claim.namespace == namespace)
            and (driver is None or any(d.name == driver for d in claim.drivers))
            and (state is None or state == claim.state)
            and (not faults or _has_fault(claim))
        )

    if watch and output.format in ("json", "yaml"):
        raise UsageError("--watch has no end, and a document has one", hint="-o jsonl")
    if watch:
        _watch(invocation, output, wanted)
    else:
        _write([claim for claim in read_state(invocation).claims if wanted(claim)], output)


@command.command("watch")
@namespace_options
@output_option("table", "wide", "jsonl", "name")
@pass_invocation
def watch_(invocation: Invocation, output: Output, *, namespace: str | None) -> None:
    """Show the claims again whenever one of them changes; as jsonl, those that changed."""
    _watch(invocation, output, lambda claim: namespace is None or claim.namespace == namespace)


def _watch(invocation: Invocation, output: Output, wanted: Callable[[ClaimView], bool]) -> None:
    from .watching import Painter, watch_state

    is_screen = output.format in ("table", "wide")
    painter = Painter(lambda claims: _write(claims, output), is_screen=is_screen)
    watch_state(invocation, lambda state: painter.paint([c for c in state.claims if wanted(c)]))


def _write(claims: Sequence[ClaimView], output: Output) -> None:
    output.items(claims, columns(), kind="ClaimList", name=_label, empty="no claims")


@command.command("get")
@target_argument("claim")
@output_option("table", "wide", "json", "yaml", "name")
@pass_invocation
def get(invocation: Invocation, output: Output, *, target: Target) -> None:
    """Show one claim as a row, or whole as json."""
    claim = _find(invocation, target)
    if output.format in ("table", "wide"):
        click.echo(output.table([claim], columns()), nl=False)
    else:
        output.one(claim, str, name=_label)


@command.command("describe")
@target_argument("claim")
@pass_invocation
def describe(invocation: Invocation, *, target: Target) -> None:
    """Show all about one claim, for people."""
    claim = _find(invocation, target)
    click.echo("\n".join(map(printable, _description(claim))))


@command.command("reprepare")
@target_argument("claim")
@output_option("table", "json", "yaml", "name")
@pass_invocation
def reprepare(invocation: Invocation, output: Output, *, target: Target) -> None:
    """Have the drivers of a claim asked again, as after a boot."""
    from ...engine.views import ClaimView
    from ..control.protocol import ObjectRequest

    request = ObjectRequest(namespace=target.namespace, name=target.name, uid=target.uid)
    claim = ask(invocation, "reprepare", ClaimView, request=request)
    if output.format == "table":
        click.echo(f"the drivers of claim {_label(claim)} are asked again")
    else:
        output.one(claim, str, name=_label)


def _find(invocation: Invocation, target: Target) -> ClaimView:
    """Return the claim that the name means: the open one, else the newest."""
    claims = [
        claim
        for claim in read_state(invocation).claims
        if (claim.namespace, claim.name) == (target.namespace, target.name)
        and target.uid in ("", claim.uid)
    ]
    if not claims:
        uid = f" with UID {target.uid}" if target.uid else ""
        raise NotFoundError(
            f"there is no claim {target}{uid} on this node",
            hint=f"claimlet history claim {target} shows what was",
        )
    still_open = [c for c in claims if c.phase not in ("unprepared", "generated")]
    if len(still_open) > 1:
        rows = ", ".join(f"{claim.uid} ({claim.phase})" for claim in still_open)
        raise AmbiguousError(f"{target} means several claims: {rows}", hint="--uid chooses one")
    return still_open[0] if still_open else max(claims, key=lambda claim: claim.sequence)


def columns() -> tuple[Column[ClaimView], ...]:
    """Return the columns of a table of claims; ages are counted to this moment."""
    now = datetime.now(UTC)
    return (
        Column("NAMESPACE", lambda c: c.namespace),
        Column("CLAIM", lambda c: c.name),
        Column("POD", _pod_cell),
        Column("STATE", lambda c: c.state, status=True),
        Column("DRIVERS", lambda c: ",".join(f"{d.name}:{d.state}" for d in c.drivers)),
        Column("DEVICES", lambda c: ",".join(d.rpartition("/")[2] for d in c.devices)),
        Column("OWED", _owed_cell),
        Column("AGE", lambda c: age_since(c.created, now=now)),
        Column("SINCE", lambda c: age_since(c.since, now=now)),
        Column("UID", lambda c: c.uid, wide=True),
        Column("ERROR", lambda c: c.last_error.text if c.last_error else "", wide=True),
    )


def _pod_cell(claim: ClaimView) -> str:
    if len(claim.pods) > 1:
        return f"{len(claim.pods)} pods"
    return claim.pods[0].name if claim.pods else ""


def _owed_cell(claim: ClaimView) -> str:
    if claim.suspect:
        return "suspect"
    return ",".join(f"{o.operation} {o.driver} ({_tries(o.attempt)})" for o in claim.owed)


def _tries(number: int) -> str:
    return "1 try" if number == 1 else f"{number} tries"


def _has_fault(claim: ClaimView) -> bool:
    return bool(
        claim.last_error
        or claim.suspect
        or claim.lost
        or claim.overlaps
        or any(d.state == "failed" for d in claim.drivers)
    )


def _label(claim: ClaimView) -> str:
    return f"{claim.namespace}/{claim.name}"


def _description(claim: ClaimView) -> list[str]:
    """Return the claim as lines, in the manner of `kubectl describe`."""
    lines = [
        f"Claim:      {_label(claim)}",
        f"UID:        {claim.uid}",
        f"State:      {claim.state} since {claim.since}"
        + (f" ({claim.phase})" if claim.phase != claim.state else ""),
        f"Origin:     {claim.origin}, first seen {claim.created}",
    ]
    for label, value in (("Lost", claim.lost), ("Suspect", claim.suspect)):
        if value:
            lines.append(f"{label + ':':<12}{value}")
    pods = [f"{p.namespace}/{p.name} (uid {p.uid})" for p in claim.pods] or ["<none>"]
    lines += [f"{'Pods:' if n == 0 else '':<12}{pod}" for n, pod in enumerate(pods)]
    lines += _troubles(claim)
    rows = [
        [
            driver.name,
            driver.state,
            ", ".join(f"{d.pool}/{d.device}" for d in driver.devices) or "<none>",
            ", ".join(i for d in driver.devices for i in d.cdi_device_ids) or "<none>",
        ]
        for driver in claim.drivers
    ]
    if rows:
        table = draw_table(rows, headers=["DRIVER", "STATE", "DEVICES", "CDI"])
        lines += ["", *table.splitlines()]
    return lines


def _troubles(claim: ClaimView) -> list[str]:
    """Return the lines about what is wrong or still to be done."""
    lines = [f"Overlap:    {o} is or was held by another claim too" for o in claim.overlaps]
    for owed in claim.owed:
        retry = f", next try {owed.next_retry}" if owed.next_retry else ""
        lines.append(
            f"Owed:       {owed.operation} by {owed.driver} since {owed.since},"
            f" {_tries(owed.attempt)}{retry}: {owed.reason}"
        )
    if claim.last_error:
        error = claim.last_error
        lines.append(f"Last error: {error.time} {error.driver} {error.code}: {error.text}")
    return lines
