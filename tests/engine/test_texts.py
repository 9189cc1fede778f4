"""Texts of peers: cut to a bound, and compared without what varies."""

from __future__ import annotations

import pytest

from claimlet.engine.texts import TEXT_BYTES_MAX, cut, masked


class TestCut:
    @pytest.mark.parametrize("text", ["", "short", "ä" * 2048, "x" * TEXT_BYTES_MAX])
    def test_leaves_what_fits(self, text: str) -> None:
        """A text within the bound is not touched."""
        assert cut(text) == text

    @pytest.mark.parametrize("text", ["x" * 5000, "ä" * 5000, "x" + "😀" * 5000])
    def test_marks_what_is_missing(self, text: str) -> None:
        """A longer text is cut between characters and marked, within the bound."""
        short = cut(text)

        assert len(short.encode()) <= TEXT_BYTES_MAX
        assert short.endswith("… (cut)")
        assert text.startswith(short.removesuffix("… (cut)"))

    def test_survives_what_is_no_text(self) -> None:
        """Half a surrogate becomes a question mark, so that the text can be stored."""
        assert cut("a\ud800b") == "a?b"


class TestMasked:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("attempt 1", "attempt 22"),
            ("at 0xdeadbeef", "at 0x1"),
            (
                "claim 5f0c2a91-77aa-4c1e-9d2b-0242ac130003 is not known",
                "claim abcdefab-face-beef-dead-abcdefabcdef is not known",
            ),
            ("request deadbeef failed", "request 0badcafe failed"),
            ("12.5 ms", "9.25 ms"),
        ],
    )
    def test_numbers_do_not_count(self, one: str, other: str) -> None:
        """Texts that differ in digits and hex runs only are the same."""
        assert "#" in masked(one)
        assert masked(one) == masked(other)

    @pytest.mark.parametrize(
        ("one", "other"),
        [("device busy", "device dead"), ("bad", "face"), ("no carrier", "no device")],
    )
    def test_words_count(self, one: str, other: str) -> None:
        """Words stay words, also those of the letters a to f."""
        assert masked(one) != masked(other)

    def test_a_hostile_text_is_quick(self) -> None:
        """A long run of hex letters is one run."""
        assert masked("a" * 100_000) == "#"
