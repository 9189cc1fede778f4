"""
The Go peers, built on demand: ours on upstream's own libraries, and upstream's example driver.

The example driver is a module of its own kind, `go-example/`: it needs other versions of the same
libraries, and is built as it is.

`python -m tests.peers.go_peers` builds all of them ahead of a test run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.peers.cache import cache_dir, digest_of, locked

__all__ = ["PROGRAMS", "build", "missing"]

_HERE = Path(__file__).parent
#: program → the module that names its versions, and its package.
PROGRAMS = {
    "cdiresolve": (_HERE / "go", "./cdiresolve"),
    "helperdriver": (_HERE / "go", "./helperdriver"),
    "dra-example-kubeletplugin": (
        _HERE / "go-example",
        "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin",
    ),
}

#: The first build compiles a few hundred packages.
_BUILD_SECONDS = 1200


def missing() -> str:
    """Return why the Go peers cannot be built here; empty if they can."""
    return "" if shutil.which("go") else "the Go toolchain is not on PATH"


def build(name: str) -> Path:
    """
    Return the program *name*, built if need be.

    Raises:
        RuntimeError: It does not build; the text has the compiler's words.
    """
    module, package = PROGRAMS[name]
    sources = [module / "go.mod", module / "go.sum", *module.rglob("*.go")]
    version = _go(module, "version", seconds=60)
    directory = cache_dir() / f"go-{digest_of(sources, version)}"
    program = directory / name
    with locked(directory):
        if not program.exists():
            temporary = directory / f"{name}.new"
            target = ["-o", str(temporary), package]
            _go(module, "build", "-trimpath", *target, seconds=_BUILD_SECONDS)
            temporary.rename(program)
    return program


def _go(module: Path, *arguments: str, seconds: float) -> str:
    environment = os.environ | {"GOFLAGS": "-mod=readonly -buildvcs=false"}
    done = subprocess.run(
        ["go", *arguments],
        cwd=module,
        env=environment,
        timeout=seconds,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"go {' '.join(arguments)}: {done.stderr or done.stdout}")
    return done.stdout


if __name__ == "__main__":
    if reason := missing():
        sys.exit(reason)
    for program_name in PROGRAMS:
        print(build(program_name))
