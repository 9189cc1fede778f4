"""`claimlet state`: what the node held at any time, and what changed between two."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.adapters.cli.node import Node, call
from tests.adapters.cli.test_pod import told
from tests.adapters.service_process import short_directory


@pytest.fixture
def life(node: Node) -> dict[str, int]:
    """Have a pod that has lived once for all tests; return the place of each fact of its claim."""
    if not node.driver.calls("unprepare", "travelled-a"):
        node.prepared("travelled", "travelled-a")
        node.good("pod", "unprepare", "ml/travelled", "--wait")
    facts = node.good("history", "claim", "ml/travelled-a", "-o", "jsonl").jsonl
    return {fact["fact"]: fact["sequence"] for fact in facts}


def claim_at(node: Node, place: str) -> dict[str, Any] | None:
    """Return the claim as it was."""
    state = node.good("state", "show", "--at", place, "-o", "json").json
    return next((c for c in state["claims"] if c["name"] == "travelled-a"), None)


class TestShow:
    def test_is_the_state_at_a_sequence(self, node: Node, life: dict[str, int]) -> None:
        """Each fact up to there counts, that one too, and none after it."""
        states = {
            word: found["state"]
            for word, sequence in life.items()
            if (found := claim_at(node, f"seq:{sequence}"))
        }

        assert claim_at(node, f"seq:{life['generated'] - 1}") is None
        assert states["generated"] == "generated"
        assert states["driver_prepared"] == "bound"
        assert states["prepared"] == "prepared"
        assert states["unprepared"] == "unprepared"

    def test_is_the_state_at_a_time(self, node: Node, life: dict[str, int]) -> None:
        """What the log held at that time, as people write it: a time, or how long ago."""
        facts = node.good("history", "claim", "ml/travelled-a", "-o", "jsonl").jsonl
        times = {fact["fact"]: fact["ts"] for fact in facts}
        found = claim_at(node, times["prepared"])

        assert found is not None
        assert found["state"] == "prepared"
        state = node.good("state", "show", "--at", "7d", "-o", "json").json
        assert (state["sequence"], state["claims"], state["is_live"]) == (0, [], False)

    def test_is_the_end_of_the_log_by_default(self, node: Node, life: dict[str, int]) -> None:
        """The same digest as the running service's, from the log alone."""
        state = node.good("state", "show", "-o", "yaml")

        assert yaml.safe_load(state.out)["digest"] == node.service.state().digest

    def test_is_told_to_people(self, node: Node, life: dict[str, int]) -> None:
        """The place, then a table of each kind of thing that there was."""
        ran = node.good("state", "show", "--at", f"seq:{life['prepared']}")
        lines = ran.out.splitlines()

        assert lines[0].split() == ["node", "node-a"]
        assert lines[1].startswith(f"at       fact {life['prepared']}, ")
        assert "   travelled-a   " in ran.out
        assert "\nNAMESPACE   POD " in ran.out
        assert "\nDRIVER " in ran.out
        empty = node.good("state", "show", "--at", "7d").out
        assert "before the first fact" in empty
        assert "NAMESPACE" not in empty

    def test_of_a_boot_that_was_not(self, node: Node) -> None:
        """A boot that the log does not know is a usage error."""
        assert "none of them boot-7" in told(node.call("state", "show", "--at", "boot-7"), 2)

    def test_needs_a_log(self) -> None:
        """Without a log there is nothing to show."""
        with short_directory() as directory:
            ran = call("state", "show", "--state-dir", str(directory / "none"), "--node", "node-a")

            assert "there is no log" in told(ran, 4)


class TestDiff:
    def test_names_every_field(self, node: Node, life: dict[str, int]) -> None:
        """Before and after, for the claim, its driver's part and its pod."""
        ran = node.good(
            *("state", "diff", "--from", f"seq:{life['bound']}"),
            *("--to", f"seq:{life['prepared']}", "-o", "json"),
        )
        found = {
            (item["kind"], item["name"], item["field"]): (item["before"], item["after"])
            for item in ran.json["items"]
        }

        assert ran.json["kind"] == "ChangeList"
        assert found["claim", "ml/travelled-a", "state"] == ("bound", "prepared")
        assert found["claim", "ml/travelled-a", "debts"] == ([], ["gpu.demo"])
        [before, after] = found["claim", "ml/travelled-a", "drivers.gpu.demo.cdi_device_ids"]
        assert (before, len(after)) == ([], 1)
        assert found["pod", "ml/travelled", "state"] == (None, "prepared")

    def test_goes_to_the_end_by_default(self, node: Node, life: dict[str, int]) -> None:
        """Without --to what is there now counts; between a time and itself there is nothing."""
        ran = node.good("state", "diff", "--from", f"seq:{life['prepared']}")
        assert ran.out.splitlines()[0].split() == ["ABOUT", "FIELD", "BEFORE", "AFTER"]
        assert any(
            row[:2] == ["claim ml/travelled-a", "state"] and row[2] == "prepared"
            for row in ran.rows
        )
        place = f"seq:{life['prepared']}"
        ran = node.good("state", "diff", "--from", place, "--to", place)
        assert (ran.out, ran.err) == ("", "nothing differs\n")
