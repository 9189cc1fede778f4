"""Where records are kept beside the log: in the state directory, for its owner only."""

from __future__ import annotations

from pathlib import Path

from ...config.settings import Settings

__all__ = ["archive_dir"]


def archive_dir(settings: Settings) -> Path:
    """Return the directory of the archive; it need not be there."""
    return settings.state_dir / "archive"
