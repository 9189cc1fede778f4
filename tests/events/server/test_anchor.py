"""The anchor file: read back as it was written, or not at all."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from claimlet.events.errors import InvalidAnchorError
from claimlet.events.log import Head
from claimlet.events.server.anchor import read_anchor, write_anchor

HEAD = Head(sequence=812, id="e7f4bd31-0000-4000-8000-000000000000", link=bytes(range(32)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "anchor"


class TestAnchor:
    def test_is_read_as_it_was_written(self, path: Path) -> None:
        """The last one counts, and only its owner can read it."""
        write_anchor(path, Head(sequence=1, id="x", link=b"y"))
        write_anchor(path, HEAD)

        assert read_anchor(path) == HEAD
        assert path.stat().st_mode & 0o777 == 0o600
        assert [file.name for file in path.parent.iterdir()] == ["anchor"]

    def test_may_be_missing(self, path: Path) -> None:
        """No file is no anchor."""
        assert read_anchor(path) is None

    @pytest.mark.field(55)
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda data: b"",
            lambda data: data[:-1],
            lambda data: data[: len(data) // 2],
            lambda data: data + b"\0\0\0",
            lambda data: data.replace(b"812", b"813"),
            lambda data: data.replace(b"e7f4", b"e7f5"),
            lambda data: b"\0" * len(data),
            lambda data: data * 1000,
        ],
        ids=["empty", "cut", "half", "padded", "sequence", "id", "zeros", "long"],
    )
    def test_is_not_believed_when_it_is_broken(self, path: Path, spoil: Any) -> None:
        """Cut, padded, changed or emptied, it says nothing."""
        write_anchor(path, HEAD)
        path.write_bytes(spoil(path.read_bytes()))

        with pytest.raises(InvalidAnchorError):
            read_anchor(path)

    def test_needs_its_fields(self, path: Path) -> None:
        """A sum that fits makes no anchor of something else."""
        for line in (b"{}", b"[]", b'{"sequence": 1, "id": "x", "link": "no hex"}'):
            path.write_bytes(line + b"\n" + sha256(line).hexdigest().encode() + b"\n")
            with pytest.raises(InvalidAnchorError):
                read_anchor(path)
