"""
What the guards look at: the tree, its modules, and what a wheel of it must hold.

Also a program: ``python -m tests.packaging.house WHEEL…`` compares wheels with the tree.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["FOLDERS", "ROOT", "expected_files", "functions", "modules", "shipped_files", "tree"]

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("adapters", "config", "engine", "events")
_LEFT_OUT = {"__pycache__"}


def expected_files() -> set[str]:
    """Return what a wheel must hold of the package: every file of the tree, by its name in it."""
    package = ROOT / "src" / "claimlet"
    own = {f"claimlet/{path.name}" for path in package.iterdir() if path.is_file()}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and not _LEFT_OUT & set(path.parts):
                own.add(f"claimlet/{path.relative_to(ROOT)}")
    return own


def shipped_files(wheel: Path) -> set[str]:
    """Return what *wheel* holds of the package."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith("claimlet/")}


def modules(*folders: str) -> list[Path]:
    """Return the Python files below *folders* of the root, without what tools generate."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if not path.stem.endswith(("_pb2", "_pb2_grpc")))


@cache
def tree(path: Path) -> ast.Module:
    """Return the parsed module at *path*."""
    return ast.parse(path.read_text("utf-8"), str(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions of the module at *path*, nested ones too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def main(wheels: list[str]) -> int:
    """Compare *wheels* with the tree; return 1 if one differs."""
    code = 0
    for wheel in wheels:
        shipped, expected = shipped_files(Path(wheel)), expected_files()
        for name in sorted(expected - shipped):
            print(f"{wheel}: {name} is missing")
        for name in sorted(shipped - expected):
            print(f"{wheel}: {name} is not in the tree")
        print(f"{wheel}: {len(shipped)} files of {len(expected)}")
        code |= shipped != expected
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
