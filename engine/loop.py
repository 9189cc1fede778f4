"""
The loop between the pure core and the world: the one module of the engine that awaits.

command → decide → append → fold → plan → steps → outcome facts → append …  A command's facts and all
that follows from them are appended as one group; what is still owed after that is found by planning
again whatever a folded fact has touched.  The promises are rules 1, 2, 7, 8 and 14 of design.md
section 3: intent before effect, memory never ahead of the log, two locks, teardown that never stops
by itself.  It knows no NATS, no gRPC and no clock but the `World`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from ..events import facts as f
from ..events.errors import ClaimletError, FencedError, InvalidRecordError, LogUnavailableError
from ..events.log import EventLog
from ..events.record import Draft, Record, Stamp
from ..events.values import ClaimUid, DriverName, PodUid
from ..events.world import World
from . import outcome
from .errors import NotFoundError, NotReadyError, RefusedError
from .locks import KeyCounts, KeyLocks
from .node import Node
from .plan import CallPrepare, CallUnprepare, Wait, conclude, plan, related
from .plan import Record as RecordStep
from .pod import PreparePod, decide_ended, decide_prepare, decide_refused
from .ports import Claim, DriverCallError, DriverInstance, Drivers, Failed, Prepared
from .state import ClaimState

__all__ = ["Backoff", "CallState", "LoopSettings", "NodeLoop"]

CallStep = CallPrepare | CallUnprepare
_Decision = Callable[[], list[Draft]]

#: A driver that comes and goes more often than this is registered with a growing delay (rule 16).
_FLAPS_FREE = 10
_FLAP_DELAY_SECONDS_MAX = 300.0


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the loop calls drivers and how long its callers wait for the log."""

    call_timeout_seconds: float = 45.0
    retry_first_seconds: float = 0.5
    retry_max_seconds: float = 60.0
    append_timeout_seconds: float = 10.0


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Delays that double up to a bound, ±10 % (design.md rule 8)."""

    first_seconds: float
    max_seconds: float

    def delay_seconds(self, attempts: int, random: float) -> float:
        """Return how long to wait after *attempts* failures; *random* in [0, 1) spreads them."""
        doubled = self.first_seconds * 2.0 ** min(attempts - 1, 32)
        return min(doubled, self.max_seconds) * (0.9 + 0.2 * random)


class CallState(msgspec.Struct, kw_only=True):
    """The volatile side of an owed call: attempts so far, when the next is due, whether it runs."""

    attempts: int = 0
    due: float = 0.0
    is_running: bool = False
    task: object = None


class NodeLoop:
    """One node's claims, driven: commands in, driver calls out, everything through the log."""

    def __init__(
        self,
        node: Node,
        stamp: Stamp,
        *,
        world: World,
        drivers: Drivers,
        settings: LoopSettings | None = None,
    ) -> None:
        self.node = node
        self.stamp = stamp
        self.settings = settings or LoopSettings()
        self.calls: dict[tuple[str, DriverName], CallState] = {}
        self._world = world
        self._drivers = drivers
        self._backoff = Backoff(
            first_seconds=self.settings.retry_first_seconds,
            max_seconds=self.settings.retry_max_seconds,
        )
        self._log: EventLog | None = None
        self._facts = KeyLocks()
        self._busy = KeyCounts()
        #: (claim, driver) → monotonic time until which an earlier prepare may still act (rule 1).
        self._acts_until: dict[tuple[ClaimUid, DriverName], float] = {}
        self._waits: dict[str, Wait] = {}
        self._dirty: set[ClaimUid] = set()
        self._dirty_pods: set[PodUid] = set()
        self._wake = asyncio.Event()
        self._changed: asyncio.Future[None] | None = None
        self._refusals: dict[PodUid, int] = {}
        self._flaps: dict[DriverName, list[float]] = {}
        self._instances: dict[str, DriverInstance] = {}
        self._failure: ClaimletError | None = None
        self._is_started = False

    # --- the log's side --------------------------------------------------------------------------

    def fold(self, record: Record) -> None:
        """Take a stored record in; the log calls this in order, at replay and live."""
        claim, pod = record.claim, record.pod
        if claim is not None and (old := self.node.claims.get(claim.uid)):
            # What the claim held before may be free now for others.
            self._dirty |= related(self.node, [old.uid])
        self.node.fold(record)
        if claim is not None:
            self._dirty.add(claim.uid)
        if pod is not None:
            self._dirty_pods.add(pod.uid)
            self._dirty.update(self.node.by_pod.get(pod.uid, ()))
        if isinstance(record.fact, f.DriverRegistered | f.SourceSynced | f.WriterStarted):
            self._dirty.update(self.node.claims)
            self._dirty_pods.update(self.node.pods)
        if self._is_started:
            self._wake.set()
            if self._changed is not None and not self._changed.done():
                self._changed.set_result(None)

    async def changed(self) -> None:
        """Wait until another fact has been folded."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until *is_so* holds; it is asked again after each folded fact."""
        while not is_so():
            if self._failure is not None:
                raise self._failure
            await self.changed()

    # --- running ---------------------------------------------------------------------------------

    async def start(self, log: EventLog, started: Sequence[Draft]) -> None:
        """
        Take the log over: append *started* (`writer_started` first), then plan the whole node.

        Raises:
            LogUnavailableError: The log does not answer.
            FencedError: Another writer is faster.
        """
        self._log = log
        self._is_started = True
        now = self._world.monotonic()
        await self._append(started, frozenset())
        for claim in self.node.claims.values():
            for debt in claim.debts:
                if not debt.answered and debt.boot == self.node.boot:
                    until = now + self.settings.call_timeout_seconds
                    self._acts_until[claim.uid, debt.driver] = until
        self._dirty.update(self.node.claims)
        self._dirty_pods.update(self.node.pods)
        self._wake.set()

    async def run(self) -> None:
        """
        Do what is owed until cancelled.

        Raises:
            FencedError: Another writer has taken the log over.
            LogDamagedError: The log no longer holds what it acknowledged.
        """
        while self._failure is None:
            await self._wake.wait()
            self._wake.clear()
            if self._failure is None:
                self._pump()
        raise self._failure

    def fail(self, error: ClaimletError) -> None:
        """Stop for good: no new call, calls in flight are cancelled, nobody is told of a success."""
        if self._failure is None:
            self._failure = error
            for call in self.calls.values():
                if call.task is not None:
                    call.task.cancel()  # type: ignore[attr-defined]
            self._wake.set()
            if self._changed is not None and not self._changed.done():
                self._changed.set_result(None)

    async def drain(self) -> None:
        """Wait until no call is in flight and their outcomes are recorded."""
        await self.wait_until(lambda: not self._busy)

    def wake(self) -> None:
        """Plan the whole node again, calls due at once: the log is back, for example."""
        self._dirty.update(self.node.claims)
        self._dirty_pods.update(self.node.pods)
        self._wake.set()

    @property
    def is_log_available(self) -> bool:
        """Return whether facts can be stored now."""
        return self._log is not None and self._log.is_available and self._failure is None

    # --- commands --------------------------------------------------------------------------------

    async def prepare_pod(self, command: PreparePod) -> None:
        """
        Make *command* a standing wish; it is done when the facts are stored, not when prepared.

        Raises:
            RefusedError: The pod did not pass validation; nothing of it is stored.
            NotReadyError: The log is down; nothing is stored.
            LogUnavailableError: It is not known yet whether the facts are stored.
        """
        keys = _keys_of(command)
        try:
            await self._submit(keys, lambda: decide_prepare(self.node, command))
        except InvalidRecordError as error:
            await self._refuse(command, RefusedError([str(error)]))
        except RefusedError as error:
            await self._refuse(command, error)
        self._refusals.pop(command.pod.ref.uid, None)

    async def _refuse(self, command: PreparePod, error: RefusedError) -> None:
        """Record the refusal, as far as it is news and can be stored at all, and raise it."""
        ref = command.pod.ref
        last = self.node.refusals.get(ref.uid)
        attempts = self._refusals.get(ref.uid, last.attempts if last else 0) + 1
        self._refusals[ref.uid] = attempts
        if len(self._refusals) > 10_000:
            self._refusals.pop(next(iter(self._refusals)))
        try:
            await self._submit(
                {f"pod:{ref.uid}"},
                lambda: decide_refused(self.node, command, error.reasons, attempts=attempts),
            )
        except ClaimletError as second:
            if isinstance(second, FencedError | LogUnavailableError | NotReadyError):
                raise
        raise error

    async def end_pod(
        self, pod_uid: PodUid, fact: f.PodFinished | f.UnprepareRequested, *, actor: str = ""
    ) -> None:
        """Record that the pod is gone, as its source says; its teardown follows from the log alone."""
        keys = {f"pod:{pod_uid}", *self.node.by_pod.get(pod_uid, ())}
        await self._submit(keys, lambda: decide_ended(self.node, pod_uid, fact, actor=actor))
        self._refusals.pop(pod_uid, None)

    async def reprepare(self, claim_uid: ClaimUid, *, actor: str) -> None:
        """
        Void the claim's answers, so that its drivers are asked again.

        Raises:
            NotFoundError: There is no such claim.
            RefusedError: It cannot be prepared again.
        """
        await self._on_idle_claims(
            [claim_uid],
            lambda: outcome.decide_reprepare(self.node, self._claim(claim_uid), actor=actor),
        )

    async def replay_driver(self, driver: DriverName, *, actor: str) -> int:
        """
        Have the driver asked again for every claim with a debt to it; return how many.

        Raises:
            NotFoundError: The driver is not known.
        """
        outcome.decide_replayed(self.node, driver, actor=actor)
        owing = [c.uid for c in self.node.claims.values() if c.debt(driver)]
        decided: list[Draft] = []

        def decide() -> list[Draft]:
            decided[:] = outcome.decide_replayed(self.node, driver, actor=actor)
            return list(decided)

        await self._on_idle_claims(owing, decide)
        return len(decided)

    async def waive(
        self, claim_uid: ClaimUid, driver: DriverName, *, who: str, why: str
    ) -> None:
        """
        Give up what the driver owes for the claim.

        Raises:
            NotFoundError: There is no such claim.
            RefusedError: The claim has consumers or the driver owes nothing.
        """
        await self._submit(
            self._claim_keys([claim_uid]),
            lambda: outcome.decide_waived(self._claim(claim_uid), driver, who=who, why=why),
        )

    async def settle(
        self, claim_uid: ClaimUid, driver: DriverName, *, who: str, why: str
    ) -> None:
        """
        Take a waived debt off the node's list.

        Raises:
            NotFoundError: There is no such waived debt.
        """
        await self._submit(
            {claim_uid},
            lambda: outcome.decide_settled(self.node, claim_uid, driver, who=who, why=why),
        )

    async def lose_object(self, claim_uid: ClaimUid, fact: f.ObjectLost) -> None:
        """Record that the claim object is not what it was; a claim nobody holds is left alone."""

        def decide() -> list[Draft]:
            claim = self.node.claims.get(claim_uid)
            if claim is None or claim.lost == fact.how or not claim.allocation:
                return []
            return [Draft(fact=fact, claim=claim.ref, cause=claim.last_id)]

        await self._submit(self._claim_keys([claim_uid]), decide)

    async def sync_source(self, source: str) -> None:
        """Record, once per process, that *source* has told all it knows."""

        def decide() -> list[Draft]:
            if source in self.node.synced:
                return []
            return [Draft(fact=f.SourceSynced(source=source))]

        await self._submit({f"source:{source}"}, decide)

    async def record(self, drafts: Sequence[Draft]) -> None:
        """Append node facts that nothing follows from, like `stopped`."""
        await self._append(drafts, frozenset())

    # --- drivers come and go (engine.ports.DriverListener) ---------------------------------------

    def registered(self, instance: DriverInstance) -> None:
        """Record that *instance* answers; one that flaps is recorded only when it stays."""
        self._instances[instance.instance] = instance
        now = self._world.monotonic()
        flaps = [t for t in self._flaps.get(instance.driver, []) if now - t < 3600.0]
        self._flaps[instance.driver] = flaps[-64:]
        over = len(flaps) - _FLAPS_FREE
        delay = min(2.0 ** min(over, 16), _FLAP_DELAY_SECONDS_MAX) if over > 0 else 0.0
        self._world.spawn(self._register(instance, delay), name=f"register {instance.driver}")

    def gone(self, driver: DriverName, instance: str, reason: str) -> None:
        """Record that the instance does not answer any more."""
        self._instances.pop(instance, None)
        self._flaps.setdefault(driver, []).append(self._world.monotonic())
        self._world.spawn(self._unregister(driver, instance, reason), name=f"gone {driver}")

    async def _register(self, instance: DriverInstance, delay_seconds: float) -> None:
        if delay_seconds:
            await self._world.sleep(delay_seconds)

        def decide() -> list[Draft]:
            if instance.instance not in self._instances:
                return []
            fact = f.DriverRegistered(
                driver=instance.driver,
                instance=instance.instance,
                endpoint=instance.endpoint,
                api=instance.api,
                supported_versions=instance.supported_versions,
            )
            return [Draft(fact=fact)]

        await self._persist({f"driver:{instance.driver}"}, decide)
        for (_, driver), call in self.calls.items():
            if driver == instance.driver:
                call.due = 0.0
        self._wake.set()

    async def _unregister(self, driver: DriverName, instance: str, reason: str) -> None:
        def decide() -> list[Draft]:
            known = {i.instance for i in self.node.drivers.get(driver, ())}
            if instance not in known:
                return []
            return [Draft(fact=f.DriverGone(driver=driver, instance=instance, reason=reason))]

        await self._persist({f"driver:{driver}"}, decide)

    # --- appending -------------------------------------------------------------------------------

    async def _submit(self, keys: Iterable[str], decide: _Decision) -> None:
        """Decide under the fact locks, append with what follows, and return when it is folded."""
        if not self.is_log_available:
            raise self._failure or NotReadyError(
                "the log does not answer; nothing was stored",
                hint="claimlet will go on by itself when its nats-server is back",
            )
        taken = await self._facts.take(keys)
        try:
            drafts = decide()
            if drafts:
                drafts = conclude(self.node, drafts, self.stamp, busy=self._unavailable(taken))
        except BaseException:
            self._facts.release(taken)
            raise
        if not drafts:
            self._facts.release(taken)
            return
        await self._append(drafts, taken)

    async def _append(self, drafts: Sequence[Draft], taken: frozenset[str]) -> None:
        """
        Append *drafts* and give *taken* back once they are folded, however long the caller waits.

        Raises:
            LogUnavailableError: Not resolved in time; the claims stay locked until it is.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._world.spawn(self._land(drafts, taken, done), name="append")
        try:
            async with self._world.timeout(self.settings.append_timeout_seconds):
                await asyncio.shield(done)
        except TimeoutError:
            done.add_done_callback(_ignore)
            raise LogUnavailableError(
                "the log does not answer; what was asked is recorded when it does"
            ) from None

    async def _land(
        self, drafts: Sequence[Draft], taken: frozenset[str], done: asyncio.Future[None]
    ) -> None:
        assert self._log is not None
        try:
            await self._log.append(drafts)
        except (FencedError, InvalidRecordError) as error:
            if isinstance(error, FencedError):
                self.fail(error)
            if not done.done():
                done.set_exception(error)
        except ClaimletError as error:
            if not isinstance(error, LogUnavailableError):
                self.fail(error)
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(None)
        finally:
            self._release(taken)

    def _release(self, taken: Iterable[str]) -> None:
        self._facts.release(taken)
        # What was planned away while the claims were locked is planned now.
        self._dirty.update(key for key in map(ClaimUid, taken) if key in self.node.claims)
        self._wake.set()

    async def _persist(self, keys: set[str], decide: _Decision) -> None:
        """Submit until it is stored: for facts that must not be lost to an outage (rule 14)."""
        attempts = 0
        while self._failure is None:
            try:
                await self._submit(keys, decide)
            except (LogUnavailableError, NotReadyError):
                attempts += 1
                delay = self._backoff.delay_seconds(attempts, self._world.random())
                await self._world.sleep(min(delay, 5.0))
            except FencedError as error:
                self.fail(error)
            else:
                return

    async def _on_idle_claims(self, uids: Collection[ClaimUid], decide: _Decision) -> None:
        """Submit facts that close intents: wait until no call is in flight for *uids* (rule 7)."""
        while any(uid in self._busy for uid in uids):
            await self.changed()
        await self._submit(self._claim_keys(uids), decide)

    def _claim_keys(self, uids: Iterable[ClaimUid]) -> set[str]:
        return {key for uid in uids for key in _claim_keys(self.node.claims.get(uid), uid)}

    def _claim(self, uid: ClaimUid) -> ClaimState:
        claim = self.node.claims.get(uid)
        if claim is None:
            raise NotFoundError(f"there is no claim with UID {uid} on this node")
        return claim

    def _unavailable(self, own: Collection[str] = ()) -> set[ClaimUid]:
        """Return the claims that others hold: with calls in flight, or facts under way."""
        busy = {ClaimUid(key) for key in self._busy}  # type: ignore[attr-defined]
        locked = {uid for uid in self.node.claims if uid in self._facts and uid not in own}
        return busy | locked

    # --- pumping ---------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Plan what the folded facts have touched, and start what is owed."""
        claims, pods = related(self.node, self._dirty), self._dirty_pods
        for uid in claims:
            pods |= _pods_of(self.node.claims[uid])
        self._dirty, self._dirty_pods = set(), set()
        if not self.is_log_available:
            self._dirty, self._dirty_pods = claims, pods
            return
        steps = plan(self.node, claims, pods, busy=self._unavailable())
        drafts = [step.draft for step in steps if isinstance(step, RecordStep)]
        free = [draft for draft in drafts if self._is_free(draft)]
        if free:
            self._record_conclusions(free)
        for step in steps:
            if isinstance(step, CallPrepare | CallUnprepare):
                self._consider_call(step)
            elif isinstance(step, Wait):
                self._consider_wait(step)

    def _is_free(self, draft: Draft) -> bool:
        keys = _draft_keys(draft)
        return not any(key in self._facts for key in keys)

    def _record_conclusions(self, drafts: Sequence[Draft]) -> None:
        keys = {key for draft in drafts for key in _draft_keys(draft)}
        if not self._facts.try_take(keys):
            self._world.spawn(self._conclude_later(keys), name="conclude")
            return
        taken = frozenset(keys)
        group = conclude(self.node, drafts, self.stamp, busy=self._unavailable(taken))
        own = [draft for draft in group if _draft_keys(draft) <= taken]
        self._world.spawn(self._conclude(own, taken), name="conclude")

    async def _conclude(self, drafts: Sequence[Draft], taken: frozenset[str]) -> None:
        try:
            await self._append(drafts, taken)
        except (LogUnavailableError, FencedError):
            # Planned again: what landed is folded, what did not is still owed.
            return

    async def _conclude_later(self, keys: set[str]) -> None:
        """Wait for whoever has asked for *keys* before, then plan again."""
        async with self._facts.hold(keys):
            pass
        self._release(())
        self._dirty.update(ClaimUid(key) for key in keys if ClaimUid(key) in self.node.claims)

    def _consider_wait(self, step: Wait) -> None:
        if step.key not in self._waits:
            self._waits[step.key] = step
            self._world.spawn(self._wait(step), name=f"wait {step.key}")

    async def _wait(self, step: Wait) -> None:
        await self._world.sleep(step.seconds)
        claim = step.then.claim
        assert claim is not None

        def decide() -> list[Draft]:
            planned = plan(self.node, [claim.uid], ())
            is_due = any(isinstance(s, Wait) and s.key == step.key for s in planned)
            return [step.then] if is_due else []

        await self._persist({claim.uid, str(claim)}, decide)
        self._waits.pop(step.key, None)

    # --- calling ---------------------------------------------------------------------------------

    def _consider_call(self, step: CallStep) -> None:
        """Start the call if it is due, else see to it that it is considered again when it is."""
        call = self.calls.get((step.operation, step.driver))
        if call is None:
            attempts = self._recorded_attempts(step)
            call = self.calls[step.operation, step.driver] = CallState(attempts=attempts)
        if call.is_running or any(uid in self._facts for uid in step.claims):
            return
        if isinstance(step, CallUnprepare):
            call.due = max(call.due, self._settled_at(step))
        now = self._world.monotonic()
        if now < call.due:
            return
        call.is_running = True
        self._busy.add(step.claims)
        call.task = self._world.spawn(
            self._call(step, call), name=f"{type(step).__name__} {step.driver}"
        )

    def _recorded_attempts(self, step: CallStep) -> int:
        failures = [
            failure.attempts
            for uid in step.claims
            if (failure := self.node.claims[uid].failure(step.driver))
            and failure.operation == step.operation
        ]
        return max(failures, default=0)

    def _settled_at(self, step: CallUnprepare) -> float:
        """Return when a claim that got a provisional yes may be asked once more (rule 1)."""
        times = []
        for uid in step.claims:
            debt = self.node.claims[uid].debt(step.driver)
            if debt is None or not debt.provisional:
                return 0.0
            times.append(self._acts_until.get((uid, step.driver), 0.0))
        return max(times, default=0.0)

    async def _call(self, step: CallStep, call: CallState) -> None:
        instance = self._drivers.find(step.driver)
        started = self._world.monotonic()
        claims = [self._adapter_claim(uid, step.driver) for uid in step.claims]
        result: (
            Mapping[ClaimUid, Prepared | Failed]
            | Mapping[ClaimUid, Failed | None]
            | DriverCallError
        )
        try:
            if instance is None:
                raise DriverCallError(
                    f"driver {step.driver} is not registered",
                    outcome="unreachable",
                    code="not_registered",
                )
            timeout = self.settings.call_timeout_seconds
            if isinstance(step, CallPrepare):
                self._will_act(step, started + timeout)
                result = await instance.adapter.prepare(claims, timeout_seconds=timeout)
                self._will_act(step, None)
            else:
                result = await instance.adapter.unprepare(claims, timeout_seconds=timeout)
        except DriverCallError as error:
            result = error
            if error.outcome != "unknown" and isinstance(step, CallPrepare):
                self._will_act(step, None)
        except Exception as error:  # noqa: BLE001 - an adapter's bug must not stop the others
            result = DriverCallError(
                f"{type(error).__name__}: {error}", outcome="unknown", code="adapter_error"
            )
        call.attempts += 1
        now = self._world.monotonic()
        delay = self._backoff.delay_seconds(call.attempts, self._world.random())
        attempt = outcome.Attempt(
            number=call.attempts,
            duration_seconds=round(now - started, 6),
            retry_delay_seconds=round(delay, 3),
        )
        await self._record_outcome(step, result, attempt)
        call.due = self._world.monotonic() + delay
        call.is_running = False
        call.task = None
        self._after_call(step, call, delay)

    def _will_act(self, step: CallPrepare, until: float | None) -> None:
        for uid in step.claims:
            if until is None:
                self._acts_until.pop((uid, step.driver), None)
            else:
                self._acts_until[uid, step.driver] = until

    async def _record_outcome(
        self, step: CallStep, result: object, attempt: outcome.Attempt
    ) -> None:
        """Record what came of the call; the call lock is given up under the fact lock."""
        taken = await self._facts.take(self._claim_keys(step.claims))
        self._busy.remove(step.claims)
        drafts: list[Draft]
        if isinstance(step, CallPrepare):
            drafts = outcome.decide_prepared(self.node, step, result, attempt)  # type: ignore[arg-type]
        else:
            now = self._world.monotonic()
            acting = frozenset(
                uid
                for uid in step.claims
                if self._acts_until.get((uid, step.driver), 0.0) > now
            )
            drafts = outcome.decide_unprepared(
                self.node,
                step,
                result,  # type: ignore[arg-type]
                attempt,
                provisional=acting,
            )
        if not drafts or self._failure is not None:
            self._release(taken)
            return
        group = conclude(self.node, drafts, self.stamp, busy=self._unavailable(taken))
        try:
            await self._append(group, taken)
        except (LogUnavailableError, FencedError):
            # The outcome waits in the log's pipe and the claims stay locked until it lands.
            return

    def _after_call(self, step: CallStep, call: CallState, delay: float) -> None:
        """Forget a call that is owed no more; else have it considered again when it is due."""
        key = (step.operation, step.driver)
        if step.operation not in self.node.by_operation:
            self.calls.pop(key, None)
            return
        self._dirty.update(step.claims)
        self._wake.set()
        wait = max(delay, self._wait_for_settling(step))
        self._world.spawn(self._recall(step, wait), name=f"retry {step.driver}")

    def _wait_for_settling(self, step: CallStep) -> float:
        if isinstance(step, CallPrepare):
            return 0.0
        now = self._world.monotonic()
        return max(
            (self._acts_until.get((uid, step.driver), 0.0) - now for uid in step.claims),
            default=0.0,
        )

    async def _recall(self, step: CallStep, delay: float) -> None:
        await self._world.sleep(delay)
        self._dirty.update(step.claims)
        self._wake.set()

    def _adapter_claim(self, uid: ClaimUid, driver: DriverName) -> Claim:
        claim = self.node.claims[uid]
        answer = claim.answer(driver)
        assert claim.allocation is not None
        return Claim(
            ref=claim.ref,
            allocation=claim.allocation,
            devices=answer.devices if answer else (),
        )


def _ignore(done: asyncio.Future[None]) -> None:
    """Take note of an error that nobody waits for any more."""
    if not done.cancelled():
        done.exception()


def _keys_of(command: PreparePod) -> set[str]:
    keys = {f"pod:{command.pod.ref.uid}"}
    for claim in command.claims.values():
        keys |= {claim.ref.uid, str(claim.ref)}
    return keys


def _claim_keys(claim: ClaimState | None, uid: ClaimUid) -> set[str]:
    return {uid, str(claim.ref)} if claim else {uid}


def _draft_keys(draft: Draft) -> set[str]:
    keys: set[str] = set()
    if draft.claim:
        keys |= {draft.claim.uid, str(draft.claim)}
    if draft.pod:
        keys.add(f"pod:{draft.pod.uid}")
    return keys


def _pods_of(claim: ClaimState) -> set[PodUid]:
    pods = {consumer.pod.uid for consumer in claim.consumers}
    return pods | {claim.released.uid} if claim.released else pods


Waiter = Awaitable[None]
