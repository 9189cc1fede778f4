"""
Calls a DRA driver: prepare and unprepare over gRPC, v1 or v1beta1.

All claims of one call go out together and come back one by one (rule R3).  What is sent is sane, so
that no driver is confused by us: each claim once, never without a UID, and no more in one call than
a driver that reads every claim from a throttled API server can do in time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from ...engine.ports import Claim, DriverCallError, Failed, Prepared
from ...events.values import ClaimUid
from .answers import read_prepare, read_unprepare
from .channel import DriverChannel
from .wire import DraApi, WireError, encode_claims

__all__ = ["CLAIMS_PER_CALL_MAX", "DraAdapter"]

#: Upstream's helper reads 5 claims a second with its defaults: 200 claims take 40 of 45 seconds.
CLAIMS_PER_CALL_MAX = 200

_Outcome = TypeVar("_Outcome")
_Read = Callable[[DraApi, bytes, Sequence[Claim]], Mapping[ClaimUid, _Outcome | Failed]]


class DraAdapter:
    """The driver behind *channel*, called through the version *api* that it announced."""

    def __init__(self, driver: str, *, channel: DriverChannel, api: DraApi) -> None:
        self._driver = driver
        self._channel = channel
        self._api = api

    @property
    def driver(self) -> str:
        """Return the driver's name, as allocations spell it."""
        return self._driver

    async def prepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Prepared | Failed]:
        """
        Prepare *claims*; more than fit into one call go one after another, each with the timeout.

        Raises:
            DriverCallError: The first call went wrong as a whole, so that nothing is known.
        """

        async def call(batch: Sequence[Claim]) -> Mapping[ClaimUid, Prepared | Failed]:
            return await self._call(self._api.prepare, batch, timeout_seconds, read=read_prepare)

        return await _in_batches(claims, call)

    async def unprepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Failed | None]:
        """
        Unprepare *claims*; more than fit into one call go one after another, each with the timeout.

        Raises:
            DriverCallError: The first call went wrong as a whole, so that nothing is known.
        """

        async def call(batch: Sequence[Claim]) -> Mapping[ClaimUid, Failed | None]:
            return await self._call(
                self._api.unprepare, batch, timeout_seconds, read=read_unprepare
            )

        return await _in_batches(claims, call)

    async def _call(
        self, method: str, claims: Sequence[Claim], timeout_seconds: float, *, read: _Read[_Outcome]
    ) -> Mapping[ClaimUid, _Outcome | Failed]:
        request = encode_claims(self._api, [claim.ref for claim in claims])
        answer = await self._channel.call(method, request, timeout_seconds=timeout_seconds)
        try:
            return read(self._api, answer, claims)
        except WireError as error:
            text = f"the answer cannot be read: {error}"
            raise DriverCallError(text, outcome="invalid", code="undecodable") from None


async def _in_batches(
    claims: Sequence[Claim],
    call: Callable[[Sequence[Claim]], Awaitable[Mapping[ClaimUid, _Outcome | Failed]]],
) -> dict[ClaimUid, _Outcome | Failed]:
    """Return the outcomes of all batches; what one achieved outlives the failure of the next."""
    outcomes: dict[ClaimUid, _Outcome | Failed] = {}
    failure: DriverCallError | None = None
    batches = _batches([*{claim.uid: claim for claim in claims if claim.uid}.values()])
    if any(not claim.uid for claim in claims):
        outcomes[ClaimUid("")] = Failed("a claim without a UID", outcome="invalid", code="no_uid")
    for batch in batches:
        if failure is not None:
            text = f"not sent, because the call before failed: {failure}"
            outcomes |= {claim.uid: Failed(text, "unreachable", "not_sent") for claim in batch}
            continue
        try:
            answers = await call(batch)
        except DriverCallError as error:
            if batch is batches[0]:
                raise
            failure = error
            outcomes |= {c.uid: Failed(str(error), error.outcome, error.code) for c in batch}
        else:
            outcomes |= answers
    return outcomes


def _batches(claims: Sequence[Claim]) -> list[Sequence[Claim]]:
    starts = range(0, len(claims), CLAIMS_PER_CALL_MAX)
    return [claims[start : start + CLAIMS_PER_CALL_MAX] for start in starts]
