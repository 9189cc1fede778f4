"""
Documents: YAML or JSON text of others, made into plain objects without trusting it.

Bounded in size and number; YAML anchors are refused, since a few lines of them can stand for
gigabytes, and so is what no JSON could hold.  As in Kubernetes' own reader, keys and dates are
text.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import isfinite
from typing import Any

import msgspec
import yaml

from ...engine.errors import UsageError

__all__ = ["DOCUMENTS_MAX", "TEXT_BYTES_MAX", "load_documents", "parse_documents"]

#: The size of all manifests of one request or one file.
TEXT_BYTES_MAX = 4 * 1024 * 1024
_HINT = "a Pod and its ResourceClaims"
DOCUMENTS_MAX = 1024

_TAG = "tag:yaml.org,2002:"
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Makes nothing but what JSON has, and takes no key twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 -- the base class has it so
        first: [(tag, pattern) for tag, pattern in rules if tag != f"{_TAG}timestamp"]
        for first, rules in _SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {  # noqa: RUF012 -- the base class has it so
        tag: make
        for tag, make in _SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_TAG) in {"null", "bool", "int", "float", "str"}
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Return the mapping of *node*."""
        found: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error(key_node, "a key must be text")
            key = key_node.value
            if key in found:
                raise _error(key_node, f"the key {key[:80]!r} stands there twice")
            found[key] = self.construct_object(value_node, deep=deep)
        return found

    def make_map(self, node: Any) -> Any:
        """Return the mapping of *node*, filled in later: PyYAML's way to bound its recursion."""
        found: dict[Hashable, Any] = {}
        yield found
        found.update(self.construct_mapping(node))

    def make_float(self, node: Any) -> float:
        """Return the number of *node*."""
        value: float = self.construct_yaml_float(node)
        if not isfinite(value):
            raise _error(node, "a number must be finite")
        return value


_Loader.add_constructor(f"{_TAG}map", _Loader.make_map)
_Loader.add_constructor(f"{_TAG}seq", _SafeLoader.construct_yaml_seq)
_Loader.add_constructor(f"{_TAG}float", _Loader.make_float)


def parse_documents(text: bytes, *, origin: str) -> list[dict[str, Any]]:
    """
    Return the Kubernetes objects in *text*; a List counts as its items.

    Raises:
        UsageError: It is too large, cannot be read, or holds something else than objects.
    """
    if len(text) > TEXT_BYTES_MAX:
        raise UsageError(
            f"{origin}: {len(text)} bytes, more than {TEXT_BYTES_MAX}", hint="give fewer at once"
        )
    found: list[dict[str, Any]] = []
    for document in load_documents(text, origin):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise UsageError(
                f"{origin}: a document is no object but {type(document).__name__}", hint=_HINT
            )
        found += _objects(document, origin)
        if len(found) > DOCUMENTS_MAX:
            raise UsageError(
                f"{origin}: more than {DOCUMENTS_MAX} objects", hint="give fewer at once"
            )
    if not found:
        raise UsageError(f"{origin}: no objects in it", hint=_HINT)
    return found


def _objects(document: Mapping[str, Any], origin: str) -> list[dict[str, Any]]:
    """Return *document* itself, or the items of a List (an API server's is a `PodList`)."""
    kind = document.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List"):
        return [dict(document)]
    items = document.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UsageError(f"{origin}: a {kind[:60]} whose items are no objects")
    # The items of a PodList do not say what they are.
    implied = {} if kind == "List" else {"kind": kind.removesuffix("List")}
    return [implied | item for item in items]


def load_documents(text: bytes, origin: str) -> list[Any]:
    """
    Return the documents in *text*, whatever they are; its size is the caller's to bound.

    Raises:
        UsageError: It cannot be read.
    """
    if text.lstrip()[:1] == b"{":
        try:
            return [msgspec.json.decode(text)]
        except (msgspec.DecodeError, RecursionError):
            pass  # YAML may start with a brace too, and its error names the line
    try:
        _check_events(text, origin)
        return list(yaml.load_all(text, Loader=_Loader))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{origin}: {_one_line(error)}", hint="it must be YAML or JSON") from error


def _check_events(text: bytes, origin: str) -> None:
    """Refuse aliases and too many documents before anything is built of them."""
    documents = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"{origin}: YAML aliases are not taken")
        documents += isinstance(event, yaml.DocumentStartEvent)
        if documents > DOCUMENTS_MAX:
            raise UsageError(f"{origin}: more than {DOCUMENTS_MAX} documents")


def _error(node: Any, problem: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _one_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is not None and problem:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return " ".join(str(error).split())[:200] or type(error).__name__
