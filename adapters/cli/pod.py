"""``claimlet pod``: have the claims of a pod prepared or unprepared."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ...engine.errors import NotFoundError, NotReadyError, RefusedError, UsageError
from .errors import TimedOutError
from .names import Target, split_name, target_argument
from .options import DurationType, Invocation, group, output_option, pass_invocation
from .output import Column, Output, draw_table
from .service import ordered, read_state

if TYPE_CHECKING:
    from ..control.client import ControlClient
    from ..control.protocol import PodClaims, PodRow

__all__ = ["command"]

#: The longest pause between two asks of a refused pod.
_ASK_SECONDS_MAX = 5.0
_ASK_SECONDS_FIRST = 0.25


@group("pod")
def command() -> None:
    """Have the claims of a pod prepared or unprepared."""


@command.command("prepare")
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="Manifests of the pod and its claims; - is stdin. May be given several times.",
)
@click.option("--wait", is_flag=True, help="Return when every claim is prepared.")
@click.option(
    "--timeout", type=DurationType(), default="60s", show_default=True, help="For --wait."
)
@click.option("--once", is_flag=True, help="With --wait: withdraw the wish if that fails.")
@click.option("--cdi-args", is_flag=True, help="Print --device options for podman or nerdctl.")
@click.option("--cdi-annotations", is_flag=True, help="Print CDI annotations for the pod.")
@output_option("table", "json", "yaml", "name")
@pass_invocation
def prepare(
    invocation: Invocation,
    output: Output,
    *,
    files: tuple[str, ...],
    wait: bool,
    timeout: float,
    once: bool,
    cdi_args: bool,
    cdi_annotations: bool,
) -> None:
    """
    Want the pods in FILE prepared, until they are unprepared.

    The wish is kept and retried; --wait returns when it has come true.
    """
    if (once or cdi_args or cdi_annotations) and not wait:
        raise UsageError("--once, --cdi-args and --cdi-annotations need --wait", hint="add --wait")
    documents = _read(files)

    async def order(client: ControlClient) -> list[PodClaims]:
        pods = await _prepare(client, documents, patience_seconds=timeout if wait else 0.0)
        if once and not _are_prepared(pods):
            await _withdraw(client, documents)
        return pods

    pods = ordered(invocation, order)
    is_late = wait and not _are_prepared(pods)
    if not (cdi_args or cdi_annotations):
        _print(pods, output)
    elif not is_late:
        _print_cdi(pods, as_annotations=cdi_annotations)
    if is_late:
        raise _timed_out(pods, timeout, is_withdrawn=once)
    if any(pod.state == "refused" for pod in pods):
        reasons = [f"{pod.pod.namespace}/{pod.pod.name}: {r}" for pod in pods for r in pod.reasons]
        raise RefusedError(reasons, hint="nothing was stored for a refused pod; ask again")


async def _prepare(
    client: ControlClient, documents: list[dict[str, Any]], *, patience_seconds: float
) -> list[PodClaims]:
    """Ask until every pod is prepared or *patience_seconds* is over; without one, ask once."""
    from ..control.protocol import PodClaims, PrepareRequest

    deadline = time.monotonic() + patience_seconds
    pause = _ASK_SECONDS_FIRST
    pods: list[PodClaims] = []
    while True:
        left = deadline - time.monotonic()
        request = PrepareRequest(documents=documents, wait_seconds=max(left, 0.0))
        try:
            pods = await client.ask("prepare", request, list[PodClaims], hold_seconds=max(left, 0))
        except NotReadyError:
            if patience_seconds == 0 or left <= 0:
                raise
            is_to_pause = True
        else:
            if patience_seconds == 0 or _are_prepared(pods):
                return pods
            is_to_pause = any(pod.state == "refused" for pod in pods)
        left = deadline - time.monotonic()
        if left <= 0:
            return pods
        if is_to_pause:
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _ASK_SECONDS_MAX)


def _are_prepared(pods: list[PodClaims]) -> bool:
    return bool(pods) and all(pod.state == "prepared" for pod in pods)


def _timed_out(pods: list[PodClaims], seconds: float, *, is_withdrawn: bool) -> TimedOutError:
    waiting = [pod for pod in pods if pod.state != "prepared"]
    names = ", ".join(f"{p.pod.namespace}/{p.pod.name}" for p in waiting) or "the pod"
    reasons = "; ".join(reason for pod in waiting for reason in pod.reasons)
    text = f"not prepared after {seconds:g} s: {names}: {reasons or 'the service does not answer'}"
    if waiting and all(pod.state == "refused" for pod in waiting):
        return TimedOutError(text, hint="nothing is stored for a refused pod; ask again")
    if is_withdrawn:
        return TimedOutError(text, hint="the wish is withdrawn")
    return TimedOutError(text, hint=f"still wanted; withdraw with: claimlet pod unprepare {names}")


async def _withdraw(client: ControlClient, documents: list[dict[str, Any]]) -> None:
    from ..control.protocol import PodClaims, TeardownRequest

    for document in documents:
        if document.get("kind") == "Pod":
            metadata = document.get("metadata") or {}
            request = TeardownRequest(
                namespace=metadata.get("namespace") or "default",
                name=metadata["name"],
                uid=metadata.get("uid") or "",
                reason="withdrawn",
            )
            await client.ask("unprepare", request, PodClaims)


@command.command("unprepare")
@target_argument("pod")
@click.option("--reason", default="deleted", show_default=True, help="Why the pod is gone.")
@click.option("--wait", is_flag=True, help="Return when every claim is unprepared.")
@click.option(
    "--timeout", type=DurationType(), default="60s", show_default=True, help="For --wait."
)
@output_option("table", "json", "yaml", "name")
@pass_invocation
def unprepare(
    invocation: Invocation,
    output: Output,
    *,
    target: Target,
    reason: str,
    wait: bool,
    timeout: float,
) -> None:
    """
    Say that the pod is gone: its claims are unprepared, from the log alone.

    Its containers must have ended; unprepare takes the devices from under them.
    """
    from ..control.protocol import TeardownRequest

    request = TeardownRequest(
        namespace=target.namespace, name=target.name, uid=target.uid, reason=reason
    )

    async def order(client: ControlClient) -> PodClaims:
        return await _unprepare(client, request, patience_seconds=timeout if wait else 0.0)

    pod = ordered(invocation, order)
    if pod.state == "unknown":
        click.echo(f"note: pod {target} is not known here: nothing to do", err=True)
    _print([pod], output)


async def _unprepare(client: ControlClient, request: Any, *, patience_seconds: float) -> PodClaims:
    """Ask until the pod is closed or *patience_seconds* is over; without one, ask once."""
    from ..control.protocol import PodClaims

    deadline = time.monotonic() + patience_seconds
    ended: PodClaims | None = None
    while True:
        left = max(deadline - time.monotonic(), 0.0)
        # The first answer comes at once: it says which pod it is, whatever happens to the service.
        hold = left if ended else 0.0
        asked = msgspec.structs.replace(request, wait_seconds=hold)
        try:
            pod = await client.ask("unprepare", asked, PodClaims, hold_seconds=hold)
        except NotReadyError:
            if left <= 0:
                raise
            await asyncio.sleep(min(_ASK_SECONDS_FIRST, left))
            continue
        if ended is not None and pod.state in ("closed", "unknown"):
            return await _closed(client, ended)
        if patience_seconds == 0 or pod.state != "unpreparing":
            return pod
        if left <= 0:
            raise _still_owed(pod, patience_seconds)
        ended = ended or pod
        request = msgspec.structs.replace(request, uid=pod.pod.uid)


async def _closed(client: ControlClient, pod: PodClaims) -> PodClaims:
    """Return *pod* as it ended: its claims as they are now, as far as they are still in sight."""
    from ..control.protocol import StateReply

    state = await client.ask("state", None, StateReply)
    uids = {claim.uid for claim in pod.claims}
    claims = [claim for claim in state.claims if claim.uid in uids]
    return msgspec.structs.replace(pod, state="closed", reasons=[], claims=claims)


def _still_owed(pod: PodClaims, seconds: float) -> TimedOutError:
    owed = "; ".join(
        f"{claim.name}: {debt.driver} {debt.reason}" for claim in pod.claims for debt in claim.owed
    )
    return TimedOutError(
        f"not unprepared after {seconds:g} s: {owed}",
        hint="it goes on by itself; see `claimlet claims list -A` or `unprepare waive`",
    )


@command.command("status")
@click.argument("name", metavar="[NS/]NAME", required=False)
@click.option("-n", "--namespace", metavar="NS", help="In this namespace.")
@output_option("table", "wide", "json", "jsonl", "yaml", "name")
@pass_invocation
def status(
    invocation: Invocation, output: Output, *, name: str | None, namespace: str | None
) -> None:
    """Show the pods that are wanted, and why they are not prepared."""
    state = read_state(invocation)
    pods = state.pods
    if name is not None:
        where, pod_name = split_name(name, namespace)
        pods = [pod for pod in pods if (pod.namespace, pod.name) == (where, pod_name)]
        if not pods:
            raise NotFoundError(
                f"pod {where}/{pod_name} is not known here",
                hint="claimlet history pod shows pods that are closed",
            )
    elif namespace is not None:
        pods = [pod for pod in pods if pod.namespace == namespace]
    output.items(
        pods,
        _POD_COLUMNS,
        kind="PodList",
        name=lambda pod: f"pod/{pod.namespace}/{pod.name}",
        empty="no pods",
    )


def _pod_columns() -> tuple[Column[PodRow], ...]:
    return (
        Column("NAMESPACE", lambda pod: pod.namespace),
        Column("POD", lambda pod: pod.name),
        Column("STATE", lambda pod: pod.state, status=True),
        Column("CLAIMS", lambda pod: len(pod.claims)),
        Column("SOURCE", lambda pod: pod.source),
        Column("UID", lambda pod: pod.uid, wide=True),
        Column("REASON", lambda pod: "; ".join(pod.reasons)),
    )


_POD_COLUMNS = _pod_columns()


def _read(files: tuple[str, ...]) -> list[dict[str, Any]]:
    from ..kubernetes.documents import TEXT_BYTES_MAX, parse_documents

    documents = []
    for name in files:
        try:
            with sys.stdin.buffer if name == "-" else Path(name).open("rb") as stream:
                # One byte more than is taken is enough to be refused.
                text = stream.read(TEXT_BYTES_MAX + 1)
        except OSError as error:
            raise UsageError(
                f"{name}: {error.strerror or error}", hint="-f takes a file, or - for stdin"
            ) from None
        documents += parse_documents(text, origin="stdin" if name == "-" else name)
    return documents


def _print(pods: list[PodClaims], output: Output) -> None:
    if output.format not in ("table", "wide"):
        if len(pods) == 1:
            output.one(pods[0], str, name=lambda p: f"pod/{p.pod.namespace}/{p.pod.name}")
        else:
            output.items(
                pods, (), kind="PodClaimsList", name=lambda p: f"pod/{p.pod.namespace}/{p.pod.name}"
            )
        return
    for pod in pods:
        click.echo(f"pod {pod.pod.namespace}/{pod.pod.name}: {pod.state}")
        rows = [
            [
                claim.name,
                claim.state,
                ", ".join(claim.devices) or "<none>",
                ", ".join(_cdi_ids([claim], pod.pod.uid)) or "<none>",
            ]
            for claim in pod.claims
        ]
        if rows:
            headers = ["CLAIM", "STATE", "DEVICES", "CDI"] if output.headers else []
            click.echo(draw_table(rows, headers=headers), nl=False)


def _cdi_ids(claims: list[Any], pod_uid: str) -> list[str]:
    """Return the CDI ids of *claims*, each once."""
    ids = [
        cdi_id
        for claim in claims
        if pod_uid not in claim.skipped_pods
        for driver in claim.drivers
        for device in driver.devices
        for cdi_id in device.cdi_device_ids
    ]
    return list(dict.fromkeys(ids))


def _print_cdi(pods: list[PodClaims], *, as_annotations: bool) -> None:
    """Print what a container runtime takes (rule R13); derived here, stored nowhere."""
    for pod in pods:
        ids = _cdi_ids(pod.claims, pod.pod.uid)
        if as_annotations:
            for claim in pod.claims:
                if found := _cdi_ids([claim], pod.pod.uid):
                    click.echo(f"cdi.k8s.io/claimlet_{claim.uid}={','.join(found)}")
        elif ids:
            click.echo(" ".join(f"--device {cdi_id}" for cdi_id in ids))
