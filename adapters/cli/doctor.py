"""``claimlet doctor``: what is wrong, by name, and what to do about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .errors import AnsweredError
from .options import Invocation, output_option, pass_invocation
from .options import command as shared_command
from .output import Column, Output

if TYPE_CHECKING:
    from ..service.doctor import Finding

__all__ = ["command"]


@shared_command("doctor")
@output_option("table", "json", "jsonl", "yaml")
@pass_invocation
def command(invocation: Invocation, output: Output) -> None:
    """
    Look at everything that claimlet stands on, and say what is wrong and what to do about it.

    It changes nothing and works with the service running or not.  The log is read whole.  Exit 1 if
    anything is an error.
    """
    from ..service.doctor import examine

    findings = asyncio.run(examine(invocation.settings))
    columns: tuple[Column[Finding], ...] = (
        Column("CHECK", lambda f: f.check),
        Column("STATE", lambda f: f.state, status=True),
        Column("WHAT", lambda f: f"{f.text} → {f.hint}" if f.hint else f.text),
    )
    output.items(findings, columns, kind="FindingList")
    if any(finding.state == "error" for finding in findings):
        raise AnsweredError
