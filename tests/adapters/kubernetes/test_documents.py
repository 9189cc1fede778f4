"""Documents of others: what is taken, and that nothing hostile gets further than one clear line."""

from __future__ import annotations

import pytest

from claimlet.adapters.kubernetes.documents import DOCUMENTS_MAX, TEXT_BYTES_MAX, parse_documents
from claimlet.engine.errors import UsageError

_BOMB = b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"

#: What is wrong → what the error says about it.
HOSTILE = {
    "alias": (b"a: &a [1]\nb: *a\n", "aliases"),
    "bomb": (_BOMB, "aliases"),
    "self reference": (b"a: &a\n  b: *a\n", "aliases"),
    "deep flow": (b"kind: Pod\nspec: " + b"[" * 100_000, "depth"),
    "deep block": (b"".join(b" " * n + b"a:\n" for n in range(1200)), "depth"),
    "deep JSON": (b'{"kind":"Pod","spec":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "depth"),
    "huge": (b"kind: Pod #" + b"x" * TEXT_BYTES_MAX, "more than 4194304"),
    "many documents": (b"---\nkind: Pod\n" * (DOCUMENTS_MAX + 1), "more than 1024"),
    "many items": (b"kind: List\nitems: [" + b"{}," * (DOCUMENTS_MAX + 1) + b"]", "more than 1024"),
    "list of texts": (b"kind: List\nitems: [a, b]", "items are no objects"),
    "items no list": (b"kind: PodList\nitems: {a: b}", "items are no objects"),
    "text": (b"hello", "no object but str"),
    "number": (b"5", "no object but int"),
    "array": (b"[1, 2]", "no object but list"),
    "JSON array": (b'[{"kind": "Pod"}]', "no object but list"),
    "nothing": (b"", "no objects"),
    "comment": (b"# a: b\n", "no objects"),
    "only separators": (b"---\n---\n", "no objects"),
    "key twice": (b"kind: Pod\nmetadata: {}\nmetadata: {}\n", "'metadata' stands there twice"),
    "deep key twice": (b"kind: Pod\nspec: {a: {b: 1, b: 2}}\n", "'b' stands there twice"),
    "list as key": (b"? [a]\n: b\n", "a key must be text"),
    "object as key": (b"? {a: b}\n: b\n", "a key must be text"),
    "python tag": (b"!!python/object/apply:os.system ['true']\n", "tag"),
    "set": (b"kind: Pod\nspec: !!set {a, b}\n", "tag"),
    "binary": (b"kind: Pod\nspec: !!binary aGk=\n", "tag"),
    "not a number": (b"kind: Pod\nspec: {a: .nan}\n", "finite"),
    "infinite": (b"kind: Pod\nspec: {a: -.inf}\n", "finite"),
    "digits": (b"kind: Pod\nspec: {a: " + b"9" * 5000 + b"}\n", "4300"),
    "null byte": (b"kind: Pod\nmetadata: {name: a\0b}\n", "control characters"),
    "no UTF-8": (b"kind: \xff\xfe", "UTF-8"),
    "half a surrogate": (b'kind: "Pod"\nmetadata: {name: "\\ud800"}', "Unicode"),
    "tab": (b"kind: Pod\n\tmetadata: x", "line 2, column 1"),
    "torn": (b"kind: Pod\nmetadata: {name: a", "line"),
    "torn JSON": (b'{"kind": "Pod", "metadata": {"name": "a"', "line"),
    "two in JSON": (b'{"kind":"Pod"}{"kind":"Pod"}', "line 1"),
}

TAKEN = {
    "one": (b"kind: Pod", [{"kind": "Pod"}]),
    "several": (b"---\nkind: A\n---\n---\nkind: B\n...\n", [{"kind": "A"}, {"kind": "B"}]),
    "list": (b"kind: List\nitems: [{kind: A}, {kind: B}]", [{"kind": "A"}, {"kind": "B"}]),
    "list of a kind": (b"kind: PodList\nitems: [{a: b}]", [{"kind": "Pod", "a": "b"}]),
    "JSON": (b'\n {"kind": "Pod", "a": 1e3}', [{"kind": "Pod", "a": 1000.0}]),
    "JSON list": (b'{"kind": "List", "items": [{"kind": "A"}]}', [{"kind": "A"}]),
    "YAML in braces": (b"{kind: Pod, a: b}", [{"kind": "Pod", "a": "b"}]),
    "UTF-16": ("kind: Pod".encode("utf-16"), [{"kind": "Pod"}]),
    "mark": (b"\xef\xbb\xbfkind: Pod", [{"kind": "Pod"}]),
    "time": (b"kind: Pod\na: 2024-01-01T00:00:00Z", [{"kind": "Pod", "a": "2024-01-01T00:00:00Z"}]),
    "no date": (b"kind: Pod\na: 2024-13-45", [{"kind": "Pod", "a": "2024-13-45"}]),
    "keys": (
        b"kind: Pod\n1: a\ntrue: b\n~: c\n2024-01-01: d",
        [{"kind": "Pod", "1": "a", "true": "b", "~": "c", "2024-01-01": "d"}],
    ),
    "merge key": (b"<<: {a: b}\nkind: Pod", [{"<<": {"a": "b"}, "kind": "Pod"}]),
    "types": (
        b"kind: Pod\na: [1, 1.5, true, ~, 'x', \"y\"]",
        [{"kind": "Pod", "a": [1, 1.5, True, None, "x", "y"]}],
    ),
}


class TestHostileText:
    """Text that is no set of objects."""

    @pytest.mark.parametrize("name", HOSTILE)
    def test_is_refused_in_one_line(self, name: str) -> None:
        """Broken, huge or tricky text is refused with the file's name and what is wrong."""
        text, says = HOSTILE[name]

        with pytest.raises(UsageError) as caught:
            parse_documents(text, origin="f.yaml")

        message = str(caught.value)
        assert message.startswith("f.yaml: ")
        assert says in message
        assert "\n" not in message
        assert len(message) < 400
        assert caught.value.exit_code == 2


class TestText:
    """Text that is one."""

    @pytest.mark.parametrize("name", TAKEN)
    def test_is_read_like_kubernetes_reads_it(self, name: str) -> None:
        """YAML and JSON, one or several, lists and their items; keys and dates are text."""
        text, documents = TAKEN[name]

        assert parse_documents(text, origin="f.yaml") == documents

    def test_nests_as_deep_as_anybody_needs(self) -> None:
        """What is nested a few hundred times is nothing special."""
        text = b"kind: Pod\na: " + b"[" * 500 + b"]" * 500

        assert parse_documents(text, origin="f")[0]["kind"] == "Pod"
