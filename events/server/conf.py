"""
Write the server's configuration from a template.

Who may do what stands in the template, for operators to read; this module only fills in names.  The
port is left out of the digest: a server that was started on another port is still the same server.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from ..errors import LogSetupError

__all__ = ["ANY_PORT", "Block", "digest", "render"]

#: Tells the server to take any free port.
ANY_PORT = -1

_PLACEHOLDER = re.compile(r"\{\{ ([a-z_]+) \}\}")


class Block(str):
    """Lines that were rendered before, to be filled in as they are."""

    __slots__ = ()


def render(template: str, values: Mapping[str, str | int]) -> str:
    """
    Return *template* with its `{{ names }}` filled in.

    Raises:
        LogSetupError: A name has no value, or a value cannot stand in a configuration.
    """

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            raise LogSetupError(f"the server's template asks for {name!r}, which has no value")
        return _literal(values[name], name=name)

    return _PLACEHOLDER.sub(fill, template)


def digest(conf: str, *, program: str) -> str:
    """Return what tells one configuration, and the *program* that runs it, from another."""
    return hashlib.sha256(f"{program}\n{conf}".encode()).hexdigest()


def _literal(value: str | int, *, name: str) -> str:
    """Return *value* bare where it is a plain word, for use inside of strings, else quoted."""
    if isinstance(value, Block):
        return value
    text = str(value)
    if re.fullmatch(r"-?[A-Za-z0-9_-]+", text, re.ASCII):
        return text
    if any(ord(character) < 0x20 for character in text):
        raise LogSetupError(f"{name} {text!r} cannot stand in the server's configuration")
    return json.dumps(text, ensure_ascii=False)
