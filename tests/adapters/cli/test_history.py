"""`claimlet history`: what happened, from the log alone, in each form and for each time."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.adapters.cli.node import Node, call
from tests.adapters.cli.test_pod import told
from tests.adapters.service_process import BOOTS, ServiceProcess, short_directory

#: What a pod's claim goes through, in the order of the log.
LIFE = [
    "generated",
    "bound",
    "prepare_started",
    "driver_prepared",
    "prepared",
    "consumer_left",
    "unprepare_started",
    "driver_unprepared",
    "unprepared",
]


@pytest.fixture
def lived(node: Node) -> Node:
    """Return the node, on which a pod has lived, once for all tests."""
    if not node.driver.calls("unprepare", "lived-a"):
        node.prepared("lived", "lived-a")
        node.good("pod", "unprepare", "ml/lived", "--wait")
    return node


class TestClaim:
    def test_has_its_facts_under_their_names(self, lived: Node) -> None:
        """As json each fact has its name, its place, whom it is about and its body."""
        found = lived.good("history", "claim", "ml/lived-a", "-o", "json").json

        assert found["kind"] == "FactList"
        assert [item["fact"] for item in found["items"]] == LIFE
        sequences = [item["sequence"] for item in found["items"]]
        assert sequences == sorted(sequences)
        for item in found["items"]:
            assert item.keys() >= {"sequence", "fact", "t", "ts", "id", "boot", "claim", "body"}
            assert item["claim"]["name"] == "lived-a"
        prepared = next(item for item in found["items"] if item["fact"] == "driver_prepared")
        assert prepared["body"]["driver"] == "gpu.demo"

    def test_is_told_to_people(self, lived: Node) -> None:
        """The table has a row for each fact; wide says who did it and in which operation."""
        ran = lived.good("history", "claim", "ml/lived-a")

        assert ran.out.splitlines()[0].split() == ["SEQ", "TIME", "FACT", "ABOUT", "DETAIL"]
        assert [row[2] for row in ran.rows] == LIFE
        wide = lived.good("history", "claim", "lived-a", "-n", "ml", "-o", "wide")
        assert wide.out.splitlines()[0].split()[4:6] == ["ACTOR", "OPERATION"]

    def test_is_the_same_in_each_form(self, lived: Node) -> None:
        """Jsonl and yaml tell the same; --reverse begins with the newest."""
        ran = lived.good("history", "claim", "ml/lived-a", "-o", "jsonl", "--reverse")
        assert [item["fact"] for item in ran.jsonl] == LIFE[::-1]
        ran = lived.good("history", "claim", "ml/lived-a", "-o", "yaml")
        assert [item["fact"] for item in yaml.safe_load(ran.out)["items"]] == LIFE

    def test_is_that_of_one_uid(self, lived: Node) -> None:
        """A UID that had this name, or none: exit 3."""
        uid = lived.good("claims", "get", "ml/lived-a", "-o", "json").json["uid"]

        assert lived.good("history", "claim", "ml/lived-a", "--uid", uid).out
        assert "lived-a" in told(lived.call("history", "claim", "ml/lived-a", "--uid", "u9"), 3)

    @pytest.mark.parametrize("kind", ["claim", "pod"])
    def test_is_not_found(self, lived: Node, kind: str) -> None:
        """A name that the log does not know ends with 3."""
        error = told(lived.call("history", kind, "ml/nothing"), 3)
        assert error == f"error: the log knows no {kind} ml/nothing"


class TestPod:
    def test_has_the_facts_of_its_claims_too(self, lived: Node) -> None:
        """What happened to a claim while the pod held it belongs to the pod, its wish as well."""
        ran = lived.good("history", "pod", "ml/lived", "-o", "jsonl")
        facts = [item["fact"] for item in ran.jsonl]

        assert [fact for fact in facts if fact in LIFE] == LIFE
        assert set(facts) - set(LIFE) == {"prepare_requested", "unprepare_requested", "pod_closed"}


class TestNode:
    def test_has_every_fact(self, lived: Node) -> None:
        """From the first on, node facts included."""
        ran = lived.good("history", "node", "-o", "jsonl")

        assert ran.jsonl[0]["fact"] == "writer_started"
        assert [item["sequence"] for item in ran.jsonl] == list(range(1, len(ran.jsonl) + 1))


class TestTimes:
    @pytest.mark.parametrize(
        "point", ["1h", "2d", "today", "2020-01-01", "2020-01-01T10:00Z", "boot", "seq:1"]
    )
    def test_takes_each_form(self, lived: Node, point: str) -> None:
        """Each names a time before everything that this log holds."""
        ran = lived.good("history", "claim", "ml/lived-a", "--since", point)
        assert len(ran.rows) == len(LIFE)

    def test_begins_and_ends_at_a_sequence(self, lived: Node) -> None:
        """`seq:` names places in the log, both ends included."""
        sequences = [int(row[0]) for row in lived.good("history", "claim", "ml/lived-a").rows]
        ran = lived.good(
            "history", "claim", "ml/lived-a",
            "--since", f"seq:{sequences[1]}", "--until", f"seq:{sequences[3]}",
        )  # fmt: skip

        assert [int(row[0]) for row in ran.rows] == sequences[1:4]

    def test_says_that_nothing_happened_in_that_time(self, lived: Node) -> None:
        """An empty time is no error."""
        ran = lived.good("history", "claim", "ml/lived-a", "--until", "2020-01-01")
        assert (ran.out, ran.err) == ("", "nothing in that time\n")
        ran = lived.good("history", "claim", "ml/lived-a", "--until", "2020-01-01", "-o", "json")
        assert ran.json["items"] == []

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--since", "someday"], "'someday' is no time"),
            (["--since", "boot-7"], "the log knows 1 boots"),
            (["-f", "--reverse"], "--watch"),
            (["-f", "--until", "1h"], "--watch"),
            (["-f", "-o", "json"], "--watch"),
        ],
    )
    def test_refuses_what_names_no_time(self, lived: Node, arguments: list[str], says: str) -> None:
        """Exit 2, with the forms that there are."""
        ran = lived.call("history", "node", *arguments)
        assert ran.code == 2
        assert says in ran.err

    def test_finds_a_boot(self) -> None:
        """`boot` is the current boot, `boot-1` the one before; no service is needed to look."""
        with short_directory() as directory, ServiceProcess(directory) as service:
            service.reboot(BOOTS[1])
            service.stop()

            def words(*arguments: str) -> list[str]:
                ran = call("history", "node", "-o", "jsonl", *arguments, *service.options)
                assert ran.code == 0
                return [item["fact"] for item in ran.jsonl]

            everything = words()
            assert everything.count("booted") == 2
            now = words("--since", "boot")
            assert now == everything[len(everything) - len(now) :]
            assert now[0] == "booted"
            assert words("--since", "boot-1").count("booted") == 2


class TestWithoutLog:
    @pytest.mark.parametrize("arguments", [["claim", "a/b"], ["pod", "a/b"], ["node"]])
    def test_cannot_be_read(self, tmp_path: Path, arguments: list[str]) -> None:
        """No log: exit 4; nothing is made where there was none."""
        place = tmp_path / "none"
        error = told(call("history", *arguments, "--state-dir", str(place)), 4)

        assert f"there is no log in {place}" in error
        assert not place.exists()
