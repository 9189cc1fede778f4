"""
The manifest source: it asks for the pods of a directory, and says when one is gone.

A pod is gone when two complete scans miss it, some time apart, in the directory that was seen
first; a file that could never be read may be the one that has it.  A missing directory, another one
under its name, or all of several pods missing at once say nothing: the source is *not in sync*
until the pods are there again, or an operator unprepares them by hand (rule 9).  Each
file is requested once per boot; a refused one is offered again with backoff, and at once where
something changed.  A missing file means that the pod's containers have ended: the devices are taken
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import structlog
from watchfiles import awatch

from ...config.settings import Settings
from ...engine.errors import ClaimletError, NotReadyError, RefusedError, UsageError
from ...engine.loop import NodeLoop
from ...engine.pod import PreparePod
from ...engine.state import PodState
from ...events.facts import UnprepareRequested
from ...events.values import DriverName, PodUid
from ...events.world import World
from ..kubernetes.wishes import wishes
from .directory import ManifestDirectory, Scan, check_directory

__all__ = ["ManifestSource"]

_SOURCE = "manifest"
#: How far apart the two scans are that miss a pod, unless scans are more frequent.
_APART_SECONDS_MAX = 1.0
_OFFER_SECONDS_FIRST, _OFFER_SECONDS_MAX = 0.5, 60.0

_log: Any = structlog.get_logger()

_Name = tuple[str, str]


class _Offer(msgspec.Struct):
    """A refused pod: when it is offered again."""

    due: float = 0.0
    delay_seconds: float = _OFFER_SECONDS_FIRST


class ManifestSource:
    """
    Watches a directory for *loop*; use it as `async with`.

    Raises:
        UsageError: Everybody may write to the directory, or it is none.
    """

    def __init__(self, settings: Settings, loop: NodeLoop, *, world: World) -> None:
        assert settings.manifest.directory is not None
        check_directory(settings.manifest.directory)
        self._directory = ManifestDirectory(
            settings.manifest.directory, honour_skips=settings.prepare.skip_node_operations
        )
        self._scan_seconds = settings.manifest.scan_seconds
        self._apart_seconds = min(self._scan_seconds, _APART_SECONDS_MAX)
        self._loop = loop
        self._world = world
        self._first_identity: tuple[int, int] | None = None
        self._missing_since: dict[PodUid, float] = {}
        #: The unread files of the last scan that had the pod: it is in none of them.
        self._not_in: dict[PodUid, frozenset[str]] = {}
        self._offers: dict[_Name, _Offer] = {}
        self._drivers: set[DriverName] = set()
        self._is_in_sync = True
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._world.spawn(self._run(), name="manifests")
        self._world.spawn(self._watch(), name="manifests watch")
        self._world.spawn(self._hear_drivers(), name="manifests drivers")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._wake.set()

    @property
    def name(self) -> str:
        """Return the source's name."""
        return _SOURCE

    @property
    def is_in_sync(self) -> bool:
        """Return whether a missing file means anything now."""
        return self._is_in_sync

    # --- when to look ----------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Wake `_run` when something in the directory changes; its own scans find the rest."""
        is_told = False
        while not self._stop.is_set():
            watched = self._directory.identity()
            try:
                if watched is not None:
                    await self._watch_one(watched)
            except (OSError, RuntimeError) as error:
                # The directory went away meanwhile, or the kernel has no watch left.
                if not is_told:
                    _log.warning("manifests_unwatched", reason=str(error), hint="it is still read")
                is_told = True
            await self._world.sleep(self._apart_seconds)

    async def _watch_one(self, watched: tuple[int, int]) -> None:
        async for changes in awatch(
            self._directory.path,
            watch_filter=None,
            debounce=50,
            step=10,
            recursive=False,
            rust_timeout=1000,
            yield_on_timeout=True,
            stop_event=self._stop,
        ):
            if changes:
                self._wake.set()
            if self._directory.identity() != watched:
                self._wake.set()
                return

    async def _hear_drivers(self) -> None:
        """Offer refused pods again as soon as a driver registers: most wait for one."""
        while not self._stop.is_set():
            await self._loop.wait_until(self._has_new_driver)
            self._offer_at_once()
            self._wake.set()

    def _has_new_driver(self) -> bool:
        before, self._drivers = self._drivers, set(self._loop.node.drivers)
        return not self._drivers <= before

    async def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                pause = await self._round()
            except ClaimletError as error:
                if error.exit_code == _FENCED:
                    raise
                _log.warning("manifests_wait", reason=str(error))
                pause = self._apart_seconds
            try:
                async with self._world.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _round(self) -> float:
        """Scan once and do what follows; return in how many seconds to scan again at the latest."""
        try:
            # Reading YAML takes its time; nobody else is to wait for it.
            scan = await asyncio.to_thread(self._directory.scan)
        except UsageError as error:
            self._lose_sync(str(error))
            return self._apart_seconds
        if scan.is_changed:
            self._offer_at_once()
        wanted = wishes(
            scan.manifest,
            self._loop.node,
            source=_SOURCE,
            actor=_SOURCE,
            new_id=self._world.new_id,
        )
        is_settled = await self._judge_missing(scan, wanted)
        for wish in wanted:
            await self._offer(wish)
        if is_settled:
            await self._loop.sync_source(_SOURCE)
        names = {_name(wish) for wish in wanted}
        self._offers = {name: offer for name, offer in self._offers.items() if name in names}
        waiting = [offer.due - self._world.monotonic() for offer in self._offers.values()]
        waiting += [self._apart_seconds] if self._missing_since else []
        return max(min([self._scan_seconds, *waiting]), 0.05)

    # --- pods that are there ---------------------------------------------------------------------

    async def _offer(self, wish: PreparePod) -> None:
        name = _name(wish)
        offer = self._offers.get(name)
        if offer is not None and self._world.monotonic() < offer.due:
            return
        try:
            await self._loop.prepare_pod(wish)
        except (RefusedError, NotReadyError) as error:
            # A log without room takes no new pod, but it takes the end of old ones.
            offer = self._offers.setdefault(name, _Offer())
            offer.due = self._world.monotonic() + offer.delay_seconds
            offer.delay_seconds = min(2 * offer.delay_seconds, _OFFER_SECONDS_MAX)
            _log.info("manifest_pod_refused", pod="/".join(name), reason=str(error))
        else:
            self._offers.pop(name, None)

    def _offer_at_once(self) -> None:
        for offer in self._offers.values():
            offer.due = 0.0
            offer.delay_seconds = _OFFER_SECONDS_FIRST

    # --- pods that are not -----------------------------------------------------------------------

    async def _judge_missing(self, scan: Scan, wanted: Sequence[PreparePod]) -> bool:
        """
        Say of a pod that it is gone, where the scans are evidence of that.

        Return whether all that the directory has to say about known pods is said.
        """
        own = self._own()
        there = {wish.pod.ref.uid for wish in wanted}
        for pod in own:
            if pod.ref.uid in there:
                self._not_in[pod.ref.uid] = scan.unread
        missing = [pod for pod in own if pod.ref.uid not in there]
        if problem := self._sync_problem(scan, own, missing={pod.ref.uid for pod in missing}):
            self._lose_sync(problem)
            return False
        if not self._is_in_sync:
            self._is_in_sync = True
            _log.info("manifests_in_sync", pods=len(own))
        gone = [p for p in missing if scan.unread <= self._not_in.get(p.ref.uid, frozenset())]
        await self._end(gone)
        uids = {pod.ref.uid for pod in own}
        self._not_in = {uid: names for uid, names in self._not_in.items() if uid in uids}
        return not self._missing_since

    def _own(self) -> list[PodState]:
        return [
            pod
            for pod in self._loop.node.pods.values()
            if pod.request is not None and pod.request.source == _SOURCE and not pod.ended
        ]

    def _sync_problem(self, scan: Scan, own: Sequence[PodState], *, missing: set[PodUid]) -> str:
        """Return why the scan is no evidence that a pod is gone; empty if it is."""
        if self._first_identity is None or not missing:
            # It is what was there first, or it has all that was: that confirms another directory.
            self._first_identity = scan.identity
        if scan.identity != self._first_identity:
            return "another directory stands in its place"
        names = {(pod.namespace, pod.name) for pod in scan.manifest.pods}
        vanished = [
            pod
            for pod in own
            # Another pod under its name is a word about this one; no pod under it is none.
            if pod.ref.uid in missing and (pod.ref.namespace, pod.ref.name) not in names
        ]
        if len(vanished) > 1 and len(vanished) == len(own):
            return f"all {len(vanished)} pods are missing at once"
        return ""

    async def _end(self, gone: Sequence[PodState]) -> None:
        """End the pods of *gone* that an earlier scan has missed too."""
        now = self._world.monotonic()
        uids = {pod.ref.uid for pod in gone}
        self._missing_since = {u: t for u, t in self._missing_since.items() if u in uids}
        for uid in sorted(uids):
            if now - self._missing_since.setdefault(uid, now) >= self._apart_seconds:
                fact = UnprepareRequested(reason="manifest removed", source=_SOURCE)
                await self._loop.end_pod(uid, fact, actor=_SOURCE)
                del self._missing_since[uid]

    def _lose_sync(self, why: str) -> None:
        self._missing_since.clear()
        if self._is_in_sync:
            self._is_in_sync = False
            _log.warning(
                "manifests_not_in_sync",
                directory=str(self._directory.path),
                reason=why,
                hint="nothing is unprepared; bring the files back, or use claimlet pod unprepare",
            )


def _name(wish: PreparePod) -> _Name:
    return wish.pod.ref.namespace, wish.pod.ref.name


#: The log belongs to another writer: no source goes on.
_FENCED = 6
