"""The manifest source: each pod in a watched directory is wanted, as long as its file is there."""

from __future__ import annotations

from .source import ManifestSource

__all__ = ["ManifestSource"]
