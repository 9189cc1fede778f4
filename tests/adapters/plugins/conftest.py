"""A root directory for drivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.plugins.node import short_directory


@pytest.fixture
def root() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory
