"""
Makes the environment for the third-party peers that are Python packages, and prints its Python.

They get one of their own, so that nothing of theirs is ever in the product's::

    export CLAIMLET_PEERS_PYTHON="$(python -m tests.peers.make_env)"
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from tests.peers.cache import cache_dir, digest_of, locked

REQUIREMENTS = Path(__file__).parent / "pydra" / "requirements.txt"


def make() -> Path:
    """Return the Python of the environment, made if need be."""
    directory = cache_dir() / f"python-{digest_of([REQUIREMENTS], sys.version)}"
    python, done = directory / "bin" / "python", directory / ".done"
    with locked(directory):
        if not done.exists():
            # Debian's Python has no ensurepip; its pip installs into any environment.
            venv.create(directory, with_pip=False)
            subprocess.run(
                ["pip", "--python", python, "install", "--quiet", "--requirement", REQUIREMENTS],
                check=True,
                stdout=sys.stderr,
            )
            done.touch()
    return python


if __name__ == "__main__":
    print(make())
