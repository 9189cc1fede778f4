"""`claimlet checkpoint`: a kubelet's claims taken over by a running service, and handed back."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from tests.adapters.cli.node import Node, Ran, call
from tests.adapters.service_process import ServiceProcess, short_directory

POD_UID = "139cdb46-f989-4f17-9561-ca10cfb509a6"


@pytest.fixture(scope="module")
def taker() -> Iterator[Node]:
    """Give a node of this module's own: what it holds is written whole."""
    with short_directory() as directory, ServiceProcess(directory) as service:
        yield Node(service, service.driver(Node.driver_name))


def kubelets_file(path: Path, *names: str) -> Path:
    """Write a checkpoint with a claim of each name, prepared by the node's driver."""
    claims = [
        {
            "ClaimUID": f"{name}-uid",
            "ClaimName": name,
            "Namespace": "ml",
            "PodUIDs": {POD_UID: {}},
            "DriverState": {
                Node.driver_name: {
                    "Devices": [
                        {
                            "PoolName": "pool",
                            "DeviceName": name,
                            "RequestNames": ["devices"],
                            "CDIDeviceIDs": [f"example.com/gpu={name}"],
                        }
                    ]
                }
            },
        }
        for name in names
    ]
    inner = {
        "kind": "DRACheckpoint",
        "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": claims,
    }
    data = json.dumps(inner, separators=(",", ":"))
    path.write_text(json.dumps({"Data": data, "Checksum": crc32(data.encode())}))
    return path


def told(ran: Ran) -> str:
    """Return the line of a command that must fail."""
    assert ran.code != 0, ran
    assert "error" in ran.told
    return ran.err


class TestCheckpoint:
    @pytest.mark.scenario("R15", "R16")
    def test_there_and_back(self, taker: Node, tmp_path: Path) -> None:
        """A kubelet's claims are held by one command, handed back by the next, then ended."""
        file = kubelets_file(tmp_path / "dra_manager_state", "k1", "k2")
        back = tmp_path / "back"

        assert taker.good("checkpoint", "import", str(file)).out == "imported: 2 claims\n"
        assert taker.good("checkpoint", "import", str(file)).out == (
            "imported: 0 claims; known already: 2\n"
        )
        taker.good("checkpoint", "export", "-o", str(back))
        assert json.loads(back.read_bytes()) == json.loads(file.read_bytes())
        assert stat.S_IMODE(back.stat().st_mode) == 0o600
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

        taker.good("pod", "unprepare", f"ml/{POD_UID}", "--wait")
        assert json.loads(taker.good("checkpoint", "export").out)["Checksum"] == 2361995144
        history = taker.good("history", "claim", "ml/k1", "-o", "json").json["items"]
        assert history[0]["fact"] == "restored"
        assert history[0]["body"]["why"].startswith("kubelet checkpoint, sha256 ")
        assert history[0]["actor"].startswith("user/")

    def test_an_open_claim_is_refused(self, taker: Node, tmp_path: Path) -> None:
        """A claim that the node holds has the whole file refused, by name and with a hint."""
        taker.prepared("p-open", "open")
        file = kubelets_file(tmp_path / "state", "k3", "open")
        ran = taker.call("checkpoint", "import", str(file))

        assert "claim ml/open: it is open here" in told(ran)
        assert "hint: nothing was imported" in ran.err
        assert ran.code == 1
        assert "ml/k3" not in taker.service.claims()
        taker.good("pod", "unprepare", "ml/p-open", "--wait")

    def test_a_damaged_file_is_refused(self, taker: Node, tmp_path: Path) -> None:
        """A checksum that does not fit is told, from stdin as well; nothing is stored."""
        content = kubelets_file(tmp_path / "state", "k4").read_bytes().replace(b"k4", b"k5")
        ran = taker.call("checkpoint", "import", "-", stdin=content)

        assert "error: the checkpoint is damaged: its checksum is" in told(ran)
        assert ran.code == 2

    def test_an_import_needs_the_service(self, tmp_path: Path) -> None:
        """Only the log's one writer takes claims over; without it nothing is done."""
        file = kubelets_file(tmp_path / "state", "k6")
        ran = call("checkpoint", "import", str(file), "--state-dir", str(tmp_path / "none"))
        assert "no claimlet service runs" in told(ran)
        assert ran.code == 4
        assert not (tmp_path / "none").exists()

    def test_a_file_that_cannot_be_read_or_written(self, taker: Node, tmp_path: Path) -> None:
        """A missing file, and a directory that is not there, are one line each."""
        assert "none: No such file" in told(taker.call("checkpoint", "import", f"{tmp_path}/none"))
        ran = taker.call("checkpoint", "export", "-o", f"{tmp_path}/none/state")
        assert "No such file or directory" in told(ran)
