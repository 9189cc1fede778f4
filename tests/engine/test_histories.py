"""
Recorded logs: each line is a record as it was stored, and must replay to the same state for ever.

`<name>.jsonl` holds the records and `<name>.json` what they fold to.  A life that has no file yet
is recorded by `CLAIMLET_RECORD_HISTORIES=1 pytest tests/engine/test_histories.py`; files that are
there are never written again: a version that reads them otherwise is wrong.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.simulation.lives import LIVES
from tests.simulation.virtual import simulate

from claimlet.engine.node import Node
from claimlet.events.record import decode, encode

FOLDER = Path(__file__).parent.parent / "histories"


def summary(node: Node) -> dict[str, Any]:
    """Return what a history folds to, for people to read and for the digest's reader to compare."""
    return {
        "digest": node.digest(),
        "boot": node.boot,
        "claims": {
            claim.uid: {
                "phase": claim.phase.value,
                "pods": [consumer.pod.uid for consumer in claim.consumers],
                "debts": [debt.driver for debt in claim.debts],
                "devices": {a.driver: len(a.devices) for a in claim.answers},
                "void": [answer.driver for answer in claim.answers if answer.void],
                "lost": claim.lost,
                "suspect": claim.suspect,
            }
            for claim in node.claims.values()
        },
        "pods": {pod.ref.uid: pod.ended for pod in node.pods.values()},
        "refused": sorted(node.refusals),
        "waived": sorted(f"{uid} {driver}" for uid, driver in node.waivers),
    }


def replayed(lines: list[bytes]) -> Node:
    """Return the node that *lines* fold to."""
    node = Node("node-a")
    for sequence, line in enumerate(lines, 1):
        node.fold(decode(line, sequence=sequence))
    return node


def record(name: str) -> None:
    """Write the life *name* as a history of this version."""
    lines = simulate(LIVES[name]).storage.records
    text = msgspec.json.format(msgspec.json.encode(summary(replayed(lines))), indent=2)
    (FOLDER / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (FOLDER / f"{name}.json").write_bytes(text + b"\n")


if os.environ.get("CLAIMLET_RECORD_HISTORIES"):
    for life in LIVES:
        if not (FOLDER / f"{life}.jsonl").exists():
            record(life)

HISTORIES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def stored(name: str) -> list[bytes]:
    return (FOLDER / f"{name}.jsonl").read_bytes().splitlines()


class TestHistories:
    @pytest.mark.rule("R12")
    @pytest.mark.parametrize("name", HISTORIES)
    def test_replays_to_its_digest(self, name: str) -> None:
        """A recorded history folds to what it folded to when it was recorded."""
        expected = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes())

        assert summary(replayed(stored(name))) == expected

    @pytest.mark.parametrize("name", HISTORIES)
    def test_is_written_as_it_was(self, name: str) -> None:
        """A record that is read and written again has the same bytes."""
        for sequence, line in enumerate(stored(name), 1):
            assert encode(decode(line, sequence=sequence)) == line

    def test_every_life_is_recorded(self) -> None:
        """Each named life has its history."""
        assert set(LIVES) <= set(HISTORIES)
