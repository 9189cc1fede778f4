"""``claimlet unprepare``: give up, by hand and on the record, what a driver owes."""

from __future__ import annotations

import click

from ...engine.errors import UsageError
from .names import Target, target_argument
from .options import Invocation, group, output_option, pass_invocation
from .output import Output
from .service import ask

__all__ = ["command"]


@group("unprepare")
def command() -> None:
    """Waive what a driver owes, by hand."""


@command.command("waive")
@target_argument("claim")
@click.option("--driver", required=True, help="The driver whose debt is given up.")
@click.option("--reason", default="", metavar="TEXT", help="Why; it is recorded.")
@click.option("--settled", is_flag=True, help="Take a waived debt off the node's list.")
@output_option("table", "json", "yaml")
@pass_invocation
def waive(
    invocation: Invocation,
    output: Output,
    *,
    target: Target,
    driver: str,
    reason: str,
    settled: bool,
) -> None:
    """
    Give up what DRIVER owes for a claim, because it will never come back to do it.

    The devices may stay configured.  The debt stays on the node's list until the driver says that
    it has unprepared the claim after all, or until `--settled` says that somebody has cleaned up.
    """
    from ...engine.views import ClaimView
    from ..control.protocol import Count, WaiveRequest

    if not reason.strip() and not settled:
        raise UsageError("a waiver needs a reason", hint="--reason TEXT")
    request = WaiveRequest(
        namespace=target.namespace,
        name=target.name,
        driver=driver,
        reason=reason,
        uid=target.uid,
    )
    if settled:
        count = ask(invocation, "settle", Count, request=request)
        output.one(count, lambda: f"the debt of {driver} for {target} is settled")
    else:
        view = ask(invocation, "waive", ClaimView, request=request)
        output.one(view, lambda: f"the debt of {driver} for {target} is waived")
