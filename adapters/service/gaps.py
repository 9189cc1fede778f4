"""
What is damaged of a log, and giving it up: for an operator, while no service runs.

A service does not start on a damaged log, so nobody else writes to it: whoever acknowledges a gap
holds the service's locks.  It is done in two steps, and the second can be repeated: the gap is
acknowledged by one fact; then, when no other damage is left, the log is replayed and every claim
that the gap may have touched is recorded as `restored`, so that its drivers are asked again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from ...config.settings import Settings
from ...engine.errors import RefusedError
from ...engine.node import Node
from ...engine.salvage import Salvage
from ...events.address import ServerAddress
from ...events.chain import link
from ...events.errors import LockHeldError, LogDamagedError
from ...events.jetstream.acknowledge import append_acknowledgement, fact_of
from ...events.jetstream.connection import Connection
from ...events.jetstream.gaps import Gap
from ...events.jetstream.log import LogSettings, open_log
from ...events.jetstream.stored import Message, message_at
from ...events.jetstream.stream import STREAM
from ...events.jetstream.survey import Damage, Survey, survey
from ...events.record import Stamp
from ...events.segment import Line, encode_segment, follow_lines, read_segment, write_segment
from ...events.server import keys
from ...events.server.files import make_private_directory
from ...events.server.locks import hold
from ...events.server.reading import reading_server
from ..world import RealWorld
from .addresses import external_address, server_settings
from .archive import archive_dir
from .boot import read_boot_id
from .log import NodeLog
from .policy import policy_of

__all__ = ["Acknowledged", "GapOrder", "GapRow", "acknowledge_gap", "rows_of", "survey_log"]

_STOPPED = "stop the service first: nobody may write to a log whose gaps are acknowledged"


class GapOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's word that these records, and no others, are given up."""

    first: int
    last: int
    why: str
    actor: str
    #: Files that may hold the records.
    copies: tuple[Path, ...] = ()


class GapRow(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the log that is not read."""

    from_sequence: int
    to_sequence: int
    missing: int
    #: damaged, acknowledged.
    state: str
    problem: str
    #: Where the records that are there were published.
    subjects: list[str] = []
    who: str = ""
    time: str = ""
    #: The file with the records, where there is one.
    copy: str = ""


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """What an acknowledgement came to."""

    from_sequence: int
    to_sequence: int
    copy: str
    #: The claims whose drivers are asked again.
    restored: list[str]
    #: What is still damaged.
    left: list[GapRow]


@asynccontextmanager
async def survey_log(settings: Settings) -> AsyncIterator[Survey]:
    """
    Survey the log while no service runs, and keep it from starting until the end.

    Raises:
        LockHeldError: A service runs.
        ClaimletError: The log cannot be read.
    """
    async with AsyncExitStack() as undo:
        if settings.state_dir.is_dir():
            lock = hold(settings.state_dir / "service.lock", owns=str(settings.state_dir))
            undo.callback(lock.release)
        address = external_address(settings, keys.WRITER) if settings.log.url else None
        if address is None:
            own = server_settings(settings)
            address = await undo.enter_async_context(reading_server(own, user=keys.WRITER))
        yield await _survey(settings, address)


def rows_of(found: Survey) -> list[GapRow]:
    """Return what is not read of the log, in its order."""
    rows = [_acknowledged(gap) for gap in found.gaps]
    rows += [_damaged(damage) for damage in found.damages]
    return sorted(rows, key=lambda row: row.from_sequence)


async def acknowledge_gap(settings: Settings, order: GapOrder) -> Acknowledged:
    """
    Do what *order* says, and restore what the gap may have touched.

    Raises:
        LockHeldError: A service runs.
        RefusedError: Just these records are not a damage of the log.
        LogDamagedError: A copy that was named does not fit.
        ClaimletError: The log cannot be read or written.
    """
    async with RealWorld() as world, AsyncExitStack() as undo:
        try:
            log = await undo.enter_async_context(NodeLog(settings, world=world))
        except LockHeldError as error:
            error.hint = _STOPPED
            raise
        address = log.address(keys.WRITER)
        found = await _survey(settings, address)
        copy = ""
        if not _is_known(found, order):
            copy = await _acknowledge(settings, order, found, address=address, world=world)
            found = await _survey(settings, address)
        restored = [] if found.damages else await _restore(settings, log, order, world=world)
    return Acknowledged(
        from_sequence=order.first,
        to_sequence=order.last,
        copy=copy or next((g.fact.copy for g in found.gaps if g.first == order.first), ""),
        restored=restored,
        left=[_damaged(damage) for damage in found.damages],
    )


async def _survey(settings: Settings, address: ServerAddress) -> Survey:
    connection = await Connection.open(address, name="claimlet survey")
    try:
        return await survey(connection, settings.node, world=RealWorld())
    finally:
        await connection.close()


def _is_known(found: Survey, order: GapOrder) -> bool:
    """Return whether the gap was acknowledged before: what follows from it may be left to do."""
    return any((g.first, g.last) == (order.first, order.last) for g in found.gaps) and not any(
        damage.first <= order.first <= damage.last for damage in found.damages
    )


async def _acknowledge(
    settings: Settings,
    order: GapOrder,
    found: Survey,
    *,
    address: ServerAddress,
    world: RealWorld,
) -> str:
    """Append the acknowledgement and return the name of the kept copy, if there is one."""
    damage = _chosen(found, order)
    if damage.link_after and found.damages[-1].last == found.last:
        end = found.damages[-1]
        raise RefusedError(
            [f"the log's end is damaged too, and comes first: {end.first} to {end.last}"]
        )
    connection = await Connection.open(address, name="claimlet gap")
    try:
        after = await message_at(connection, STREAM, damage.last + 1) if damage.link_after else None
        lines = _fitting_copy(settings, order, damage, after=after)
        name, digest = _keep(settings, damage, lines)
        await append_acknowledgement(
            connection,
            _stamp(settings, world),
            fact_of(damage, why=order.why, copy=name, copy_digest=digest),
            found=found,
            link_before=bytes.fromhex(lines[-1].link) if lines and not after else found.link,
            actor=order.actor,
            world=world,
        )
    finally:
        await connection.close()
    return name


def _chosen(found: Survey, order: GapOrder) -> Damage:
    for damage in found.damages:
        if (damage.first, damage.last) == (order.first, order.last):
            return damage
    ranges = ", ".join(f"{damage.first} to {damage.last}" for damage in found.damages)
    asked = f"the records {order.first} to {order.last} are not a damage of the log"
    raise RefusedError(
        [f"{asked}; damaged: {ranges or 'nothing'}"],
        hint="claimlet log gap list; a gap is acknowledged by its exact range",
    )


def _fitting_copy(
    settings: Settings, order: GapOrder, damage: Damage, *, after: Message | None
) -> list[Line]:
    """
    Return the damaged records as a copy of the log has them, if its chain fits before and after.

    Raises:
        LogDamagedError: A copy that the operator has named does not fit.
        LogSetupError: It cannot be read.
    """
    for file in (*order.copies, *sorted(archive_dir(settings).glob("*.jsonl"))):
        try:
            lines = read_segment(file, first=damage.first, last=damage.last)
            *_, (_, end) = follow_lines(lines, damage.link_before)
            if after is not None and link(end, after.subject, after.data) != damage.link_after:
                raise LogDamagedError(
                    f"the records in {file} do not lead to the one after the gap",
                    sequence=damage.last,
                )
        except LogDamagedError:
            if file in order.copies:
                raise
        else:
            return lines
    return []


def _keep(settings: Settings, damage: Damage, lines: list[Line]) -> tuple[str, str]:
    """Keep *lines* in the archive; return the file's name and its sha256, empty without any."""
    if not lines:
        return "", ""
    content = encode_segment(lines)
    digest = sha256(content).hexdigest()
    name = f"gap-{damage.first}-{damage.last}-{digest[:12]}.jsonl"
    make_private_directory(archive_dir(settings))
    write_segment(archive_dir(settings) / name, content)
    return name, digest


async def _restore(
    settings: Settings, log: NodeLog, order: GapOrder, *, world: RealWorld
) -> list[str]:
    """Record every suspect claim as restored, and return their names."""
    node = Node(settings.node, policy_of(settings))
    salvage = Salvage(node)
    events = await open_log(
        log.address(keys.WRITER),
        admin=log.address(keys.ADMIN),
        stamp=_stamp(settings, world),
        fold=salvage.fold,
        world=world,
        settings=LogSettings(archive=archive_dir(settings)),
    )
    async with events:
        drafts = salvage.drafts(actor=order.actor)
        if drafts:
            await events.append(drafts)
    return [str(draft.claim) for draft in drafts]


def _stamp(settings: Settings, world: RealWorld) -> Stamp:
    return Stamp(
        node=settings.node, boot=read_boot_id(settings.boot_id_file), writer=world.new_id()
    )


def _acknowledged(gap: Gap) -> GapRow:
    return GapRow(
        from_sequence=gap.first,
        to_sequence=gap.last,
        missing=gap.fact.missing,
        state="acknowledged",
        problem=gap.fact.why,
        who=gap.record.actor,
        time=gap.record.time,
        copy=gap.fact.copy,
    )


def _damaged(damage: Damage) -> GapRow:
    return GapRow(
        from_sequence=damage.first,
        to_sequence=damage.last,
        missing=damage.missing,
        state="damaged",
        problem=damage.problem,
        subjects=list(damage.subjects),
    )
