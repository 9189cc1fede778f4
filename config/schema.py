"""
The JSON Schema of a configuration file, from the settings' types and the text of their defaults.

`config/schemas/config.json` is its output, for editors; a test compares the two.  Written anew
with ``python -m claimlet.config.schema``.  A setting is described once: above its default.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from .settings import DEFAULTS_FILE, Settings

__all__ = ["SCHEMA_FILE", "config_schema", "descriptions", "render"]

SCHEMA_FILE = Path(__file__).parent / "schemas" / "config.json"


def config_schema() -> dict[str, Any]:
    """Return the schema: all settings, none of them required."""
    defaults = tomllib.loads(DEFAULTS_FILE.read_text("utf-8"))
    texts = dict(descriptions(DEFAULTS_FILE.read_text("utf-8")))
    _, parts = msgspec.json.schema_components(
        [Settings], schema_hook=_paths_are_text, ref_template="#/$defs/{name}"
    )
    root = parts.pop("Settings")
    for name, schema in root["properties"].items():
        part = parts.get(str(schema.get("$ref", "")).rpartition("/")[2])
        if part is None:
            schema |= {"description": texts[name], "default": defaults[name]}
            continue
        del part["required"]
        for key, field in part["properties"].items():
            if field.pop("anyOf", None):  # a path, or empty; TOML knows no null
                field["type"] = "string"
            field |= {"description": texts[f"{name}.{key}"], "default": defaults[name][key]}
    del root["required"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **root,
        "title": "claimlet's configuration file",
        "description": "The settings of claimlet; each may be left out.",
        "$defs": parts,
    }


def descriptions(text: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, comment) of each setting in the *text* of the defaults."""
    section = ""
    comment: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
            continue
        if line.startswith("["):
            section = line.strip("[]")
            if comment:
                yield section, " ".join(comment)
        elif "=" in line:
            name = line.partition("=")[0].strip()
            yield (f"{section}.{name}" if section else name), " ".join(comment)
        comment = []


def _paths_are_text(kind: type) -> dict[str, Any]:
    if kind is Path:
        return {"type": "string"}
    raise NotImplementedError


def render() -> str:
    """Return the text of `config/schemas/config.json`."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(render(), "utf-8")
