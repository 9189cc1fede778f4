"""The server's configuration, and that operators can read in it who may do what."""

from __future__ import annotations

import pytest

from claimlet.events.errors import LogSetupError
from claimlet.events.server.conf import digest, render


class TestRender:
    def test_fills_names_in(self) -> None:
        """Plain words stay bare, so that they can stand inside of a string."""
        text = render('a: "dra.{{ node }}.>" p: {{ port }}', {"node": "node_a", "port": -1})

        assert text == 'a: "dra.node_a.>" p: -1'

    def test_quotes_what_is_no_plain_word(self) -> None:
        """A directory with blanks and quotes is still one directory."""
        assert render("d: {{ dir }}", {"dir": '/a b/"c"'}) == r'd: "/a b/\"c\""'

    @pytest.mark.parametrize("value", ["a\nhttp: 0.0.0.0:80", "a\0b"])
    def test_refuses_a_value_that_would_be_a_second_line(self, value: str) -> None:
        """Nothing gets into the configuration that is not in the template."""
        with pytest.raises(LogSetupError, match="cannot stand"):
            render("d: {{ dir }}", {"dir": value})

    def test_refuses_a_name_without_a_value(self) -> None:
        """A template of another version is found out here, not by the server."""
        with pytest.raises(LogSetupError, match="'cluster'"):
            render("{{ cluster }}", {})


class TestDigest:
    def test_tells_configurations_and_programs_apart(self) -> None:
        """An upgraded program is another server."""
        assert (
            len({digest("a", program="p"), digest("b", program="p"), digest("a", program="q")}) == 3
        )
