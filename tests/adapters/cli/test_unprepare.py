"""`claimlet unprepare waive`: a debt is given up by hand, on the record, and settled later."""

from __future__ import annotations

import pytest
from tests.adapters.cli.node import Node
from tests.adapters.cli.test_pod import told


class TestWaive:
    def test_gives_a_debt_up(self, node: Node) -> None:
        """The claim is unprepared, the debt stays on the node's list until it is settled."""
        node.prepared("waived", "waived-a")
        node.stuck("waived", "waived-a", "lost")

        ran = node.good(
            "unprepare", "waive", "ml/waived-a", "--driver", "gpu.demo", "--reason", "replaced"
        )
        assert ran.out == "the debt of gpu.demo for ml/waived-a is waived\n"
        assert node.good("claims", "get", "ml/waived-a", "-o", "json").json["state"] == "unprepared"
        held = node.call("drivers", "can-stop", "gpu.demo", "-o", "jsonl")
        row = next(item for item in held.jsonl if item["claim"] == "waived-a")
        assert row["what"] == "waived"
        assert "replaced" in row["reason"]
        (fact,) = [
            item
            for item in node.good("history", "claim", "ml/waived-a", "-o", "jsonl").jsonl
            if item["fact"] == "debt_waived"
        ]
        assert fact["body"]["why"] == "replaced"
        assert fact["body"]["who"]

        ran = node.good(
            "unprepare", "waive", "ml/waived-a", "--driver", "gpu.demo", "--settled", "-o", "json"
        )
        assert ran.json == {"count": 1}
        again = ["unprepare", "waive", "ml/waived-a", "--driver", "gpu.demo", "--settled"]
        assert node.call(*again).code == 3

    def test_is_refused_while_a_pod_holds_the_claim(self, node: Node) -> None:
        """Devices under running containers are nobody's to give up: exit 1."""
        node.prepared("inuse", "inuse-a")
        ran = node.call(
            "unprepare", "waive", "ml/inuse-a", "--driver", "gpu.demo", "--reason", "no"
        )

        assert ran.code == 1
        assert ran.told[0] == "error"
        assert node.good("claims", "get", "ml/inuse-a", "-o", "json").json["state"] == "prepared"

    @pytest.mark.parametrize(
        "arguments",
        [
            ["ml/c", "--driver", "d"],
            ["ml/c", "--driver", "d", "--reason", " "],
            ["ml/c", "--reason", "x"],
            ["m/l/c", "--driver", "d", "--reason", "x"],
        ],
    )
    def test_needs_a_driver_and_a_reason(self, node: Node, arguments: list[str]) -> None:
        """Exit 2."""
        told(node.call("unprepare", "waive", *arguments), 2)

    def test_does_not_find_an_unknown_claim(self, node: Node) -> None:
        """Exit 3."""
        ran = node.call("unprepare", "waive", "ml/no", "--driver", "d", "--reason", "x")
        assert "there is no claim ml/no" in told(ran, 3)
