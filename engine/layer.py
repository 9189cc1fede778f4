"""A mapping over another one: writes stay in the layer, so that "what if" costs no copy."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Generic, TypeVar, cast

__all__ = ["Layer"]

K = TypeVar("K")
V = TypeVar("V")

_GONE = object()


class Layer(MutableMapping[K, V], Generic[K, V]):
    """*below*, with changes that *below* never sees."""

    __slots__ = ("_below", "_changes")

    def __init__(self, below: MutableMapping[K, V]) -> None:
        self._below = below
        self._changes: dict[K, object] = {}

    def __getitem__(self, key: K) -> V:
        value = self._changes.get(key, self)
        if value is self:
            return self._below[key]
        if value is _GONE:
            raise KeyError(key)
        return cast("V", value)

    def __setitem__(self, key: K, value: V) -> None:
        self._changes[key] = value

    def __delitem__(self, key: K) -> None:
        self._changes[key] = _GONE

    def __iter__(self) -> Iterator[K]:
        yield from (key for key in self._below if key not in self._changes)
        yield from (key for key, value in self._changes.items() if value is not _GONE)

    def __len__(self) -> int:
        return sum(1 for _ in self)
