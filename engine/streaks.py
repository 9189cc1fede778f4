"""
Drivers that fail many claims in one way: one fault to look at, not one for each claim.

Derived from the fold and stored nowhere.  Numbers and hex runs in the texts do not count.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..events.values import DriverName
from .node import Node
from .state import Failure
from .texts import masked

__all__ = ["Streak", "streaks"]


class Streak(msgspec.Struct, frozen=True, kw_only=True):
    """What one driver answers to several claims: how many, since when, in its own words."""

    claims: int
    attempts: int
    since: str
    text: str


def streaks(node: Node) -> Mapping[DriverName, Streak]:
    """Return each failing driver's widest streak: the most claims that it fails with one text."""
    groups: dict[tuple[DriverName, str], list[Failure]] = {}
    for claim in node.claims.values():
        for failure in claim.failures:
            groups.setdefault((failure.driver, masked(failure.text)), []).append(failure)
    found: dict[DriverName, Streak] = {}
    for (driver, _), failures in sorted(groups.items(), key=lambda item: len(item[1])):
        newest = max(failures, key=lambda failure: failure.sequence)
        found[driver] = Streak(
            claims=len(failures),
            attempts=sum(failure.attempts for failure in failures),
            since=min(failures, key=lambda failure: failure.sequence).first_seen,
            text=newest.text,
        )
    return found
