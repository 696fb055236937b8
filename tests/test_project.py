"""The files around the code agree with each other."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).resolve().parents[1]
GIT = shutil.which("git")


def read(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


def lock_lines() -> list[str]:
    lines = (line.strip() for line in read("requirements.lock").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def locked() -> dict[str, Version]:
    """The lock: a version by each package's canonical name."""
    pinned = (line.split("==") for line in lock_lines())
    return {canonicalize_name(name): Version(version) for name, version in pinned}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads(read("pyproject.toml"))["project"]


def requirements(project: dict[str, Any]) -> list[Requirement]:
    lines: list[str] = project["dependencies"] + project["optional-dependencies"]["dev"]
    return [Requirement(line) for line in lines]


def test_the_lock_pins_plain_versions() -> None:
    for line in lock_lines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line), line


def test_the_lock_has_what_was_promised(locked: dict[str, Version]) -> None:
    assert locked["torch"] == Version("2.13.0")
    assert locked["lightning"] >= Version("2.6.6")
    assert locked["hydra-core"].release[:2] == (1, 3)


def test_the_lock_leaves_a_platforms_own_parts_to_torch(locked: dict[str, Version]) -> None:
    own = re.compile(r"(nvidia|cuda|triton|pip$|setuptools$|wheel$)")
    assert not [name for name in locked if own.match(name)]


def test_the_ranges_admit_what_is_locked(
    project: dict[str, Any], locked: dict[str, Version]
) -> None:
    for requirement in requirements(project):
        name = canonicalize_name(requirement.name)
        assert name in locked, f"requirements.lock: {name} is missing"
        assert requirement.specifier.contains(locked[name]), f"{requirement}, locked {locked[name]}"


def imported(source: Path) -> set[str]:
    """The top names that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def test_everything_imported_is_required(project: dict[str, Any]) -> None:
    """Each library that the code imports is named by itself, not brought by another's chance."""
    required = {canonicalize_name(each.name) for each in requirements(project)}
    distributions = {"hydra": "hydra-core", "yaml": "pyyaml"}
    scripts = [*(PROJECT / "bench").glob("*.py"), *(PROJECT / "examples").glob("*.py")]
    own = {"minigpt", "tests", "train", "generate", *(path.stem for path in scripts)}
    sources = [*scripts, *PROJECT.glob("*.py")]
    for folder in ("minigpt", "tests"):
        sources += (PROJECT / folder).rglob("*.py")
    for path in sources:
        for name in imported(path) - set(sys.stdlib_module_names) - own:
            assert canonicalize_name(distributions.get(name, name)) in required, f"{path}: {name}"


def test_make_and_docker_install_the_same_lock() -> None:
    assert "pip install --disable-pip-version-check --requirement requirements.lock" in read(
        "Makefile"
    )
    docker = read("Dockerfile")
    assert re.search(r"^RUN .*make env$", docker, re.MULTILINE)
    assert "pip install" not in docker
    assert re.search(r"^COPY .*\bMakefile requirements\.lock \./$", docker, re.MULTILINE)


def test_docker_runs_train_as_nobody_special() -> None:
    lines = read("Dockerfile").splitlines()
    assert 'ENTRYPOINT ["/minigpt/.venv/bin/python", "/minigpt/train.py"]' in lines
    assert 'VOLUME ["/minigpt/runs", "/minigpt/data/cache"]' in lines
    assert [line for line in lines if line.startswith("USER")] == ["USER minigpt"]


def test_what_docker_copies_is_enough_and_caches_on_its_volume(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "cache")
    for line in read(".dockerignore").splitlines():
        source = PROJECT / line.removeprefix("!")
        if line.startswith("!") and source.is_dir():
            shutil.copytree(source, tmp_path / source.name, ignore=ignored)
        elif line.startswith("!"):
            shutil.copy(source, tmp_path)
    program = (
        "from minigpt.command_line import compose; from minigpt.config import TrainConfig;"
        "from minigpt.data.cache import cache_folder; import train;"
        "print(cache_folder(compose(TrainConfig, 'train', ['model=small'])[0].data))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == str(tmp_path.resolve() / "data" / "cache")


@pytest.mark.skipif(GIT is None, reason="git is not installed")
def test_git_ignores_what_is_made_and_nothing_else(tmp_path: Path) -> None:
    shutil.copy(PROJECT / ".gitignore", tmp_path)
    made = [
        ".venv/bin/python",
        "runs/1/last.ckpt",
        "data/cache/1/tokens.bin",
        "minigpt/__pycache__/a",
    ]
    kept = ["minigpt/data/tokenizer.py", "minigpt/data/cache/a.py", "data/README.md", "docs/runs/a",
            "tests/data/test_batches.py", "bench/results/2026-01-01-stories.json"]  # fmt: skip
    assert GIT is not None
    subprocess.run([GIT, "init", "--quiet", tmp_path], check=True)
    answer = subprocess.run(
        [GIT, "-C", tmp_path, "-c", "core.excludesFile=", "check-ignore", *made, *kept],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.split() == made
