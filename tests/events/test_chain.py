"""The chain shows every change between two known links."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from claimlet.events.chain import genesis, link

RECORDS = st.lists(
    st.tuples(st.text("abc.", min_size=1, max_size=8), st.binary(max_size=16)),
    min_size=2,
    max_size=8,
    unique=True,
)


def head(records: list[tuple[str, bytes]], *, node: str = "node-a") -> bytes:
    """Return the link of the last of *records*."""
    last = genesis(node)
    for subject, data in records:
        last = link(last, subject, data)
    return last


class TestLink:
    @given(RECORDS, st.data())
    def test_shows_a_removed_record(
        self, records: list[tuple[str, bytes]], data: st.DataObject
    ) -> None:
        """A log without one of its records ends in another link."""
        place = data.draw(st.integers(0, len(records) - 1))

        assert head(records) != head(records[:place] + records[place + 1 :])

    @given(RECORDS, st.data())
    def test_shows_swapped_records(
        self, records: list[tuple[str, bytes]], data: st.DataObject
    ) -> None:
        """A log with two records in another order ends in another link."""
        place = data.draw(st.integers(0, len(records) - 2))
        swapped = records.copy()
        swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]

        assert head(records) != head(swapped)

    @given(RECORDS, st.data())
    def test_shows_a_changed_record(
        self, records: list[tuple[str, bytes]], data: st.DataObject
    ) -> None:
        """One other byte anywhere ends in another link."""
        place = data.draw(st.integers(0, len(records) - 1))
        changed = records.copy()
        subject, body = changed[place]
        changed[place] = (subject, body + b"x")

        assert head(records) != head(changed)

    def test_belongs_to_its_node(self) -> None:
        """The same facts on another node have other links."""
        records = [("dra.n.node.stopped", b"{}")]

        assert head(records, node="node-a") != head(records, node="node-b")
