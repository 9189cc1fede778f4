"""Tables, documents, colours, and text that is shown and never obeyed."""

from __future__ import annotations

import json

import msgspec
import pytest
import yaml

from claimlet.adapters.cli.output import Column, Output, colour_wanted, draw_table
from claimlet.adapters.cli.text import one_line, printable


class Item(msgspec.Struct, frozen=True):
    name: str
    state: str
    node: str | None = None


COLUMNS = (
    Column[Item]("NAME", lambda item: item.name),
    Column[Item]("STATE", lambda item: item.state, status=True),
    Column[Item]("NODE", lambda item: item.node, wide=True),
)
ITEMS = (Item("train-a", "prepared"), Item("b", "bound", "n1"))


def written(capsys: pytest.CaptureFixture[str], output: Output) -> str:
    output.items(ITEMS, COLUMNS, kind="ItemList", name=lambda item: f"item/{item.name}")
    return capsys.readouterr().out


class TestTable:
    def test_looks_like_kubectl(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Upper-case headers, three spaces between columns, no borders, nothing at a line's end."""
        text = written(capsys, Output())

        assert text == "NAME      STATE\ntrain-a   prepared\nb         bound\n"

    def test_wide_shows_all_columns_and_none_for_empty(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """An empty cell reads <none>."""
        text = written(capsys, Output(format="wide"))

        assert text.splitlines()[1] == "train-a   prepared   <none>"

    def test_can_do_without_headers(self, capsys: pytest.CaptureFixture[str]) -> None:
        """--no-headers leaves data alone."""
        assert written(capsys, Output(headers=False)).startswith("train-a   prepared\n")

    def test_colours_status_words_without_moving_columns(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Only status words are coloured, and the columns stay where they were."""
        text = written(capsys, Output(format="wide", colour=True))

        assert text.splitlines()[1] == "train-a   \x1b[32mprepared\x1b[0m   <none>"
        assert text.splitlines()[2] == "b         bound      n1"

    def test_says_on_stderr_that_there_is_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An empty list leaves stdout empty."""
        Output().items((), COLUMNS, kind="ItemList", empty="No claims found.")

        assert capsys.readouterr() == ("", "No claims found.\n")

    def test_an_empty_table_is_its_header(self) -> None:
        """Without a word for empty, the header stands alone."""
        assert draw_table([], headers=("A", "B")) == "A   B\n"


class TestDocuments:
    def test_json_is_a_list_of_its_kind(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A list in json has a kind and items."""
        document = json.loads(written(capsys, Output(format="json")))

        assert document["kind"] == "ItemList"
        assert document["items"][1] == {"name": "b", "state": "bound", "node": "n1"}

    def test_an_empty_list_is_still_a_document(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A program gets its json also where there is nothing."""
        Output(format="json").items((), COLUMNS, kind="ItemList", empty="No claims found.")

        assert json.loads(capsys.readouterr().out) == {"kind": "ItemList", "items": []}

    def test_jsonl_is_one_item_per_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Each line stands alone."""
        lines = written(capsys, Output(format="jsonl")).splitlines()

        assert [json.loads(line)["name"] for line in lines] == ["train-a", "b"]

    def test_yaml_holds_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Yaml and json differ in form alone."""
        as_yaml = yaml.safe_load(written(capsys, Output(format="yaml")))

        assert as_yaml == json.loads(written(capsys, Output(format="json")))

    def test_names_can_be_piped_into_other_commands(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """-o name writes one name per line."""
        assert written(capsys, Output(format="name")) == "item/train-a\nitem/b\n"

    def test_one_object_in_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        """One object is its own document, without a list around it."""
        Output(format="json").one(ITEMS[1], lambda: "unread")

        assert json.loads(capsys.readouterr().out)["name"] == "b"


class TestColour:
    @pytest.mark.parametrize(
        ("choice", "environ", "terminal", "wanted"),
        [
            ("auto", {}, True, True),
            ("auto", {}, False, False),
            ("auto", {"NO_COLOR": "1"}, True, False),
            ("auto", {"NO_COLOR": ""}, True, True),
            ("auto", {"FORCE_COLOR": "1"}, False, True),
            ("always", {"NO_COLOR": "1"}, False, True),
            ("never", {"FORCE_COLOR": "1"}, True, False),
        ],
    )
    def test_asks_flag_environment_terminal(
        self, *, choice: str, environ: dict[str, str], terminal: bool, wanted: bool
    ) -> None:
        """The flag decides, then NO_COLOR and FORCE_COLOR, then the terminal."""
        assert colour_wanted(choice, environ=environ, is_terminal=terminal) is wanted


class TestText:
    def test_shows_control_characters(self) -> None:
        """A driver's text cannot move the cursor or turn the writing round."""
        assert printable("a\x1b[2Jb\u202ec") == "a\\x1b[2Jb\\u202ec"
        assert printable("größe 设备") == "größe 设备"

    def test_makes_one_line(self) -> None:
        """An error is one line, whatever it quotes."""
        assert one_line("first\n\n  second\r\nthird\x07") == "first; second; third\\x07"
