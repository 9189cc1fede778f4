"""Names on the command line: ``NS/NAME``, or ``NAME`` with ``-n``."""

from __future__ import annotations

from ...engine.errors import UsageError

__all__ = ["split_name"]


def split_name(text: str, namespace: str | None) -> tuple[str, str]:
    """
    Return namespace and name of *text*; ``-n``'s *namespace* is for names without one.

    Raises:
        UsageError: It is no such name.
    """
    first, slash, rest = text.partition("/")
    if not slash:
        return namespace or "default", text
    if not first or not rest or "/" in rest:
        raise UsageError(f"{text!r} is no name: NAMESPACE/NAME")
    return first, rest
