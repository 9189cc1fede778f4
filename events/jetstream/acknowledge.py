"""
Append the one fact that lets a damaged log be replayed again; nothing else is written to one.

A damaged log has no writer: its service does not start.  So the fact is published alone, fenced on
the log's last sequence, by whoever holds the locks of the service.
"""

from __future__ import annotations

import msgspec

from ..chain import CHAIN_HEADER, link
from ..errors import FencedError, LogSetupError
from ..facts import LogGapAcknowledged
from ..record import Draft, Stamp, encode, stamp
from ..subjects import subject
from ..world import World
from .connection import Answer, Connection
from .survey import Damage, Survey

__all__ = ["append_acknowledgement"]

_WRONG_SEQUENCE = 10071


class _PubAck(Answer, frozen=True, kw_only=True):
    seq: int = 0


async def append_acknowledgement(
    connection: Connection,
    by: Stamp,
    fact: LogGapAcknowledged,
    *,
    found: Survey,
    link_before: bytes,
    actor: str,
    world: World,
) -> int:
    """
    Append *fact* after the last record that was *found*, whose link is *link_before*.

    Raises:
        FencedError: Somebody has appended meanwhile.
        LogSetupError: The server refuses it.
        LogUnavailableError: It is not known whether it is stored; a survey tells.
    """
    record = stamp(
        Draft(fact=fact, actor=actor),
        by,
        sequence=found.last + 1,
        record_id=world.new_id(),
        wall_time_ns=world.wall_time_ns(),
    )
    data, place = encode(record), subject(record)
    headers = {
        "Nats-Msg-Id": record.id,
        "Nats-Expected-Last-Sequence": str(found.last),
        CHAIN_HEADER: link(link_before, place, data).hex(),
    }
    message = await connection.request(place, data, headers=headers)
    answer = msgspec.json.decode(message.data, type=_PubAck)
    if answer.error is not None and answer.error.err_code == _WRONG_SEQUENCE:
        raise FencedError("somebody has appended to the log meanwhile", hint="look again")
    if answer.error is not None:
        raise LogSetupError(f"the log takes no fact: {answer.error.description}")
    return answer.seq


def fact_of(
    damage: Damage, *, why: str, copy: str = "", copy_digest: str = ""
) -> LogGapAcknowledged:
    """Return the fact that acknowledges *damage*."""
    return LogGapAcknowledged(
        from_sequence=damage.first,
        to_sequence=damage.last,
        link_before=damage.link_before.hex(),
        missing=damage.missing,
        why=why,
        link_after=damage.link_after.hex(),
        copy=copy,
        copy_digest=copy_digest,
    )
