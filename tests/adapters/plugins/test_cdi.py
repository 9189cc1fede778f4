"""CDI ids are looked up as a runtime would; what cannot be read defines nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from claimlet.adapters.plugins.cdi import CdiFiles, CheckedDrivers
from claimlet.engine.ports import Claim, DriverInstance, Failed, Prepared
from claimlet.events.values import (
    Allocation,
    ClaimRef,
    ClaimUid,
    DriverName,
    PreparedDevice,
)

KIND = "example.com/gpu"
GPU = DriverName("gpu.example.com")


def spec(*devices: str, kind: str = KIND) -> str:
    """Return a CDI file's text."""
    edits = {"env": ["A=1"]}
    found = [{"name": name, "containerEdits": edits} for name in devices]
    return json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": found})


class TestCdiFiles:
    @pytest.mark.parametrize("name", ["a.json", "a.yaml"])
    def test_finds_what_a_file_defines(self, tmp_path: Path, name: str) -> None:
        """An id is the file's kind and a device's name; JSON and YAML are read."""
        (tmp_path / name).write_text(spec("a"))
        faults = CdiFiles([tmp_path]).faults([f"{KIND}=a", f"{KIND}=b"])

        assert faults == {f"{KIND}=b": "cdi_unresolved"}

    def test_reads_yaml(self, tmp_path: Path) -> None:
        """Block YAML, as most drivers write it, is read."""
        text = f"cdiVersion: 0.3.0\nkind: {KIND}\ndevices:\n- name: a\n  containerEdits: {{}}\n"
        (tmp_path / "a.yaml").write_text(text)

        assert CdiFiles([tmp_path]).faults([f"{KIND}=a"]) == {}

    def test_two_files_of_one_directory_are_a_conflict(self, tmp_path: Path) -> None:
        """Runtimes take an id that two files of one directory define for none."""
        for name in ("a.json", "b.json"):
            (tmp_path / name).write_text(spec("a"))

        assert CdiFiles([tmp_path]).faults([f"{KIND}=a"]) == {f"{KIND}=a": "cdi_conflict"}

    def test_a_later_directory_wins(self, tmp_path: Path) -> None:
        """The same id in two directories is no conflict, and a missing directory is empty."""
        for name in ("etc", "run"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "a.json").write_text(spec("a"))
        files = CdiFiles([tmp_path / "etc", tmp_path / "run", tmp_path / "nowhere"])

        assert files.faults([f"{KIND}=a"]) == {}

    def test_sees_what_changes(self, tmp_path: Path) -> None:
        """A file that came, was replaced or went is seen at the next look."""
        files, path = CdiFiles([tmp_path]), tmp_path / "a.json"
        looks = [files.faults([f"{KIND}=a"])]
        path.write_text(spec("a"))
        looks.append(files.faults([f"{KIND}=a"]))
        path.write_text(spec("other"))
        looks.append(files.faults([f"{KIND}=a"]))
        path.write_text(spec("a"))
        looks.append(files.faults([f"{KIND}=a"]))
        path.unlink()
        looks.append(files.faults([f"{KIND}=a"]))

        assert [bool(look) for look in looks] == [True, False, True, False, True]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            '{"kind": 1}',
            "a: &a [*a]",
            "\0",
            "[" * 50_000,
            '{"cdiVersion": "0.6.0", "kind": "example.com/gpu"}',
            '{"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": [{"name": "a b"}]}',
            "x" * (1024 * 1024 + 1),
        ],
        ids=[
            "empty",
            "cut",
            "list",
            "no-id",
            "alias",
            "nul",
            "deep",
            "no-devices",
            "bad-name",
            "large",
        ],
    )
    def test_what_cannot_be_read_defines_nothing(self, tmp_path: Path, text: str) -> None:
        """A broken or hostile file is no error: the others count."""
        (tmp_path / "bad.yaml").write_text(text)
        (tmp_path / "good.json").write_text(spec("a"))

        assert CdiFiles([tmp_path]).faults([f"{KIND}=a", f"{KIND}=b"]) == {
            f"{KIND}=b": "cdi_unresolved"
        }


class Driver:
    """A driver that says yes to one claim, and no to the others."""

    driver = GPU

    async def prepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Prepared | Failed]:
        ids = (f"{KIND}=a", f"{KIND}=b")
        device = PreparedDevice(pool="p", device="d", cdi_device_ids=ids)
        good, *others = (claim.uid for claim in claims)
        return {good: Prepared(devices=(device,))} | {uid: Failed("no") for uid in others}

    async def unprepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Failed | None]:
        return {claim.uid: None for claim in claims}

    def find(self, driver: DriverName) -> DriverInstance | None:
        if driver != GPU:
            return None
        return DriverInstance(driver=GPU, instance="1", endpoint="/s", adapter=self)


async def test_answers_are_looked_up(tmp_path: Path) -> None:
    """A yes says which of its ids nobody could use; a no and an unprepare pass as they are."""
    (tmp_path / "a.json").write_text(spec("a"))
    drivers = CheckedDrivers(Driver(), CdiFiles([tmp_path]))
    found = drivers.find(GPU)
    assert found is not None
    claims = [
        Claim(
            ref=ClaimRef(uid=ClaimUid(uid), namespace="ml", name=uid),
            allocation=Allocation(devices=(), digest=""),
        )
        for uid in ("u1", "u2")
    ]
    answers = await found.adapter.prepare(claims, timeout_seconds=1)
    ends = await found.adapter.unprepare(claims, timeout_seconds=1)
    yes = answers[ClaimUid("u1")]

    assert isinstance(yes, Prepared)
    assert yes.cdi_faults == {f"{KIND}=b": "cdi_unresolved"}
    assert answers[ClaimUid("u2")] == Failed("no")
    assert set(ends.values()) == {None}
    assert found.adapter.driver == GPU
    assert drivers.find(DriverName("other.example.com")) is None
