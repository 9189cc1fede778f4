"""``claimlet checkpoint``: from a kubelet to claimlet and back; no claim is forgotten."""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import Invocation, group, output_option, pass_invocation
from .output import Output
from .service import ask, read_state
from .text import counted

if TYPE_CHECKING:
    from ..control.protocol import Imported

__all__ = ["command"]


@group("checkpoint")
def command() -> None:
    """Take over what a kubelet held, or hand it back."""


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@output_option("table", "json", "yaml")
@pass_invocation
def import_(invocation: Invocation, output: Output, *, file: Path) -> None:
    """
    Take over the claims of FILE, a kubelet's dra_manager_state; `-` reads stdin.

    The kubelet is stopped and the service runs: all claims of the file are recorded, or none.
    Their drivers are not called; each owes an unprepare from then on, and is asked again when one
    of the pods is asked for.  The file does not name pods: each goes by its UID until it is asked
    for.  Doing it twice is the same as once.
    """
    from ..control.protocol import Imported, ImportRequest
    from ..kubernetes.checkpoint import read_checkpoint

    content = _read(file)
    request = ImportRequest(claims=read_checkpoint(content), digest=sha256(content).hexdigest())
    imported = ask(invocation, "import", Imported, request=request)
    output.one(imported, lambda: _told(imported))


@command.command("export")
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    default="-",
    show_default=True,
    metavar="FILE",
    help="Where to write it; - is stdout.",
)
@pass_invocation
def export(invocation: Invocation, *, file: Path) -> None:
    """
    Write what the node holds as a kubelet's dra_manager_state.

    Stop the service before a kubelet starts on it: a driver has one manager.
    """
    from ..kubernetes.checkpoint import write_checkpoint

    state = read_state(invocation)
    content = write_checkpoint(state.claims)
    if suspects := [claim for claim in state.claims if claim.suspect]:
        names = ", ".join(f"{claim.namespace}/{claim.name}" for claim in suspects[:10])
        click.echo(f"note: what is known of these may be wrong: {names}", err=True)
    if str(file) == "-":
        click.echo(content)
    else:
        _write(file, content)


def _told(imported: Imported) -> str:
    text = f"imported: {counted(imported.claims, 'claim')}"
    return f"{text}; known already: {imported.known}" if imported.known else text


def _read(file: Path) -> bytes:
    """Return the content of *file*, one byte more than is taken at most."""
    from ..kubernetes.checkpoint import CHECKPOINT_BYTES_MAX

    if str(file) == "-":
        return sys.stdin.buffer.read(CHECKPOINT_BYTES_MAX + 1)
    with file.open("rb") as stream:
        return stream.read(CHECKPOINT_BYTES_MAX + 1)


def _write(file: Path, content: bytes) -> None:
    """Write *file* whole or not at all: a kubelet does not start on half of one."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
