"""`claimlet pod`: wishes and their end, what is written about them, and how they are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.adapters.cli.node import Node, Ran

CLAIM_FIELDS = {
    "namespace", "name", "uid", "state", "pods", "drivers", "owed", "last_error",
}  # fmt: skip
STATES = {"generated", "bound", "prepared", "needs-reprepare-after-boot", "unprepared"}
DRIVER_STATES = {"pending", "prepared", "failed", "unpreparing", "unprepared"}


def check_claim(claim: dict[str, Any]) -> None:
    """Check *claim* against the form that other programs rely on."""
    assert claim.keys() >= CLAIM_FIELDS
    assert claim["state"] in STATES
    for pod in claim["pods"]:
        assert pod.keys() == {"namespace", "name", "uid"}
    for driver in claim["drivers"]:
        assert driver.keys() >= {"name", "state", "devices"}
        assert driver["state"] in DRIVER_STATES
        for device in driver["devices"]:
            assert device.keys() >= {"pool", "device", "requests", "cdi_device_ids"}
    for owed in claim["owed"]:
        assert owed.keys() == {"driver", "operation", "since", "attempt", "next_retry", "reason"}
        assert owed["operation"] in {"prepare", "unprepare"}
    if claim["last_error"] is not None:
        assert claim["last_error"].keys() == {"driver", "code", "text", "time"}


def told(ran: Ran, code: int) -> str:
    """Return the error of a command that wrote one line of it, and a hint."""
    assert ran.code == code, ran
    lines = [line for line in ran.err.splitlines() if not line.startswith("note: ")]
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], ran
    return lines[0]


class TestPrepare:
    def test_writes_the_pod_and_its_claims(self, node: Node) -> None:
        """`-o json` has the form that other programs rely on."""
        found = node.prepared("form", "form-a", "form-b")

        assert found["kind"] == "PodClaims"
        assert found["pod"].keys() == {"namespace", "name", "uid"}
        assert (found["pod"]["namespace"], found["pod"]["name"]) == ("ml", "form")
        assert [claim["name"] for claim in found["claims"]] == ["form-a", "form-b"]
        for claim in found["claims"]:
            check_claim(claim)
            assert claim["state"] == "prepared"
            assert claim["pods"] == [found["pod"]]
            (driver,) = claim["drivers"]
            assert (driver["name"], driver["state"]) == ("gpu.demo", "prepared")
            (device,) = driver["devices"]
            assert device["device"] == claim["name"]
            assert device["requests"] == ["devices"]
            assert device["cdi_device_ids"][0].startswith("k8s.gpu.demo/device=")
            assert not claim["owed"]
            assert claim["last_error"] is None

    def test_is_the_same_wish_when_asked_again(self, node: Node) -> None:
        """Objects without UID mean the live ones, and nobody is called again."""
        first = node.prepared("again", "again-a")

        assert node.prepared("again", "again-a")["pod"] == first["pod"]
        assert len(node.driver.calls("prepare", "again-a")) == 1

    def test_writes_a_table_for_people(self, node: Node) -> None:
        """The table names the claims, their devices and CDI ids; --no-headers leaves its head."""
        path = str(node.manifest("table", ["table-a"]))
        ran = node.good("pod", "prepare", "-f", path, "--wait")

        first, head, row = ran.out.splitlines()
        assert first == "pod ml/table: prepared"
        assert head.split() == ["CLAIM", "STATE", "DEVICES", "CDI"]
        assert row.split()[:3] == ["table-a", "prepared", "gpu.demo/pool/table-a"]
        bare = node.good("pod", "prepare", "-f", path, "--wait", "--no-headers")
        assert "CLAIM" not in bare.out

    def test_writes_yaml_and_names(self, node: Node) -> None:
        """Yaml holds what json holds; names are for scripts."""
        path = str(node.manifest("forms", ["forms-a"]))
        ran = node.good("pod", "prepare", "-f", path, "--wait", "-o", "yaml")

        assert yaml.safe_load(ran.out)["kind"] == "PodClaims"
        ran = node.good("pod", "prepare", "-f", path, "--wait", "-o", "name")
        assert ran.out == "pod/ml/forms\n"

    def test_prints_what_a_container_runtime_takes(self, node: Node) -> None:
        """`--cdi-args` are podman's and nerdctl's options, each device once."""
        found = node.prepared("cdi", "cdi-a", "cdi-b")
        ids = [c["drivers"][0]["devices"][0]["cdi_device_ids"][0] for c in found["claims"]]
        path = str(node.service.directory / "cdi.json")

        ran = node.good("pod", "prepare", "-f", path, "--wait", "--cdi-args")
        assert ran.out == f"--device {ids[0]} --device {ids[1]}\n"
        ran = node.good("pod", "prepare", "-f", path, "--wait", "--cdi-annotations")
        assert ran.out.splitlines() == [
            f"cdi.k8s.io/claimlet_{claim['uid']}={cdi_id}"
            for claim, cdi_id in zip(found["claims"], ids, strict=True)
        ]

    def test_shows_a_claim_that_is_skipped(self, node: Node) -> None:
        """A claim that no container uses is there and not prepared, and has no CDI ids."""
        path = str(node.manifest("skip", ["skip-a", "skip-b"], unused=["skip-b"]))
        found = node.good("pod", "prepare", "-f", path, "--wait", "-o", "json").json

        assert {c["name"]: c["state"] for c in found["claims"]} == {
            "skip-a": "prepared",
            "skip-b": "bound",
        }
        ran = node.good("pod", "prepare", "-f", path, "--wait", "--cdi-args")
        assert "skip-b" not in ran.out

    def test_reads_several_files_and_stdin(self, node: Node) -> None:
        """`-f` may be given several times, `-` is stdin, and YAML is read as well as JSON."""
        path = node.manifest("parts", ["parts-a"])
        pod, claim = json.loads(path.read_text())["items"]
        path.write_text(yaml.safe_dump(claim))

        ran = node.call(
            "pod", "prepare", "-f", "-", "-f", str(path), "--wait", "-o", "json",
            stdin=yaml.safe_dump(pod).encode(),
        )  # fmt: skip
        assert ran.code == 0, ran
        assert ran.json["state"] == "prepared"

    def test_takes_several_pods(self, node: Node) -> None:
        """Several pods are written as one list."""
        paths = [str(node.manifest(f"many-{n}", [f"many-{n}-a"])) for n in range(2)]
        ran = node.good("pod", "prepare", "-f", paths[0], "-f", paths[1], "--wait", "-o", "json")

        assert ran.json["kind"] == "PodClaimsList"
        assert [item["pod"]["name"] for item in ran.json["items"]] == ["many-0", "many-1"]
        assert {item["state"] for item in ran.json["items"]} == {"prepared"}

    def test_returns_at_once_without_wait(self, node: Node) -> None:
        """A wish that is recorded is success, whatever comes of it."""
        path = str(node.manifest("slow", ["slow-a"]))
        node.failing("prepare", "slow-a", "busy")
        ran = node.good("pod", "prepare", "-f", path, "-o", "json")

        assert ran.json["state"] == "pending"
        assert node.good("pod", "unprepare", "ml/slow", "--wait").code == 0

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("{", "line "),
            ("kind: Pod\nmetadata: [", "line "),
            ("kind: Deployment\nmetadata: {name: x}\n", "only Pods and ResourceClaims"),
            ("kind: ResourceClaim\nmetadata: {name: x}\n", "no Pod among the objects"),
            ("", "no objects in it"),
            ("- 1\n", "no object but list"),
            ("kind: Pod\nmetadata: {name: 7}\n", "name"),
        ],
    )
    def test_says_what_is_wrong_with_a_file(
        self, node: Node, tmp_path: Path, *, text: str, says: str
    ) -> None:
        """A file that cannot be used is a usage error that says why."""
        path = tmp_path / "pod.yaml"
        path.write_text(text)

        ran = node.call("pod", "prepare", "-f", str(path))
        assert ran.code == 2, ran
        assert ran.told[0] == "error"
        assert says in ran.err

    def test_says_that_a_file_is_not_there(self, node: Node, tmp_path: Path) -> None:
        """The file is named."""
        ran = node.call("pod", "prepare", "-f", str(tmp_path / "none.yaml"))
        assert told(ran, 2) == f"error: {tmp_path}/none.yaml: No such file or directory"

    def test_reads_no_more_of_a_file_than_it_takes(self, node: Node) -> None:
        """A file without end is refused like any that is too large."""
        ran = node.call("pod", "prepare", "-f", "/dev/zero")
        assert ran.code == 2
        assert "/dev/zero: " in ran.err

    @pytest.mark.parametrize("option", ["--once", "--cdi-args", "--cdi-annotations"])
    def test_needs_wait_for_some_options(self, node: Node, option: str) -> None:
        """What only a finished prepare can give needs --wait."""
        path = str(node.manifest("wait", ["wait-a"]))
        ran = node.call("pod", "prepare", "-f", path, option)
        assert ran.code == 2
        assert option in ran.err

    def test_says_why_a_pod_is_refused(self, node: Node) -> None:
        """A refused pod ends with 1 and all reasons; as json they are there too."""
        path = str(node.manifest("refused", ["refused-a"], driver="none.example.com"))

        error = told(node.call("pod", "prepare", "-f", path), 1)
        assert "ml/refused: " in error
        assert "none.example.com, which is not registered" in error
        ran = node.call("pod", "prepare", "-f", path, "-o", "json")
        assert ran.code == 1
        assert ran.json["state"] == "refused"
        assert "none.example.com" in ran.json["reasons"][0]

    def test_gives_up_on_a_refused_pod_in_time(self, node: Node) -> None:
        """`--wait` asks again until its timeout; nothing is left to withdraw."""
        path = str(node.manifest("refused", ["refused-a"], driver="none.example.com"))
        ran = node.call("pod", "prepare", "-f", path, "--wait", "--timeout", "0.4")

        assert "not prepared after 0.4 s" in told(ran, 5)
        assert "nothing is stored" in ran.err

    def test_keeps_the_wish_when_its_time_is_up(self, node: Node) -> None:
        """Exit 5 says that it is still wanted and how to withdraw it; it comes true later."""
        path = str(node.manifest("late", ["late-a"]))
        node.failing("prepare", "late-a", "no power")
        node.good("pod", "prepare", "-f", path)
        node.until_failed("late-a")
        ran = node.call("pod", "prepare", "-f", path, "--wait", "--timeout", "0.4", "-o", "json")

        error = told(ran, 5)
        assert "ml/late" in error
        assert "no power" in error
        assert "still wanted; withdraw with: claimlet pod unprepare ml/late" in ran.err
        (claim,) = ran.json["claims"]
        check_claim(claim)
        assert claim["owed"][0]["operation"] == "prepare"
        assert claim["last_error"]["text"] == "no power"
        node.script()
        assert node.prepared("late", "late-a")

    def test_withdraws_the_wish_with_once(self, node: Node) -> None:
        """`--once` leaves nothing wanted behind."""
        path = str(node.manifest("once", ["once-a"]))
        node.failing("prepare", "once-a", "no power")
        ran = node.call("pod", "prepare", "-f", path, "--wait", "--once", "--timeout", "0.3")

        assert "not prepared" in told(ran, 5)
        assert "the wish is withdrawn" in ran.err
        state = node.call("pod", "status", "ml/once", "-o", "json")
        assert state.code == 3 or state.json["items"][0]["state"] == "unpreparing"


class TestUnprepare:
    def test_writes_the_pod_and_its_claims(self, node: Node) -> None:
        """`--wait -o json` gives the pod closed, with its claims as they ended."""
        node.prepared("end", "end-a")
        ran = node.good("pod", "unprepare", "ml/end", "--wait", "-o", "json")

        assert (ran.json["kind"], ran.json["state"]) == ("PodClaims", "closed")
        (claim,) = ran.json["claims"]
        check_claim(claim)
        assert claim["state"] == "unprepared"
        assert not claim["pods"]
        assert len(node.driver.calls("unprepare", "end-a")) == 1

    def test_takes_the_name_in_both_forms(self, node: Node) -> None:
        """NS/NAME, or NAME with -n."""
        node.prepared("both", "both-a")
        ran = node.good("pod", "unprepare", "both", "-n", "ml", "--wait")

        assert ran.out.splitlines()[0] == "pod ml/both: closed"

    def test_has_nothing_to_do_for_an_unknown_pod(self, node: Node) -> None:
        """What is gone already is no error, and says so."""
        ran = node.good("pod", "unprepare", "ml/nobody", "--wait", "-o", "json")

        assert ran.json["state"] == "unknown"
        assert ran.told == ["note"]

    def test_says_what_is_still_owed_in_time(self, node: Node) -> None:
        """Exit 5 names claim, driver and reason; it goes on by itself."""
        node.prepared("stuck", "stuck-a")
        node.stuck("stuck", "stuck-a", "in use")
        ran = node.call("pod", "unprepare", "ml/stuck", "--wait", "--timeout", "0.4")

        error = told(ran, 5)
        assert "stuck-a: gpu.demo" in error
        assert "in use" in error
        node.script()
        node.good("pod", "unprepare", "ml/stuck", "--wait")

    @pytest.mark.parametrize(
        "arguments", [["a/b/c"], ["/a"], ["a/"], [""], ["a/b", "-n", "c"], ["a", "-n", ""], []]
    )
    def test_refuses_a_bad_name(self, node: Node, arguments: list[str]) -> None:
        """A name is NAMESPACE/NAME, or NAME with -n NAMESPACE."""
        ran = node.call("pod", "unprepare", *arguments)
        assert ran.code == 2, ran
        assert ran.told == ["error", "hint"]

    def test_asks_which_of_several_pods_is_meant(self, node: Node) -> None:
        """Two open pods of one name: exit 2 with the list, and --uid chooses."""
        path = node.manifest("twin", ["twin-a"])
        documents = json.loads(path.read_text())
        for uid in ("uid-1", "uid-2"):
            documents["items"][0]["metadata"]["uid"] = uid
            path.write_text(json.dumps(documents))
            node.good("pod", "prepare", "-f", str(path), "--wait")

        error = told(node.call("pod", "unprepare", "ml/twin"), 2)
        assert "uid-1" in error
        assert "uid-2" in error
        for uid in ("uid-1", "uid-2"):
            ran = node.good("pod", "unprepare", "ml/twin", "--uid", uid, "--wait", "-o", "json")
            assert ran.json["pod"]["uid"] == uid


class TestStatus:
    def test_lists_the_pods_that_are_wanted(self, node: Node) -> None:
        """Each has its state; refused ones have their reasons."""
        node.prepared("list", "list-a")
        node.call(
            "pod", "prepare", "-f", str(node.manifest("no", ["no-a"], driver="no.example.com"))
        )

        rows = {row[1]: row for row in node.good("pod", "status", "-n", "ml").rows}
        assert rows["list"][2] == "prepared"
        assert "no.example.com" in rows["no"][-1]

    @pytest.mark.parametrize("form", ["table", "wide", "json", "jsonl", "yaml", "name"])
    def test_shows_one_pod_in_each_form(self, node: Node, form: str) -> None:
        """All forms are about the same pod."""
        node.prepared("one", "one-a")
        ran = node.good("pod", "status", "ml/one", "-o", form)

        if form == "json":
            assert ran.json["kind"] == "PodList"
            assert ran.json["items"][0]["name"] == "one"
        elif form == "jsonl":
            assert ran.jsonl[0]["state"] == "prepared"
        elif form == "name":
            assert ran.out == "pod/ml/one\n"
        else:
            assert "one" in ran.out

    def test_does_not_find_an_unknown_pod(self, node: Node) -> None:
        """Exit 3, and where to look instead."""
        assert "ml/nobody" in told(node.call("pod", "status", "ml/nobody"), 3)


class TestWithoutService:
    def test_orders_need_the_service(self, tmp_path: Path, node: Node) -> None:
        """No service: exit 4, one line and what to do."""
        from tests.adapters.cli.node import call

        path = str(node.manifest("nowhere", ["nowhere-a"]))
        options = ("--state-dir", str(tmp_path), "--node", "node-a")

        assert "no claimlet service" in told(call("pod", "prepare", "-f", path, *options), 4)
        assert "no claimlet service" in told(call("pod", "unprepare", "a/b", *options), 4)
