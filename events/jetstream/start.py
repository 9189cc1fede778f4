"""
Fold the log at start: from the newest snapshot that can be used, or from the first record.

A snapshot saves time and nothing else.  Where it is missing, broken or another version's, the log
is replayed whole; a small log is replayed whole anyway, and the snapshot compared with what came
out.  A snapshot that is sound and yet differs is an alarm: the replay is right, the fold or the log
was tampered with or has a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Literal

import msgspec

from ..chain import genesis
from ..errors import InvalidSnapshotError
from ..log import Fold, Head, Snapshots
from ..world import World
from .connection import Connection
from .gaps import Gap, gaps_of_log
from .reader import replay, state_of_log
from .snapshots import SnapshotStore, Taken
from .stored import NotShownError

__all__ = ["FULL_REPLAY_FACTS_MAX", "Start", "fold_log"]

#: Below this many facts a whole replay takes about a second: the snapshot is only compared.
FULL_REPLAY_FACTS_MAX = 100_000


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How the log was folded at start."""

    kind: Literal["full", "snapshot"] = "full"
    #: How many records were read.
    facts: int = 0
    #: Up to where the snapshot reaches that was used, or compared; 0 where there was none.
    snapshot_sequence: int = 0
    #: Why the newest snapshot could not be used, where that is so.
    problem: str = ""
    #: The alarm: how the snapshot differs from what the log says.
    mismatch: str = ""


class _Sound(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot whose content is what was written, and the problem of a newer one."""

    taken: Taken | None = None
    content: bytes = b""
    problem: str = ""


async def fold_log(
    connection: Connection,
    node: str,
    *,
    fold: Fold,
    snapshots: Snapshots | None,
    world: World,
    full_replay_facts_max: int = FULL_REPLAY_FACTS_MAX,
    archive: Path | None = None,
) -> tuple[Head, Start]:
    """
    Fold *node*'s whole log into *fold* and return where it ends, and how it went.

    Copies of records that the log has lost are read from *archive*.

    Raises:
        LogDamagedError: The log has a hole or a broken chain.
        InvalidRecordError: A record cannot be read.
        UnknownFactError: A critical fact is of a newer version.
        LogUnavailableError: The log stopped answering.
    """
    gaps = await gaps_of_log(connection, node)
    opening = _Opening(
        connection, node, fold=fold, snapshots=snapshots, world=world, gaps=gaps, archive=archive
    )
    state = await state_of_log(connection, gaps)
    if state.messages < full_replay_facts_max and state.first_seq <= 1:
        return await opening.replay_whole()
    return await opening.replay_tail()


class _Opening:
    def __init__(
        self,
        connection: Connection,
        node: str,
        *,
        fold: Fold,
        snapshots: Snapshots | None,
        world: World,
        gaps: Sequence[Gap],
        archive: Path | None,
    ) -> None:
        self._gaps = gaps
        self._archive = archive
        self._connection = connection
        self._node = node
        self._fold = fold
        self._snapshots = snapshots
        self._world = world
        self._store = SnapshotStore(connection, node)

    async def replay_whole(self) -> tuple[Head, Start]:
        """Replay from the first record on, and compare the newest snapshot on the way."""
        sound = await self._newest()
        head, facts, mismatch = await self._replay(Head(sequence=0, id="", link=b""), sound)
        sequence = sound.taken.fact.sequence if sound.taken else 0
        return head, Start(
            facts=facts, snapshot_sequence=sequence, problem=sound.problem, mismatch=mismatch
        )

    async def replay_tail(self) -> tuple[Head, Start]:
        """Replay from the newest snapshot on that can be used; from the first record without."""
        sound = await self._newest()
        problem = sound.problem
        while sound.taken is not None:
            place, why = await self._restored(sound)
            if place is not None:
                head, facts, _ = await self._replay(place, _Sound())
                return head, Start(
                    kind="snapshot",
                    facts=facts,
                    snapshot_sequence=place.sequence,
                    problem=problem,
                )
            problem = problem or why
            sound = await self._sound(await self._store.before(sound.taken))
        head, facts, _ = await self._replay(Head(sequence=0, id="", link=b""), _Sound())
        return head, Start(facts=facts, problem=problem)

    async def _newest(self) -> _Sound:
        if self._snapshots is None:
            return _Sound()
        return await self._sound(await self._store.newest())

    async def _sound(self, taken: Taken | None) -> _Sound:
        """Return *taken* or, where its content is not sound, the one before it that is."""
        assert self._snapshots is not None
        problem = ""
        while taken is not None:
            try:
                made_by, ours = taken.fact.fold_version, self._snapshots.fold_version
                if made_by != ours:
                    text = f"it was made by version {made_by} of the fold; this is {ours}"
                    raise InvalidSnapshotError(text)
                self._check_gaps(taken.fact.sequence)
                content = await self._store.read(taken)
            except (InvalidSnapshotError, NotShownError) as error:
                problem = problem or f"the snapshot of {taken.fact.sequence}: {error}"
                taken = await self._store.before(taken)
            else:
                return _Sound(taken=taken, content=content, problem=problem)
        return _Sound(problem=problem)

    def _check_gaps(self, sequence: int) -> None:
        """
        Raise for a snapshot that knows records which a replay does not read any more.

        Raises:
            InvalidSnapshotError: It was taken after a gap, and before that was acknowledged.
        """
        for gap in self._gaps:
            if not gap.fact.copy and gap.first <= sequence < gap.record.sequence:
                raise InvalidSnapshotError(
                    f"the records {gap.first} to {gap.last}, which are in it, were given up since"
                )

    async def _restored(self, sound: _Sound) -> tuple[Head | None, str]:
        """Restore the fold and return the place it goes on from; or None, and why it cannot."""
        assert self._snapshots is not None
        assert sound.taken is not None
        try:
            fact = sound.taken.fact
            place = self._snapshots.place(sound.content)
            if place.sequence != fact.sequence or place.sequence >= sound.taken.sequence:
                raise InvalidSnapshotError("its place is not the one that its fact tells")
            await self._store.check_place(place)
            return self._snapshots.restore(sound.content), ""
        except InvalidSnapshotError as error:
            return None, f"the snapshot of {sound.taken.fact.sequence}: {error}"

    async def _replay(self, head: Head, compared: _Sound) -> tuple[Head, int, str]:
        """Replay what comes after *head*; return the end, the number of records, a mismatch."""
        facts, mismatch = 0, ""
        previous = head.link if head.sequence else genesis(self._node)
        head = msgspec.structs.replace(head, link=previous)
        compared_at = compared.taken.fact.sequence if compared.taken else 0
        records = replay(
            self._connection,
            self._node,
            world=self._world,
            from_sequence=head.sequence + 1,
            previous_link=previous,
            archive=self._archive,
        )
        async with aclosing(records):
            async for record, link in records:
                self._fold(record)
                facts += 1
                head = Head(sequence=record.sequence, id=record.id, link=link)
                if record.sequence == compared_at:
                    mismatch = self._mismatch(head, compared)
        return head, facts, mismatch

    def _mismatch(self, head: Head, compared: _Sound) -> str:
        assert self._snapshots is not None
        if self._snapshots.dump(head) == compared.content:
            return ""
        return (
            f"the snapshot of {head.sequence} is not what the log says up to there;"
            " the log was replayed whole and stands"
        )
