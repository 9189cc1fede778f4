"""The promises: each has tests of its own, and each way to break it is noticed by them."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engine.faults import FAULTS, Fault

#: The promises that the engine keeps; R4 to R6 are the controller's.
RULES = ("R1", "R2", "R3", "R7", "R8", "R9", "R10", "R11", "R12", "R13")

Check = Callable[[], None]


def _marked() -> Iterator[tuple[str, str, Check]]:
    """Return rule, name and call of each test of this folder that is marked with a rule."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.engine.{path.stem}")
        for class_name, kind in inspect.getmembers(module, inspect.isclass):
            if not class_name.startswith("Test") or kind.__module__ != module.__name__:
                continue
            for name, function in inspect.getmembers(kind, inspect.isfunction):
                marks = getattr(function, "pytestmark", [])
                if any(mark.name == "parametrize" for mark in marks):
                    continue
                for rule in (r for mark in marks if mark.name == "rule" for r in mark.args):
                    yield rule, f"{class_name}.{name}", getattr(kind(), name)


@functools.cache
def _checks() -> dict[str, dict[str, Check]]:
    checks: dict[str, dict[str, Check]] = {}
    for rule, name, check in _marked():
        checks.setdefault(rule, {})[name] = check
    return checks


CASES = [(rule, fault) for rule, faults in FAULTS.items() for fault in faults]


class TestRules:
    def test_each_has_two_faults(self) -> None:
        """Each promise of the engine has at least two ways to break it."""
        assert {rule for rule, faults in FAULTS.items() if len(faults) >= 2} == set(RULES)

    @pytest.mark.parametrize("rule", RULES)
    def test_each_has_two_tests(self, rule: str) -> None:
        """Each promise of the engine has at least two tests."""
        assert len(_checks()[rule]) >= 2

    @pytest.mark.parametrize(("rule", "fault"), CASES, ids=lambda v: getattr(v, "__name__", v))
    def test_each_fault_is_noticed(self, rule: str, fault: Fault) -> None:
        """With a fault turned on at least one test of its rule fails."""
        for check in _checks()[rule].values():
            with pytest.MonkeyPatch.context() as patch:
                fault(patch)
                try:
                    check()
                except Exception:  # noqa: BLE001 - a failing test may fail in any way
                    return

        pytest.fail(f"no test of {rule} notices: {fault.__doc__}")
