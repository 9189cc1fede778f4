"""
Storing facts: decide under the fact locks, append with what follows, fold, and only then tell.

Memory never runs ahead of the log (rule 2): the log folds what it has stored.  The *fact
locks* of a group are held until it is folded, however long its caller waits (rule 7); an append
that is not resolved in time keeps its claims locked until it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from ...events.errors import ClaimletError, FencedError, LogDamagedError, LogUnavailableError
from ...events.log import EventLog
from ...events.record import Draft, Stamp
from ...events.world import World
from ..errors import NotReadyError
from ..locks import KeyCounts, KeyLocks
from ..node import Node
from ..plan import conclude

__all__ = ["Appender", "Backoff", "LoopSettings"]

Decision = Callable[[], list[Draft]]

#: How long to wait at most before a fact that must not be lost is offered again.
_PERSIST_DELAY_SECONDS_MAX = 5.0


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the loop calls drivers and how long its callers wait for the log."""

    call_timeout_seconds: float = 45.0
    retry_first_seconds: float = 0.5
    retry_max_seconds: float = 60.0
    append_timeout_seconds: float = 10.0
    #: After a start, a driver that has not registered yet is no failure for this long.
    registration_grace_seconds: float = 2.0


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Delays that double up to a bound, ±10 % (rule 8)."""

    first_seconds: float
    max_seconds: float

    def delay_seconds(self, attempts: int, random: float) -> float:
        """Return how long to wait after *attempts* failures; *random* in [0, 1) spreads them."""
        doubled = self.first_seconds * 2.0 ** min(attempts - 1, 32)
        return min(doubled, self.max_seconds) * (0.9 + 0.2 * random)


class Appender:
    """The way into the log for one node's loop; `on_release` hears which keys are free again."""

    def __init__(
        self,
        node: Node,
        stamp: Stamp,
        *,
        world: World,
        settings: LoopSettings,
        on_release: Callable[[Iterable[str]], None],
        on_failure: Callable[[ClaimletError], None],
    ) -> None:
        self.facts = KeyLocks()
        self.busy = KeyCounts()
        self.log: EventLog | None = None
        self.failure: ClaimletError | None = None
        self.backoff = Backoff(
            first_seconds=settings.retry_first_seconds, max_seconds=settings.retry_max_seconds
        )
        self._node = node
        self._stamp = stamp
        self._world = world
        self._settings = settings
        self._on_release = on_release
        self._on_failure = on_failure

    @property
    def is_available(self) -> bool:
        """Return whether facts can be stored now."""
        return self.log is not None and self.log.is_available and self.failure is None

    async def submit(self, keys: Iterable[str], decide: Decision) -> None:
        """
        Decide under the locks of *keys*, append with what follows, return when it is folded.

        Raises:
            NotReadyError: The log is down; nothing was stored.
            LogUnavailableError: Not known in time; what was issued is folded if it lands.
            ClaimletError: Whatever *decide* raises; nothing was stored.
        """
        if not self.is_available:
            raise self.failure or NotReadyError(
                "the log does not answer; nothing was stored",
                hint="claimlet goes on by itself when its nats-server is back",
            )
        taken = await self.facts.take(keys)
        drafts: list[Draft] = []
        try:
            drafts = self.concluded(decide(), taken)
        finally:
            if not drafts:
                self.release(taken)
        if drafts:
            await self.append(drafts, taken)

    def concluded(self, drafts: Sequence[Draft], taken: Collection[str]) -> list[Draft]:
        """Return *drafts* with what follows from them for the claims and pods that are *taken*."""
        if not drafts:
            return []
        others = {key for key in self.facts if key not in taken}
        return conclude(
            self._node,
            drafts,
            self._stamp,
            new_id=self._world.new_id,
            busy=others.union(self.busy),
            within=taken,
        )

    async def append(self, drafts: Sequence[Draft], taken: frozenset[str]) -> None:
        """
        Append *drafts*; *taken* is given back once they are folded, however long the caller waits.

        Raises:
            LogUnavailableError: Not resolved in time; the claims stay locked until it is.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._world.spawn(self._land(drafts, taken, done), name="append")
        try:
            async with self._world.timeout(self._settings.append_timeout_seconds):
                await asyncio.shield(done)
        except TimeoutError:
            done.add_done_callback(_ignore)
            raise LogUnavailableError(
                "the log does not answer; what was asked is recorded when it does"
            ) from None

    async def _land(
        self, drafts: Sequence[Draft], taken: frozenset[str], done: asyncio.Future[None]
    ) -> None:
        assert self.log is not None
        try:
            await self.log.append(drafts)
        except ClaimletError as error:
            if isinstance(error, FencedError | LogDamagedError):
                self.fail(error)
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(None)
        finally:
            self.release(taken)

    def release(self, taken: Iterable[str]) -> None:
        """Give *taken* back."""
        self.facts.release(taken)
        self._on_release(taken)

    def not_busy(self, claims: Iterable[str]) -> None:
        """Note that a call of *claims* has ended with nothing to record."""
        self.busy.remove(claims)
        self._on_release(claims)

    async def persist(self, keys: Collection[str], decide: Decision) -> None:
        """Submit until it is stored: for facts that an outage must not swallow (rule 14)."""
        attempts = 0
        while self.failure is None:
            try:
                await self.submit(keys, decide)
            except (LogUnavailableError, NotReadyError):
                attempts += 1
                delay = self.backoff.delay_seconds(attempts, self._world.random())
                await self._world.sleep(min(delay, _PERSIST_DELAY_SECONDS_MAX))
            except (FencedError, LogDamagedError) as error:
                self.fail(error)
            else:
                return

    def fail(self, error: ClaimletError) -> None:
        """Stop for good: nothing is appended any more, and nobody is told of a success."""
        if self.failure is None:
            self.failure = error
            self._on_failure(error)


def _ignore(done: asyncio.Future[None]) -> None:
    """Take note of an error that nobody waits for any more."""
    if not done.cancelled():
        done.exception()
