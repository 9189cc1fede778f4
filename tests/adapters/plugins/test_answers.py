"""What a driver's answer means for each claim."""

from __future__ import annotations

import pytest
from tests.adapters.plugins.node import claims

from claimlet.adapters.plugins.answers import read_prepare, read_unprepare
from claimlet.adapters.plugins.wire import V1, ClaimAnswer, encode_prepare, encode_unprepare
from claimlet.engine.ports import Failed, Prepared
from claimlet.engine.texts import TEXT_BYTES_MAX
from claimlet.events.values import ClaimUid, PreparedDevice

GOOD = ClaimAnswer(devices=(PreparedDevice(pool="p", device="d", cdi_device_ids=("ve/cl=d",)),))
A, B, C = ClaimUid("uid-a"), ClaimUid("uid-b"), ClaimUid("uid-c")


def with_devices(*devices: PreparedDevice) -> dict[str, ClaimAnswer]:
    """Return a good answer for claim a and one with *devices* for claim b."""
    return {"uid-a": GOOD, "uid-b": ClaimAnswer(devices=devices)}


class TestPrepare:
    """One claim's fault is that claim's alone."""

    def test_devices(self) -> None:
        """A claim with devices is prepared."""
        data = encode_prepare(V1, {"uid-a": GOOD})

        assert read_prepare(V1, data, claims("a")) == {A: Prepared(devices=GOOD.devices)}

    def test_entry_without_devices_is_a_success(self) -> None:
        """An entry with neither devices nor an error means: prepared, nothing for containers."""
        data = encode_prepare(V1, {"uid-a": ClaimAnswer()})

        assert read_prepare(V1, data, claims("a")) == {A: Prepared()}

    def test_error_is_a_refusal_in_the_drivers_words(self) -> None:
        """An error text makes that claim a refused one; the others go on."""
        data = encode_prepare(V1, {"uid-a": GOOD, "uid-b": ClaimAnswer(error="no such device")})

        outcomes = read_prepare(V1, data, claims("a", "b"))

        assert isinstance(outcomes[A], Prepared)
        assert outcomes[B] == Failed("no such device", outcome="refused", code="driver_error")

    def test_long_texts_are_cut(self) -> None:
        """A driver's text is kept up to 4 KiB, with a mark where it was cut."""
        data = encode_prepare(V1, {"uid-a": ClaimAnswer(error="x" * 300_000)})

        outcome = read_prepare(V1, data, claims("a"))[A]

        assert isinstance(outcome, Failed)
        assert len(outcome.text.encode()) <= TEXT_BYTES_MAX
        assert outcome.text.endswith("(cut)")

    @pytest.mark.field(42)
    def test_missing_and_unasked(self) -> None:
        """A claim that is missing has no outcome; one that nobody asked for stands as it came."""
        data = encode_prepare(V1, {"uid-a": GOOD, "uid-c": GOOD})

        assert set(read_prepare(V1, data, claims("a", "b"))) == {A, C}

    @pytest.mark.parametrize(
        ("devices", "text"),
        [
            ((PreparedDevice(pool="p", device="d"),) * 257, "257 devices, more than 256"),
            ((PreparedDevice(pool="x" * 262_144, device="d"),), "bytes, more than 262144"),
        ],
    )
    def test_too_large(self, devices: tuple[PreparedDevice, ...], text: str) -> None:
        """An answer beyond the bounds is that claim's failure."""
        data = encode_prepare(V1, with_devices(*devices))

        outcomes = read_prepare(V1, data, claims("a", "b"))

        assert isinstance(outcomes[A], Prepared)
        failed = outcomes[B]
        assert isinstance(failed, Failed)
        assert (failed.outcome, failed.code) == ("invalid", "too_large")
        assert text in failed.text

    def test_as_large_as_allowed(self) -> None:
        """An answer at the bounds is taken whole."""
        ids = tuple(f"vendor.com/class={n}" for n in range(32))
        devices = tuple(
            PreparedDevice(pool="p", device=f"d-{n}", cdi_device_ids=ids) for n in range(256)
        )
        data = encode_prepare(V1, with_devices(*devices))

        assert read_prepare(V1, data, claims("a", "b"))[B] == Prepared(devices=devices)

    def test_ids_stay_with_their_device(self) -> None:
        """An id that two devices share stays with both: containers get it once, later."""
        shared = "vendor.com/gpu=common"
        devices = tuple(
            PreparedDevice(pool="p", device=name, cdi_device_ids=(shared, f"vendor.com/gpu={name}"))
            for name in ("gpu-0", "gpu-1")
        )
        data = encode_prepare(V1, with_devices(*devices))

        assert read_prepare(V1, data, claims("b"))[B] == Prepared(devices=devices)


class TestUnprepare:
    """None means done."""

    def test_each_claim(self) -> None:
        """A claim without an error is done, one with an error is refused."""
        data = encode_unprepare(V1, {"uid-a": "", "uid-b": "busy"})

        assert read_unprepare(V1, data, claims("a", "b", "c")) == {
            A: None,
            B: Failed("busy", outcome="refused", code="driver_error"),
        }
