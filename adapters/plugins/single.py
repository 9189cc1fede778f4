"""
Adapters that work on one claim at a time, served like any other (rule R3).

The batch is split for them and joined again: what goes wrong for one claim says nothing about the
others.  The time of a call is for all its claims together; those not reached are not called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from ...engine.ports import Claim, DriverCallError, Failed, Prepared
from ...events.values import ClaimUid

__all__ = ["OneByOne", "SingleClaimAdapter"]

T = TypeVar("T")


class SingleClaimAdapter(Protocol):
    """Something that prepares one claim of one driver at a time; both methods are idempotent."""

    @property
    def driver(self) -> str:
        """Return the driver's name, as allocations spell it."""
        ...

    async def prepare_claim(self, claim: Claim, *, timeout_seconds: float) -> Prepared | Failed:
        """
        Prepare *claim*.

        Raises:
            DriverCallError: It is not known what became of it.
        """
        ...

    async def unprepare_claim(self, claim: Claim, *, timeout_seconds: float) -> Failed | None:
        """
        Undo what was prepared for *claim*; None means done.

        Raises:
            DriverCallError: It is not known what became of it.
        """
        ...


class OneByOne:
    """A `DriverAdapter` over a `SingleClaimAdapter`: the claims of a batch in turn."""

    def __init__(self, adapter: SingleClaimAdapter) -> None:
        self._adapter = adapter

    @property
    def driver(self) -> str:
        """Return the driver's name."""
        return self._adapter.driver

    async def prepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Prepared | Failed]:
        """Prepare *claims* one after another."""

        async def one(claim: Claim, seconds: float) -> Prepared | Failed:
            return await self._adapter.prepare_claim(claim, timeout_seconds=seconds)

        return await _each(claims, one, timeout_seconds)

    async def unprepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Failed | None]:
        """Unprepare *claims* one after another."""

        async def one(claim: Claim, seconds: float) -> Failed | None:
            return await self._adapter.unprepare_claim(claim, timeout_seconds=seconds)

        return await _each(claims, one, timeout_seconds)


async def _each(
    claims: Sequence[Claim],
    call: Callable[[Claim, float], Awaitable[T]],
    timeout_seconds: float,
) -> dict[ClaimUid, T | Failed]:
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_seconds
    answers: dict[ClaimUid, T | Failed] = {}
    for claim in claims:
        left = deadline - clock()
        if left <= 0:
            answers[claim.uid] = Failed(
                "not called: the batch had no time left", outcome="unreachable", code="no_time"
            )
            continue
        try:
            answers[claim.uid] = await call(claim, left)
        except DriverCallError as error:
            answers[claim.uid] = Failed(str(error), outcome=error.outcome, code=error.code)
    return answers
