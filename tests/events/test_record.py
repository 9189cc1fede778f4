"""Records: stored and read back the same, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.events.samples import SAMPLES

from claimlet.events.errors import InvalidRecordError, UnknownFactError
from claimlet.events.facts import FACTS, Fact, Generated
from claimlet.events.record import (
    BODY_BYTES_MAX,
    Draft,
    Record,
    Stamp,
    decode,
    encode,
    stamp,
    time_text,
)
from claimlet.events.values import ClaimRef, ClaimUid, PodRef, PodUid

STAMP = Stamp(node="node-a", boot="boot-1", writer="writer-1")
CLAIM = ClaimRef(uid=ClaimUid("c-1"), namespace="team-a", name="gpu")
POD = PodRef(uid=PodUid("p-1"), namespace="team-a", name="train")


def recorded(fact: Fact) -> Record:
    """Return *fact* as record 7."""
    draft = Draft(fact=fact, claim=CLAIM, pod=POD, corr="op", cause="id-0", actor="me")
    return stamp(draft, STAMP, sequence=7, record_id="id-1", wall_time_ns=1_700_000_000_123_456_789)


def stored(**changes: Any) -> bytes:
    """Return a stored record with some of its fields changed."""
    envelope = json.loads(encode(recorded(Generated(pod_claim="gpu"))))
    return json.dumps({**envelope, **changes}).encode()


class TestRoundTrip:
    @pytest.mark.parametrize("word", FACTS)
    def test_gives_back_every_fact(self, word: str) -> None:
        """What was stored is read back, whole."""
        record = recorded(SAMPLES[word])

        assert decode(encode(record), sequence=7) == record

    @pytest.mark.parametrize("word", FACTS)
    def test_is_plain_json_under_the_word(self, word: str) -> None:
        """`nats sub` shows it as it is: the word, its version, the body."""
        envelope = json.loads(encode(recorded(SAMPLES[word])))

        assert (envelope["t"], envelope["v"]) == (word, 1)
        assert isinstance(envelope["body"], dict)

    @given(st.text(), st.text())
    def test_keeps_any_text(self, text: str, actor: str) -> None:
        """Texts of others are kept as they came."""
        try:
            text.encode()
            actor.encode()
        except UnicodeEncodeError:
            return  # half a surrogate pair cannot come out of JSON
        draft = Draft(fact=Generated(pod_claim=text), claim=CLAIM, actor=actor)
        record = stamp(draft, STAMP, sequence=1, record_id="i", wall_time_ns=0)

        assert decode(encode(record), sequence=1) == record


class TestEncode:
    def test_refuses_a_record_that_is_too_large(self) -> None:
        """Half a megabyte is the most that one record may have."""
        with pytest.raises(InvalidRecordError, match="generated for team-a/gpu takes"):
            encode(recorded(Generated(pod_claim="x" * BODY_BYTES_MAX)))

    def test_refuses_to_write_what_it_does_not_know(self) -> None:
        """A record of an unknown word cannot be written again."""
        record = decode(stored(t="from_the_future", critical=False), sequence=1)

        with pytest.raises(InvalidRecordError, match="from_the_future"):
            encode(record)


class TestDecode:
    def test_ignores_fields_that_it_does_not_know(self) -> None:
        """A newer version of the same minor may add fields."""
        data = stored(flavour="new", body={"pod_claim": "gpu", "flavour": "new"})

        assert decode(data, sequence=7) == recorded(Generated(pod_claim="gpu"))

    def test_stops_at_an_unknown_critical_word(self) -> None:
        """A fact that matters is never skipped; the error says where it is."""
        with pytest.raises(UnknownFactError, match="record 42 is a 'from_the_future'") as caught:
            decode(stored(t="from_the_future"), sequence=42)

        assert caught.value.sequence == 42

    def test_stops_at_a_newer_version_of_a_word(self) -> None:
        """So is a known word with a body that is not known."""
        with pytest.raises(UnknownFactError, match="version 2"):
            decode(stored(v=2), sequence=42)

    def test_passes_an_unknown_uncritical_word_on(self) -> None:
        """It is counted and not folded."""
        record = decode(stored(t="from_the_future", critical=False), sequence=7)

        assert (record.word, record.fact, record.claim) == ("from_the_future", None, CLAIM)

    @given(st.binary(max_size=200))
    def test_says_that_other_bytes_are_no_record(self, data: bytes) -> None:
        """Any bytes at all: an error of one kind, with the sequence."""
        with pytest.raises(InvalidRecordError, match="record 9 cannot be read") as caught:
            decode(data, sequence=9)

        assert caught.value.sequence == 9

    @pytest.mark.parametrize("depth", [1_000, 100_000])
    def test_says_that_a_deep_nest_is_no_record(self, depth: int) -> None:
        """Brackets without end are bytes like any others."""
        data = stored().replace(b'"gpu"', b"[" * depth + b"]" * depth)

        with pytest.raises(InvalidRecordError, match="record 9 cannot be read"):
            decode(data, sequence=9)

    @pytest.mark.parametrize(
        "changes",
        [
            {"body": None},
            {"body": []},
            {"body": {"origin": "elsewhere"}},
            {"v": "1"},
            {"id": 7},
            {"claim": {"uid": 7}},
            {"claim": "team-a/gpu"},
        ],
        ids=str,
    )
    def test_checks_every_type(self, changes: dict[str, Any]) -> None:
        """Something of another shape is no record."""
        with pytest.raises(InvalidRecordError, match="cannot be read"):
            decode(stored(**changes), sequence=1)


class TestTimeText:
    @pytest.mark.parametrize(
        ("wall_time_ns", "text"),
        [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456Z"),
        ],
    )
    def test_is_utc_with_microseconds(self, wall_time_ns: int, text: str) -> None:
        """Times sort as text and name their zone."""
        assert time_text(wall_time_ns) == text
