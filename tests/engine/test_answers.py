"""Bounds and grammar of what adapters answer: nothing unreadable gets into the log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from claimlet.engine.answers import (
    ANSWER_BYTES_MAX,
    is_cdi_id,
    judge,
    judge_error,
    judge_unprepared,
)
from claimlet.engine.ports import DriverCallError, Failed, Prepared
from claimlet.events.facts import DriverFailed, DriverPrepared
from claimlet.events.values import PreparedDevice


def device(**fields: Any) -> PreparedDevice:
    known: dict[str, Any] = {"pool": "node-a", "device": "gpu-0"}
    return PreparedDevice(**(known | fields))


def prepared(*devices: Any) -> Prepared:
    return Prepared(devices=devices)


class TestGrammar:
    @pytest.mark.rule("R13")
    @pytest.mark.parametrize(
        "text",
        [
            "vendor.com/gpu=0",
            "vendor.com/gpu=a-b_c.d:e",
            "Ve_n-d.or/cl_a.s-s=x",
            "ab/cd=0",
            "k8s.gpu.example.com/gpu=0123-4567-gpu-0",
            "v1/c_1=a:b.c-d_e",
            "gpu.example.com/metadata=uid_request",
        ],
    )
    def test_an_id(self, text: str) -> None:
        """A qualified CDI name has a vendor, a class and a device."""
        assert is_cdi_id(text)

    @pytest.mark.rule("R13")
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "gpu-0",
            "vendor.com/gpu",
            "vendor.com/gpu=",
            "vendor.com=0",
            "/gpu=0",
            "v/gpu=0",
            "vendor.com/g=0",
            "vendor.com/gpu=-0",
            "vendor.com/gpu=0\n",
            "vendor.com/gpu=0 --privileged",
            "vendor.com/gpu=é",
            "1vendor.com/gpu=0",
            "vendor.com-/gpu=0",
            "vendor.com/gpu=0-",
            "vendor.com/gpu=a=b",
            "vendor.com/a/b=c",
            "vendor.com/gpu=0,vendor.com/gpu=1",
        ],
    )
    def test_no_id(self, text: str) -> None:
        """What a runtime would trip over, or read as more than one thing, is no id."""
        assert not is_cdi_id(text)


class TestPrepared:
    def test_takes_what_can_be_stored(self) -> None:
        """A sane answer is returned as it is."""
        answer = prepared(device(requests=("a",), cdi_device_ids=("v1.x/gpu=0",), share_id="s"))

        assert judge(answer) == answer

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (prepared(*[device()] * 257), "too_large"),
            (prepared(device(cdi_device_ids=("v1.x/gpu=0",) * 33)), "too_large"),
            (prepared(device(device="x" * ANSWER_BYTES_MAX)), "too_large"),
            (prepared(device(share_id="x" * ANSWER_BYTES_MAX)), "too_large"),
            (prepared(device(device="\x01" * (ANSWER_BYTES_MAX // 5))), "too_large"),
            (prepared(device(requests=("",) * ANSWER_BYTES_MAX)), "too_large"),
            (prepared(device(cdi_device_ids=("gpu 0",))), "cdi_id"),
            (prepared(device(device="\ud800")), "bad_answer"),
            (prepared(device(device=7)), "bad_answer"),
            (prepared(device(requests=7)), "bad_answer"),
            (prepared(object()), "bad_answer"),
            (Prepared(devices=None), "bad_answer"),  # type: ignore[arg-type]
            (None, "bad_answer"),
            ("yes", "bad_answer"),
        ],
    )
    def test_fails_what_cannot(self, answer: object, code: str) -> None:
        """An answer that is too large, or cannot be stored and read back, is `invalid`."""
        failed = judge(answer)

        assert isinstance(failed, Failed)
        assert (failed.outcome, failed.code) == ("invalid", code)

    def test_the_largest_one_fits_into_a_record(self) -> None:
        """What passes is smaller than a record's bound, with all that stands around it."""
        largest = prepared(*[device(device="\x01" * 150)] * 256)
        answer = judge(largest)

        assert isinstance(answer, Prepared)
        fact = DriverPrepared(driver="x", boot="b", devices=answer.devices)  # type: ignore[arg-type]
        assert ANSWER_BYTES_MAX * 0.8 < len(msgspec.json.encode(fact)) < 2 * ANSWER_BYTES_MAX


class TestFailed:
    @pytest.mark.parametrize(
        "failed",
        [
            Failed("x" * 100_000),
            Failed("\ud800"),
            Failed(7),  # type: ignore[arg-type]
            Failed("x", outcome="exploded"),  # type: ignore[arg-type]
            Failed("x", outcome=None),  # type: ignore[arg-type]
            Failed("x", code="y" * 1000),
            Failed("x", code=None),  # type: ignore[arg-type]
        ],
    )
    @pytest.mark.parametrize("of", [judge, judge_unprepared])
    def test_is_made_fit_to_store(self, failed: Failed, of: Any) -> None:
        """Whatever a failure says, the fact of it can be stored and read back."""
        sane = of(failed)
        fact = DriverFailed(driver="d", outcome=sane.outcome, code=sane.code, text=sane.text)  # type: ignore[arg-type]
        data = msgspec.json.encode(fact)

        assert msgspec.json.decode(data, type=DriverFailed) == fact
        assert len(data) < 30_000

    def test_an_unprepare_is_done_or_failed(self) -> None:
        """None is a yes; anything that is neither None nor a failure is no yes."""
        nonsense = judge_unprepared("")

        assert judge_unprepared(None) is None
        assert judge_unprepared(Failed("no")) == Failed("no")
        assert nonsense is not None
        assert nonsense.outcome == "invalid"

    def test_an_error_of_the_call(self) -> None:
        """The error of a whole call keeps its outcome and code."""
        error = DriverCallError("gone", outcome="unreachable", code="UNAVAILABLE")

        assert judge_error(error) == Failed("gone", outcome="unreachable", code="UNAVAILABLE")
