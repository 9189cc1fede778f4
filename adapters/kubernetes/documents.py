"""
Documents: YAML or JSON text of others, made into plain objects without trusting it.

Bounded in size and number; YAML anchors are refused, since a few lines of them can stand for
gigabytes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from ...engine.errors import UsageError

__all__ = ["DOCUMENTS_MAX", "TEXT_BYTES_MAX", "parse_documents"]

#: The size of all manifests of one request or one file.
TEXT_BYTES_MAX = 4 * 1024 * 1024
DOCUMENTS_MAX = 1024


def parse_documents(text: bytes, *, origin: str) -> list[dict[str, Any]]:
    """
    Return the Kubernetes objects in *text*; a List counts as its items.

    Raises:
        UsageError: It is too large, cannot be read, or holds something else than objects.
    """
    if len(text) > TEXT_BYTES_MAX:
        raise UsageError(f"{origin}: {len(text)} bytes, more than {TEXT_BYTES_MAX}")
    found: list[dict[str, Any]] = []
    for document in _load(text, origin):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise UsageError(f"{origin}: a document is no object but {type(document).__name__}")
        if document.get("kind") == "List":
            items = document.get("items") or []
            if not isinstance(items, list) or not all(isinstance(i, dict) for i in items):
                raise UsageError(f"{origin}: a List whose items are no objects")
            found += items
        else:
            found.append(document)
        if len(found) > DOCUMENTS_MAX:
            raise UsageError(f"{origin}: more than {DOCUMENTS_MAX} objects")
    if not found:
        raise UsageError(f"{origin}: no objects in it", hint="a Pod and its ResourceClaims")
    return found


def _load(text: bytes, origin: str) -> list[Any]:
    if text.lstrip()[:1] == b"{":
        try:
            return [msgspec.json.decode(text)]
        except (msgspec.DecodeError, RecursionError):
            pass  # YAML may start with a brace too, and its error names the line
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise UsageError(f"{origin}: YAML aliases are not taken")
        return list(yaml.load_all(text, Loader=loader))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{origin}: {_one_line(error)}", hint="it must be YAML or JSON") from error


def _one_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is not None and problem:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return " ".join(str(error).split())[:200] or type(error).__name__
