"""Names on the command line: ``NS/NAME``, or ``NAME`` with ``-n``, and their completion."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

from ...engine.errors import UsageError
from .options import Invocation

if TYPE_CHECKING:
    from ..control.protocol import StateReply

__all__ = ["Target", "driver_argument", "split_name", "target_argument"]

F = TypeVar("F", bound=Callable[..., Any])

#: How long a completion may ask the service; a shell waits for it.
_COMPLETION_SECONDS = 0.2


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The claim or the pod that a command is about; `uid` where the name means several."""

    namespace: str
    name: str
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def split_name(text: str, namespace: str | None) -> tuple[str, str]:
    """
    Return namespace and name of *text*; ``-n``'s *namespace* is for names without one.

    Raises:
        UsageError: It is no such name, or `-n` names another namespace.
    """
    first, slash, rest = text.partition("/")
    if not slash:
        first, rest = "default" if namespace is None else namespace, text
    if not first or not rest or "/" in rest:
        raise UsageError(f"{text!r} is no name", hint="NAMESPACE/NAME, or NAME with -n NAMESPACE")
    if namespace not in (None, first):
        raise UsageError(f"{text!r} is in {first}, and -n says {namespace}", hint="leave -n out")
    return first, rest


def target_argument(kind: Literal["claim", "pod"]) -> Callable[[F], F]:
    """Add ``NS/NAME``, ``-n`` and ``--uid``; the command gets `target: Target`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **values: Any) -> Any:
            namespace, name = split_name(values.pop("name"), values.pop("namespace"))
            target = Target(namespace=namespace, name=name, uid=values.pop("uid"))
            return function(*args, target=target, **values)

        for add in (
            click.option("--uid", default="", help=f"The {kind}'s UID, if the name means several."),
            click.option("-n", "--namespace", metavar="NS", help="The namespace of a bare NAME."),
            click.argument("name", metavar="NS/NAME", shell_complete=_completion(kind)),
        ):
            call = add(call)
        return call  # type: ignore[return-value]

    return decorate


def driver_argument(function: F) -> F:
    """Add the argument ``NAME``, a driver; the command gets `name: str`."""
    return click.argument("name", shell_complete=_completion("driver"))(function)


def _completion(
    kind: Literal["claim", "pod", "driver"],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what completes the names of *kind*: from the service alone, never with an error."""

    def complete(
        context: click.Context, _: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            state = asyncio.run(_state_soon(context.ensure_object(Invocation)))
        except Exception:  # noqa: BLE001 -- a shell that completes has no place for errors
            return []
        names = _names(kind, state, context.params.get("namespace"))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


async def _state_soon(invocation: Invocation) -> StateReply:
    from ..control.protocol import StateReply
    from .service import service_client

    async with asyncio.timeout(_COMPLETION_SECONDS), service_client(invocation) as client:
        return await client.ask("state", None, StateReply)


def _names(kind: str, state: StateReply, namespace: str | None) -> list[str]:
    if kind == "driver":
        found = [driver.driver for driver in state.drivers]
    else:
        items = state.claims if kind == "claim" else state.pods
        found = [
            item.name if namespace else f"{item.namespace}/{item.name}"
            for item in items
            if namespace in (None, item.namespace)
        ]
    return sorted(set(found))
