"""The layers of `minigpt`: who may import whom, and which libraries where."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "minigpt"

#: From the bottom up: a module imports from layers below its own, or from its own.
LAYERS = (
    ("errors",),
    ("settings", "config", "files", "json_lines"),
    ("model", "data", "pickles", "training.loss", "training.optimizer", "training.schedule"),
    ("defaults", "checkpoint", "huggingface", "hub", "run_folder", "output", "progress", "sweep"),
    ("generation", "evaluate", "export", "doctor", "training"),
    ("composition", "arguments", "help", "command_line"),
    ("evaluate.__main__", "export.__main__", "doctor.__main__"),  # commands of their own
)

#: Heavy libraries, and the modules that may import them.
ONLY_IN = {
    "lightning": (
        "training.lightning_module", "training.callbacks", "training.datamodule",
        "training.run_log", "training.saving", "training.strategy", "training.summary",
        "training.tracker",
    ),
    "wandb": ("training.tracker",),
    "datasets": ("data.corpora",),
    "hydra": ("composition", "arguments"),
    "omegaconf": ("composition",),
    "matplotlib": ("training", "doctor"),
    "gguf": ("export.gguf",),
    "transformers": (),
}  # fmt: skip


def files() -> Iterator[tuple[str, Path]]:
    """Each module's dotted name below `minigpt`, and its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        yield ".".join(parts).removesuffix("__init__").rstrip("."), path


MODULES = dict(files())


def imports(path: Path) -> set[str]:
    """The dotted names a file imports anywhere; `from a.b import c` gives `a.b` and `a.b.c`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def layer(module: str) -> int:
    """A module's place in the layers, by the longest name that it lies under."""
    places = {name: number for number, names in enumerate(LAYERS) for name in names}
    under = [name for name in places if module == name or module.startswith(f"{name}.")]
    assert under, f"minigpt.{module} has no place in the layers"
    return places[max(under, key=len)]


def under(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_the_layers_cover_the_package() -> None:
    assert len(MODULES) > 10
    for module in MODULES:
        assert not module or layer(module) >= 0


@pytest.mark.parametrize("module", [module for module in MODULES if module])
def test_imports_go_down(module: str) -> None:
    for name in imports(MODULES[module]):
        other = name.removeprefix("minigpt.")
        if name.startswith("minigpt.") and other in MODULES:
            assert layer(other) <= layer(module), f"minigpt.{module} imports {name}"


@pytest.mark.parametrize("library", ONLY_IN)
def test_heavy_libraries_stay_in_their_rooms(library: str) -> None:
    for module, path in MODULES.items():
        if not under(module, ONLY_IN[library]):
            top_names = {name.partition(".")[0] for name in imports(path)}
            assert library not in top_names, f"minigpt.{module} imports {library}"


@pytest.mark.parametrize("module", [module for module in MODULES if module])
def test_rooms_other_than_the_entry_points_import_no_entry_point(module: str) -> None:
    assert not {"train", "generate"} & imports(MODULES[module])


def statements_with_effect(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that do work when a module is imported: bare calls, loops, `with`."""
    for node in body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Expr | ast.For | ast.While | ast.With) and not docstring:
            yield node


@pytest.mark.parametrize("module", [module for module in MODULES if "__main__" not in module])
def test_importing_does_no_work(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    assert [ast.unparse(node) for node in statements_with_effect(tree.body)] == []


def loaded(code: str) -> set[str]:
    """The top-level libraries that a fresh process has loaded after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_generate_reaches_main_without_heavy_libraries() -> None:
    heavy = {"torch", "lightning", "datasets", "wandb", "tokenizers", "numpy", "matplotlib"}
    assert not heavy & loaded("import generate, train")


def test_generation_needs_neither_trainer_nor_trackers_nor_hydra() -> None:
    modules = loaded(
        "import minigpt.checkpoint, minigpt.run_folder\n"
        "import minigpt.generation.decode, minigpt.generation.prompts"
    )
    assert "torch" in modules
    assert not {"lightning", "datasets", "wandb", "hydra", "omegaconf", "matplotlib"} & modules
