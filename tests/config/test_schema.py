"""The JSON Schema of the configuration file is generated, complete and up to date."""

from __future__ import annotations

from claimlet.config.schema import SCHEMA_FILE, descriptions, render
from claimlet.config.settings import DEFAULTS_FILE, setting_types


class TestSchema:
    def test_is_what_the_settings_give(self) -> None:
        """The committed file is the output of `python -m claimlet.config.schema`."""
        assert SCHEMA_FILE.read_text("utf-8") == render()

    def test_every_setting_is_described(self) -> None:
        """Each setting has a sentence above its default, for operators and editors."""
        texts = dict(descriptions(DEFAULTS_FILE.read_text("utf-8")))

        assert {name for name in setting_types() if not texts.get(name)} == set()
