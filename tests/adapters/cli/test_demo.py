"""`claimlet demo`: it shows what it says, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.service_process import eventually, short_directory


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory for temporary files."""
    with short_directory() as directory:
        yield directory


def start(place: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """Start a demo whose directory is made in *place*."""
    return subprocess.Popen(
        [sys.executable, "-m", "claimlet", "demo", *arguments],
        env=os.environ | {"TMPDIR": str(place)} | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def running(place: Path) -> list[str]:
    """Return the command lines of processes that have to do with *place*."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_text().replace("\0", " ")
        except OSError:
            continue
        if str(place) in line:
            found.append(line)
    return found


class TestDemo:
    def test_shows_a_pods_life(self, place: Path) -> None:
        """Each act is told; a log is kept on request, and can be looked at."""
        # What is set on this machine has no influence on what is shown.
        process = start(place, "--keep", CLAIMLET_PREPARE__REPREPARE_ON="start", CLAIMLET_NODE="x")
        out, err = process.communicate(timeout=60)

        assert process.returncode == 0, err
        acts = [
            "the service has started",
            "a driver has registered",
            "pod ml/train-a needs 2 claims",
            "pod web/tts-0 needs 1 claim",
            "pod ml/train-a is force-deleted",
            "kill -9 of the service",
            "reboot: all killed",
            "the driver is back",
            "pod web/tts-0 is deleted",
            "the service has stopped",
        ]
        places = [out.index(act) for act in acts]
        assert places == sorted(places)
        digests = re.search(r"state digest (\w+) before, (\w+) after: equal", out)
        assert digests
        assert digests[1] == digests[2]
        rows = [line for line in out.splitlines() if line.startswith("  gpu-")]
        assert [row.split()[-1] for row in rows] == ["ml/train-a", "ml/train-a", "web/tts-0"]
        assert all(glyph in rows[2] for glyph in "░▓█◇┊")
        assert not running(place)
        self._check_kept(place, out)

    def _check_kept(self, place: Path, out: str) -> None:
        (kept,) = place.iterdir()
        lines = [line for line in out.splitlines() if line.startswith("export ")]
        exports = dict(shlex.split(line)[1].split("=", 1) for line in lines)
        assert exports["CLAIMLET_STATE_DIR"] == str(kept / "state")
        ran = subprocess.run(
            [sys.executable, "-m", "claimlet", "history", "pod", "web/tts-0", "-o", "jsonl"],
            env=os.environ | exports,
            capture_output=True,
            check=True,
        )
        assert ran.stdout.count(b'"fact":"driver_prepared"') == 2

    @pytest.mark.parametrize(
        ("number", "after"),
        [(signal.SIGINT, "pod ml/train-a needs"), (signal.SIGTERM, "the service has started")],
    )
    def test_leaves_nothing_when_it_is_interrupted(
        self, place: Path, *, number: signal.Signals, after: str
    ) -> None:
        """Ctrl-C and SIGTERM end every process and remove the directory: exit 130."""
        process = start(place, PYTHONUNBUFFERED="1")
        assert process.stdout is not None
        for line in process.stdout:
            if after in line:
                break
        process.send_signal(number)
        _, err = process.communicate(timeout=60)

        assert process.returncode == 130
        assert "Traceback" not in err
        assert not list(place.iterdir())
        eventually(lambda: not running(place), f"nothing runs, but {running(place)}")

    def test_says_what_it_did_not_see(self, place: Path) -> None:
        """What cannot be shown ends it with 1, the reason and what to do; nothing is left."""
        process = start(place, CLAIMLET_NATS_SERVER="/bin/false")
        _, err = process.communicate(timeout=60)

        assert process.returncode == 1
        lines = err.splitlines()
        assert lines[0].startswith("error: a process ended before the service answers: ")
        assert "log's server" in lines[0]
        assert lines[1] == "hint: claimlet demo --keep keeps the logs of the service and the driver"
        assert not list(place.iterdir())

    def test_needs_a_server(self, place: Path) -> None:
        """Without a nats-server it ends before it began: exit 4."""
        process = start(place, CLAIMLET_NATS_SERVER="/nowhere")
        out, err = process.communicate(timeout=60)

        assert (process.returncode, out) == (4, "")
        assert "no nats-server program" in err
