"""The layers of `minigpt`: who may import whom, and which libraries where."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Train

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "minigpt"

#: From the bottom up: a module imports from layers below its own, or from its own.
LAYERS = (
    ("errors",),
    ("settings", "config", "files", "json_lines", "compiler", "progress", "hub"),
    ("model", "data", "pickles", "training.loss", "training.optimizer", "training.schedule"),
    ("defaults", "checkpoint", "huggingface", "run_folder", "output", "sweep", "histogram"),
    ("generation", "evaluate", "export", "doctor", "training", "data.look"),
    ("composition", "arguments", "help", "command_line"),
    # commands of their own
    ("data.__main__", "evaluate.__main__", "export.__main__", "doctor.__main__"),
)  # fmt: skip

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


def loaded(code: str, *, folder: Path = ROOT) -> set[str]:
    """The dotted names of all modules that a fresh process in `folder` has loaded after `code`."""
    ends = "import sys\nprint('modules:', *sys.modules, flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{ends}"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.rpartition("modules:")[2].split())


def among(modules: set[str], libraries: set[str]) -> set[str]:
    """Which of the libraries, or of their parts, are among the modules."""
    return {name for name in libraries if any(under(module, (name,)) for module in modules)}


#: What only some runs need, or none: each costs a start between a tenth of a second and two.
NOT_AT_ONCE = {
    "datasets", "gguf", "httpx", "matplotlib", "minigpt.doctor", "minigpt.evaluate",
    "minigpt.export", "safetensors", "tensorboard", "transformers", "wandb",
}  # fmt: skip


def test_a_command_reaches_main_without_heavy_libraries() -> None:
    heavy = NOT_AT_ONCE | {"torch", "lightning", "tokenizers", "numpy"}
    assert not among(loaded("import generate, train"), heavy)


def test_help_and_a_wrong_setting_need_no_heavy_libraries() -> None:
    modules = loaded(
        "import generate, train\n"
        "from minigpt.command_line import run\n"
        "from minigpt.config import TrainConfig\n"
        "assert run(train.main, TrainConfig, 'train', ['--help']) == 0\n"
        "assert run(train.main, TrainConfig, 'train', ['optim.lrr=1']) == 2\n"
        "assert run(train.main, TrainConfig, 'train', ['optim.lr=-1']) == 2"
    )
    assert not among(modules, NOT_AT_ONCE | {"torch", "lightning", "tokenizers", "numpy"})


def test_generation_needs_neither_trainer_nor_trackers_nor_hydra() -> None:
    modules = loaded(
        "import minigpt.checkpoint, minigpt.run_folder\n"
        "import minigpt.generation.decode, minigpt.generation.prompts"
    )
    assert "torch" in modules
    assert not among(modules, NOT_AT_ONCE | {"lightning", "hydra", "omegaconf"})


def test_generating_needs_no_trainer_and_no_compiler(checkpoint: Callable[[], Path]) -> None:
    """All that `generate.py` has loaded once its text is there."""
    modules = loaded(
        "import generate\n"
        "from minigpt.command_line import run\n"
        "from minigpt.generation.config import GenerateConfig\n"
        f"settings = ['checkpoint={checkpoint()}', 'max_new_tokens=3', 'device=cpu']\n"
        "assert run(generate.main, GenerateConfig, 'generate', settings) == 0"
    )
    assert "minigpt.generation.decode" in modules
    compiler = {"torch._dynamo", "torch._inductor", "sympy"}
    assert not among(modules, NOT_AT_ONCE | compiler | {"lightning", "torchmetrics"})


@pytest.mark.slow
def test_the_first_step_needs_nothing_heavy_that_lightning_has_not_loaded(
    train: Train, tmp_path: Path
) -> None:
    """Lightning's metrics import `matplotlib`, and `transformers` where it is installed."""
    settings = [*train.settings, "trainer.max_steps=9", f"run_dir={tmp_path / 'run'}"]
    modules = loaded(
        "import os, sys, lightning\n"
        "of_lightning = set(sys.modules)\n"
        "import train\n"
        "from minigpt.command_line import run\n"
        "from minigpt.config import TrainConfig\n"
        "from minigpt.training.callbacks import Milestones\n"
        "def end(*_, **__):\n"
        "    print('modules:', *(sys.modules.keys() - of_lightning), flush=True)\n"
        "    os._exit(0)\n"
        "Milestones.on_train_batch_end = end\n"
        f"run(train.main, TrainConfig, 'train', {settings})\n"
        "sys.exit('there was no first step')",
        folder=tmp_path,
    )
    assert "minigpt.training.callbacks" in modules
    assert not among(modules, NOT_AT_ONCE | {"torch._inductor"})


def test_a_corpus_that_is_not_there_is_told_before_lightning_is_loaded(tmp_path: Path) -> None:
    modules = loaded(
        "import train\n"
        "from minigpt.command_line import run\n"
        "from minigpt.config import TrainConfig\n"
        "settings = ['data=text', 'data.path=missing.txt', 'trainer.accelerator=cpu']\n"
        "assert run(train.main, TrainConfig, 'train', settings) == 2",
        folder=tmp_path,
    )
    assert not among(modules, NOT_AT_ONCE | {"lightning"})
