"""`claimlet boot`: which boot it is, what waits for it, and what another one would do."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.cli.node import Node, call
from tests.adapters.cli.test_pod import told
from tests.adapters.service_process import BOOTS, ServiceProcess, short_directory


class TestPlan:
    def test_says_what_a_reboot_would_do(self, node: Node) -> None:
        """Claims, their pods and drivers, and the CDI ids that must be there again."""
        node.prepared("planned", "planned-a", "planned-b")
        found = node.good("boot", "plan", "-o", "json").json

        assert found["kind"] == "BootPlan"
        assert {"ml/planned-a", "ml/planned-b"} <= set(found["claims"])
        assert "ml/planned" in found["pods"]
        assert found["reprepare"]["gpu.demo"] == len(found["claims"])
        assert found["cdi_device_ids"] >= 2
        text = node.good("boot", "plan").out
        assert text.startswith("A reboot of node-a now would:\n")
        assert "ml/planned-a" in text

    def test_leaves_what_no_driver_has_prepared(self, node: Node) -> None:
        """A claim that was never prepared loses nothing by a reboot."""
        path = node.manifest("unborn", ["unborn-a"])
        node.failing("prepare", "unborn-a", "not now")
        node.good("pod", "prepare", "-f", str(path))
        node.until_failed("unborn-a")
        found = node.good("boot", "plan", "-o", "json").json
        node.script()

        assert "ml/unborn-a" not in found["claims"]


class TestStatus:
    def test_says_what_waits_after_a_reboot(self) -> None:
        """Claims wait until their pods are asked for again, with or without a service."""
        with short_directory() as directory, ServiceProcess(directory) as service:
            node = Node(service, service.driver(Node.driver_name))
            node.prepared("p", "a")
            found = node.good("boot", "status", "-o", "json").json
            assert found["kind"] == "BootStatus"
            assert (found["boot"], found["waiting"]) == (BOOTS[0], [])

            service.stop()
            service.set_boot(BOOTS[1])
            ran = node.good("boot", "status")
            assert f"boot       {BOOTS[1]}" in ran.out
            assert f"the log still says {BOOTS[0]}" in ran.out
            assert "ml/a" in ran.out

            service.up()
            found = node.good("boot", "status", "-o", "json").json
            assert (found["boot"], found["recorded_boot"]) == (BOOTS[1], BOOTS[1])
            assert found["waiting"] == ["ml/a"]
            status = node.good("pod", "status", "ml/p", "-o", "json").json["items"][0]
            assert status["state"] == "request-again"

    def test_needs_a_boot_id(self, node: Node, tmp_path: Path) -> None:
        """A file that holds none: exit 2, with what names another."""
        bad = tmp_path / "boot"
        bad.write_text("not a boot id!")

        error = told(node.call("boot", "status", "--boot-id-file", str(bad)), 2)
        assert str(bad) in error

    def test_needs_a_log(self, tmp_path: Path) -> None:
        """Exit 4."""
        ran = call("boot", "status", "--state-dir", str(tmp_path / "none"))
        assert "there is no log" in told(ran, 4)
