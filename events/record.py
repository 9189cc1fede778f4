"""
The record: a fact with its envelope, as it lies in the log (events/README.md).

`Draft` is a fact that somebody wants to append; the log stamps it and makes it a `Record`.
Decoding goes in three steps: the envelope with the body untouched, an upcast by (`t`, `v`), the
typed body. Every input is hostile until decoded: sizes are bounded, errors name the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from .errors import InvalidRecordError, UnknownFactError
from .facts import FACTS, Fact
from .values import ClaimRef, PodRef

__all__ = [
    "BODY_BYTES_MAX",
    "GAP_WORD",
    "Draft",
    "Record",
    "Stamp",
    "decode",
    "encode",
    "stamp",
    "time_text",
]

#: A record's data, in bytes (events/README.md).
BODY_BYTES_MAX = 512 * 1024

#: The word of the record that a fold gets in the place of an acknowledged gap; none is stored.
GAP_WORD = "log_gap"

#: Texts of others are cut to this many bytes, with a mark.
TEXT_BYTES_MAX = 4 * 1024


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A fact, whom it is about, and what it follows from; not yet in the log."""

    fact: Fact
    claim: ClaimRef | None = None
    pod: PodRef | None = None
    #: The operation or request that this belongs to.
    corr: str = ""
    #: The id of the fact that this follows from.
    cause: str = ""
    #: Who asked, for facts that somebody asked for.
    actor: str = ""
    #: The id that the record gets; the log makes one where there is none.
    id: str = ""


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What every record of one process shares."""

    node: str
    boot: str
    writer: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """
    A stored fact.

    `fact` is None for an uncritical word that this version does not know: it is chained and
    counted, and never folded.  `time` is RFC 3339 in UTC with microseconds; it is shown, never
    compared.
    """

    sequence: int
    word: str
    fact: Fact | None
    id: str
    time: str
    node: str
    boot: str
    writer: str
    claim: ClaimRef | None = None
    pod: PodRef | None = None
    corr: str = ""
    cause: str = ""
    actor: str = ""


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    t: str
    v: int
    id: str
    ts: str
    boot: str
    node: str
    writer: str
    body: msgspec.Raw
    claim: ClaimRef | None = None
    pod: PodRef | None = None
    corr: str = ""
    cause: str = ""
    actor: str = ""
    critical: bool = True


_encoder = msgspec.json.Encoder()
_envelopes = msgspec.json.Decoder(_Envelope)
_bodies = {word: msgspec.json.Decoder(kind) for word, kind in FACTS.items()}

#: (word, version) → a function from the body's builtin form to that of the next version.
_UPCASTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


def time_text(wall_time_ns: int) -> str:
    """Return Unix nanoseconds as RFC 3339 in UTC, with microseconds."""
    seconds, nanoseconds = divmod(wall_time_ns, 1_000_000_000)
    return f"{_second_text(seconds)}.{nanoseconds // 1_000:06}Z"


@lru_cache(maxsize=4)
def _second_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")


def stamp(draft: Draft, by: Stamp, *, sequence: int, record_id: str, wall_time_ns: int) -> Record:
    """Return *draft* as the record that it becomes at *sequence*."""
    return Record(
        sequence=sequence,
        word=draft.fact.word,
        fact=draft.fact,
        id=draft.id or record_id,
        time=time_text(wall_time_ns),
        node=by.node,
        boot=by.boot,
        writer=by.writer,
        claim=draft.claim,
        pod=draft.pod,
        corr=draft.corr,
        cause=draft.cause,
        actor=draft.actor,
    )


def encode(record: Record) -> bytes:
    """
    Return the bytes that are stored for *record*; its sequence is not among them.

    Raises:
        InvalidRecordError: It is larger than `BODY_BYTES_MAX`, or a fact of an unknown word.
    """
    if record.fact is None:
        raise InvalidRecordError(
            f"the fact {record.word!r} is not known here and cannot be written"
        )
    data = _encoder.encode(
        _Envelope(
            t=record.word,
            v=record.fact.version,
            id=record.id,
            ts=record.time,
            boot=record.boot,
            node=record.node,
            writer=record.writer,
            body=msgspec.Raw(_encoder.encode(record.fact)),
            claim=record.claim,
            pod=record.pod,
            corr=record.corr,
            cause=record.cause,
            actor=record.actor,
            critical=record.fact.critical,
        )
    )
    if len(data) > BODY_BYTES_MAX:
        raise InvalidRecordError(
            f"{record.word} for {record.claim or record.pod or record.node} takes"
            f" {len(data)} bytes, more than the {BODY_BYTES_MAX} that a record may have"
        )
    return data


def decode(data: bytes, *, sequence: int) -> Record:
    """
    Return the record stored at *sequence*.

    Raises:
        InvalidRecordError: *data* is no record.
        UnknownFactError: The fact is critical and of a newer version.
    """
    try:
        envelope = _envelopes.decode(data)
        fact = _body(envelope, sequence)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecordError(
            f"record {sequence} cannot be read: {error}", sequence=sequence
        ) from error
    return Record(
        sequence=sequence,
        word=envelope.t,
        fact=fact,
        id=envelope.id,
        time=envelope.ts,
        node=envelope.node,
        boot=envelope.boot,
        writer=envelope.writer,
        claim=envelope.claim,
        pod=envelope.pod,
        corr=envelope.corr,
        cause=envelope.cause,
        actor=envelope.actor,
    )


def _body(envelope: _Envelope, sequence: int) -> Fact | None:
    kind = FACTS.get(envelope.t)
    if kind is None or envelope.v > kind.version:
        if envelope.critical:
            raise UnknownFactError(
                f"record {sequence} is a {envelope.t!r} of version {envelope.v}, which this"
                " claimlet does not know",
                sequence=sequence,
                hint="read the log with the version that wrote it, or a newer one",
            )
        return None
    if envelope.v == kind.version:
        return _bodies[envelope.t].decode(envelope.body)
    body = msgspec.json.decode(envelope.body)
    for version in range(envelope.v, kind.version):
        body = _UPCASTS[envelope.t, version](body)
    return msgspec.convert(body, kind)
