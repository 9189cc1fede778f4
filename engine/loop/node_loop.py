"""
One node's claims, driven: commands in, driver calls out, everything through the log.

A command's facts and all that follows from them are appended as one group; what is still owed after
that is found by planning again whatever a folded fact has touched.  It keeps rules 1, 2, 7, 8, 11
and 14 of engine/README.md; the rules of what is owed stand in `engine.plan`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

from ...events import facts as f
from ...events.errors import ClaimletError, InvalidRecordError, LogUnavailableError, PermanentError
from ...events.log import EventLog
from ...events.record import Draft, Record, Stamp
from ...events.values import ClaimUid, DriverName, PodUid
from ...events.world import World
from .. import outcome
from ..errors import NotFoundError, NotReadyError, RefusedError
from ..node import Node
from ..plan import CallPrepare, CallUnprepare, Wait, plan, pod_key, pods_of, related
from ..plan import Record as RecordStep
from ..pod import PreparePod, decide_ended, decide_prepare, decide_refused
from ..ports import DriverInstance, Drivers
from ..restore import ForeignClaim, decide_import
from ..state import ClaimState
from .appender import Appender, Decision, LoopSettings
from .caller import Caller, CallState
from .flaps import Flaps

__all__ = ["NodeLoop"]

#: Refused pods whose attempts are counted; the oldest makes room.
_REFUSALS_MAX = 10_000


class NodeLoop:
    """The service's heart: it folds, decides, plans and has drivers called."""

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
        self._world = world
        self._appender = Appender(
            node,
            stamp,
            world=world,
            settings=self.settings,
            on_release=self._released,
            on_failure=self._failed,
        )
        self._caller = Caller(
            node,
            self._appender,
            world=world,
            drivers=drivers,
            settings=self.settings,
            on_due=self._touch,
        )
        self._waits: set[str] = set()
        self._dirty: set[ClaimUid] = set()
        self._dirty_pods: set[PodUid] = set()
        self._wake = asyncio.Event()
        self._changed: asyncio.Future[None] | None = None
        self._refusals: dict[PodUid, int] = {}
        self._flaps = Flaps()
        self._instances: set[str] = set()
        self._is_started = False
        self._is_draining = False
        #: Why no new pod is taken, where the log has hardly any room left (rule 14).
        self.no_room = ""

    # --- the log's side --------------------------------------------------------------------------

    def fold(self, record: Record) -> None:
        """Take a stored record in; the log calls this in order, at replay and live."""
        claim, pod = record.claim, record.pod
        if self._is_started and claim is not None:
            # What the claim held before may be free now for others, and its pods may be closed.
            self._dirty |= related(self.node, [claim.uid])
            if known := self.node.claims.get(claim.uid):
                self._dirty_pods |= pods_of(known)
        self.node.fold(record)
        if not self._is_started:
            return
        if claim is not None:
            self._dirty.add(claim.uid)
        if pod is not None:
            self._dirty_pods.add(pod.uid)
            self._dirty.update(self.node.by_pod.get(pod.uid, ()))
        if isinstance(record.fact, f.DriverRegistered | f.SourceSynced | f.WriterStarted):
            self._dirty.update(self.node.claims)
        self._wake.set()
        self._notify()

    async def changed(self) -> None:
        """Wait until another fact has been folded."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """
        Wait until *is_so* holds; it is asked again after each folded fact.

        Raises:
            FencedError: Another writer has taken the log over.
            LogDamagedError: The log no longer holds what it acknowledged.
        """
        while not is_so():
            if self._appender.failure is not None:
                raise self._appender.failure
            await self.changed()

    # --- running ---------------------------------------------------------------------------------

    async def start(self, log: EventLog, started: Sequence[Draft]) -> None:
        """
        Take the log over: append *started* (`writer_started` first), then plan the whole node.

        Raises:
            LogUnavailableError: The log does not answer.
            FencedError: Another writer is faster.
        """
        self._appender.log = log
        self._is_started = True
        await self._appender.append(started, frozenset())
        self._caller.start()
        self.wake()

    async def run(self) -> None:
        """
        Do what is owed until cancelled.

        Raises:
            FencedError: Another writer has taken the log over.
            LogDamagedError: The log no longer holds what it acknowledged.
        """
        while self._appender.failure is None:
            await self._wake.wait()
            self._wake.clear()
            if self._appender.failure is None:
                self._pump()
        raise self._appender.failure

    def fail(self, error: ClaimletError) -> None:
        """Stop for good: no new call, calls in flight are cancelled, nobody is told of success."""
        self._appender.fail(error)

    async def drain(self) -> None:
        """Start no new call, and wait until those in flight have ended and are recorded."""
        self._is_draining = True
        while self._appender.busy and self._appender.failure is None:
            await self.changed()

    def wake(self) -> None:
        """Plan the whole node again: the log is back, for example."""
        self._dirty.update(self.node.claims)
        self._dirty_pods.update(self.node.pods)
        self._wake.set()

    @property
    def is_log_available(self) -> bool:
        """Return whether facts can be stored now."""
        return self._appender.is_available

    def call_state(self, operation: str, driver: DriverName) -> CallState | None:
        """Return the volatile side of an owed call, where this process knows it."""
        return self._caller.states.get((operation, driver))

    # --- commands --------------------------------------------------------------------------------

    async def prepare_pod(self, command: PreparePod) -> None:
        """
        Make *command* a standing wish; it is done when the facts are stored, not when prepared.

        Raises:
            RefusedError: The pod did not pass validation; nothing of it is stored.
            NotReadyError: The log is down, or has no room; nothing is stored.
            LogUnavailableError: It is not known yet whether the facts are stored.
        """
        if self.no_room:
            raise NotReadyError(
                f"no new pod is taken: {self.no_room}",
                hint="make room, and it goes on by itself; unprepare works meanwhile",
            )
        try:
            await self._appender.submit(
                _keys_of(command), lambda: decide_prepare(self.node, command)
            )
        except InvalidRecordError as error:
            await self._refuse(command, RefusedError([str(error)], hint=error.hint))
        except RefusedError as error:
            await self._refuse(command, error)
        self._refusals.pop(command.pod.ref.uid, None)

    async def _refuse(self, command: PreparePod, error: RefusedError) -> None:
        """Record the refusal, as far as it is news and can be stored at all, and raise it."""
        ref = command.pod.ref
        last = self.node.refusals.get(ref.uid)
        attempts = self._refusals.pop(ref.uid, last.attempts if last else 0) + 1
        self._refusals[ref.uid] = attempts
        if len(self._refusals) > _REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]
        try:
            await self._appender.submit(
                {pod_key(ref.uid)},
                lambda: decide_refused(self.node, command, error.reasons, attempts=attempts),
            )
        except PermanentError:
            # A pod whose very UID cannot stand in a subject leaves no trace; its source is told.
            if self._appender.failure is not None:
                raise
        raise error

    async def end_pod(
        self, pod_uid: PodUid, fact: f.PodFinished | f.UnprepareRequested, *, actor: str = ""
    ) -> None:
        """Record that the pod is gone, as its source says; teardown follows from the log alone."""
        keys = {pod_key(pod_uid)}
        for uid in self.node.by_pod.get(pod_uid, ()):
            keys |= self._claim_keys([uid])
        await self._appender.submit(
            keys, lambda: decide_ended(self.node, pod_uid, fact, actor=actor)
        )
        self._refusals.pop(pod_uid, None)

    async def reprepare(self, claim_uid: ClaimUid, *, actor: str) -> None:
        """
        Void the claim's answers, so that its drivers are asked again.

        Raises:
            NotFoundError: There is no such claim.
            RefusedError: It cannot be prepared again.
        """
        await self._submit_idle(
            [claim_uid],
            lambda: outcome.decide_reprepare(self._claim(claim_uid), actor=actor),
        )

    async def replay_driver(self, driver: DriverName, *, actor: str) -> int:
        """
        Have the drivers asked again for every claim with a debt to *driver*; return how many.

        Raises:
            NotFoundError: The driver is not known.
        """
        owing = [c.uid for c in self.node.claims.values() if c.debt(driver)]
        decided: list[Draft] = []

        def decide() -> list[Draft]:
            decided[:] = outcome.decide_replayed(self.node, driver, among=owing, actor=actor)
            return list(decided)

        await self._submit_idle(owing, decide)
        return len(decided)

    async def waive(self, claim_uid: ClaimUid, driver: DriverName, *, who: str, why: str) -> None:
        """
        Give up what the driver owes for the claim.

        Raises:
            NotFoundError: There is no such claim.
            RefusedError: The claim has consumers or the driver owes nothing.
        """
        await self._submit_idle(
            [claim_uid],
            lambda: outcome.decide_waived(self._claim(claim_uid), driver, who=who, why=why),
        )

    async def settle(self, claim_uid: ClaimUid, driver: DriverName, *, who: str, why: str) -> None:
        """
        Take a waived debt off the node's list.

        Raises:
            NotFoundError: There is no such waived debt.
        """
        await self._appender.submit(
            {claim_uid},
            lambda: outcome.decide_settled(self.node, claim_uid, driver, who=who, why=why),
        )

    async def import_claims(
        self, claims: Sequence[ForeignClaim], *, why: str, actor: str
    ) -> tuple[int, int]:
        """
        Take over what another manager held, all of it or nothing; return how many are new, and old.

        Raises:
            RefusedError: The node holds one of them, or something is wrong with it.
            LogUnavailableError: It is not known yet whether the facts are stored.
        """
        keys = {key for claim in claims for key in (claim.ref.uid, str(claim.ref))}
        decided: list[Draft] = []

        def decide() -> list[Draft]:
            decided[:] = decide_import(self.node, claims, why=why, actor=actor)
            return list(decided)

        await self._appender.submit(keys, decide)
        return len(decided), len(claims) - len(decided)

    async def lose_object(self, claim_uid: ClaimUid, fact: f.ObjectLost) -> None:
        """Record that the claim object is not what it was; a claim nobody holds is left alone."""
        await self._appender.submit(
            self._claim_keys([claim_uid]),
            lambda: outcome.decide_lost(self.node, claim_uid, fact),
        )

    async def sync_source(self, source: str) -> None:
        """Record, once per process, that *source* has told all it knows."""

        def decide() -> list[Draft]:
            if source in self.node.synced:
                return []
            return [Draft(fact=f.SourceSynced(source=source))]

        await self._appender.persist({f"source:{source}"}, decide)

    async def note(self, fact: f.NodeFact) -> None:
        """
        Record *fact* about this process, from which nothing follows for any claim.

        Raises:
            LogUnavailableError: The log does not answer.
            FencedError: Another writer has taken the log over: there is nothing to record.
            LogDamagedError: The log no longer holds what it acknowledged.
        """
        if self._appender.failure is not None:
            raise self._appender.failure
        await self._appender.append([Draft(fact=fact)], frozenset())

    async def stopped(self, reason: str) -> None:
        """
        Record that this process stops in good order.

        Raises:
            LogUnavailableError: The log does not answer.
            FencedError: Another writer has taken the log over: there is nothing to record.
            LogDamagedError: The log no longer holds what it acknowledged.
        """
        await self.note(f.Stopped(reason=reason))

    # --- drivers come and go (engine.ports.DriverListener) ---------------------------------------

    def registered(self, instance: DriverInstance) -> None:
        """Record that *instance* answers; one that flaps is recorded only when it stays."""
        if self._is_draining:
            return
        self._instances.add(instance.instance)
        self._world.spawn(self._register(instance), name=f"register {instance.driver}")

    def gone(self, driver: DriverName, instance: str, reason: str) -> None:
        """Record that the instance does not answer any more."""
        if self._is_draining:
            return
        self._instances.discard(instance)
        self._world.spawn(self._unregister(driver, instance, reason), name=f"gone {driver}")

    async def _register(self, instance: DriverInstance) -> None:
        driver, flaps = instance.driver, self._flaps
        while delay := flaps.delay_seconds(driver, self._world.monotonic()):
            await self._world.sleep(delay)
            if instance.instance not in self._instances:
                return

        def decide() -> list[Draft]:
            known = {i.instance for i in self.node.drivers.get(driver, ())}
            if instance.instance in known or instance.instance not in self._instances:
                return []
            flaps.add(driver, self._world.monotonic())
            fact = f.DriverRegistered(
                driver=driver,
                instance=instance.instance,
                endpoint=instance.endpoint,
                api=instance.api,
                supported_versions=instance.supported_versions,
            )
            return [Draft(fact=fact)]

        self._caller.make_due(driver)
        await self._appender.persist({f"driver:{driver}"}, decide)

    async def _unregister(self, driver: DriverName, instance: str, reason: str) -> None:
        def decide() -> list[Draft]:
            known = {i.instance for i in self.node.drivers.get(driver, ())}
            if instance not in known:
                return []
            return [Draft(fact=f.DriverGone(driver=driver, instance=instance, reason=reason))]

        await self._appender.persist({f"driver:{driver}"}, decide)

    # --- planning --------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Plan what the folded facts have touched, and start what is owed."""
        if self._is_draining or not self._appender.is_available:
            # There is no new call while the log is down (rule 14); `wake` comes when it is back.
            return
        claims, pods = related(self.node, self._dirty), self._dirty_pods
        for uid in claims:
            pods |= pods_of(self.node.claims[uid])
        self._dirty, self._dirty_pods = set(), set()
        self._caller.forget_ended()
        busy = set(self._appender.busy).union(self._appender.facts)
        steps = plan(self.node, claims, pods, busy=busy)
        self._record_conclusions([s.draft for s in steps if isinstance(s, RecordStep)])
        for step in steps:
            if isinstance(step, CallPrepare | CallUnprepare):
                self._caller.consider(step)
            elif isinstance(step, Wait) and step.key not in self._waits:
                self._waits.add(step.key)
                self._world.spawn(self._wait(step), name=f"wait {step.key}")

    def _record_conclusions(self, drafts: Sequence[Draft]) -> None:
        """Append those whose claims and pods are free; the others are planned when they are."""
        facts = self._appender.facts
        free = [d for d in drafts if not any(key in facts for key in _draft_keys(d))]
        taken = frozenset(key for draft in free for key in _draft_keys(draft))
        if not free:
            return
        if facts.try_take(taken):
            group = self._appender.concluded(free, taken)
            self._world.spawn(self._conclude(group, taken), name="conclude")
        else:
            self._world.spawn(self._after(taken), name="conclude")

    async def _conclude(self, drafts: Sequence[Draft], taken: frozenset[str]) -> None:
        try:
            await self._appender.append(drafts, taken)
        except LogUnavailableError:
            # Planned again when it is back: what landed is folded, what did not is still owed.
            return
        except PermanentError:
            if self._appender.failure is None:
                raise

    async def _after(self, keys: Iterable[str]) -> None:
        """Wait for whoever has asked for *keys* before, then have them planned again."""
        self._appender.release(await self._appender.facts.take(keys))

    async def _wait(self, step: Wait) -> None:
        await self._world.sleep(step.seconds)
        claim = step.then.claim
        assert claim is not None

        def decide() -> list[Draft]:
            planned = plan(self.node, [claim.uid], ())
            is_due = any(isinstance(s, Wait) and s.key == step.key for s in planned)
            return [step.then] if is_due else []

        await self._appender.persist({claim.uid, str(claim)}, decide)
        self._waits.discard(step.key)

    async def _submit_idle(self, uids: Collection[ClaimUid], decide: Decision) -> None:
        """Submit facts that close intents, under the locks and with no call in flight (rule 7)."""
        is_decided = False

        def decide_idle() -> list[Draft]:
            nonlocal is_decided
            if any(uid in self._appender.busy for uid in uids):
                return []
            is_decided = True
            return decide()

        while not is_decided:
            await self.wait_until(lambda: not any(uid in self._appender.busy for uid in uids))
            await self._appender.submit(self._claim_keys(uids), decide_idle)

    def _released(self, keys: Iterable[str]) -> None:
        """Plan what had to be left out while it was locked."""
        for key in keys:
            if key in self.node.claims:
                self._dirty.add(ClaimUid(key))
            elif key.startswith(_POD_PREFIX):
                self._dirty_pods.add(PodUid(key.removeprefix(_POD_PREFIX)))
        self._wake.set()
        self._notify()

    def _failed(self, _: ClaimletError) -> None:
        self._caller.cancel()
        self._wake.set()
        self._notify()

    def _touch(self, uids: Iterable[ClaimUid]) -> None:
        self._dirty.update(uids)
        self._wake.set()

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _claim_keys(self, uids: Iterable[ClaimUid]) -> set[str]:
        keys: set[str] = set(uids)
        keys |= {str(self.node.claims[uid].ref) for uid in uids if uid in self.node.claims}
        return keys

    def _claim(self, uid: ClaimUid) -> ClaimState:
        claim = self.node.claims.get(uid)
        if claim is None:
            raise NotFoundError(f"there is no claim with UID {uid} on this node")
        return claim


_POD_PREFIX = pod_key(PodUid(""))


def _keys_of(command: PreparePod) -> set[str]:
    keys = {pod_key(command.pod.ref.uid)}
    for claim in command.claims.values():
        keys |= {claim.ref.uid, str(claim.ref)}
    return keys


def _draft_keys(draft: Draft) -> set[str]:
    keys: set[str] = set()
    if draft.claim:
        keys |= {draft.claim.uid, str(draft.claim)}
    if draft.pod:
        keys.add(pod_key(draft.pod.uid))
    return keys
