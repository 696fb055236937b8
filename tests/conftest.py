"""What all tests share: one thread, hypothesis profiles, the program in small."""

import copy
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import torch

if TYPE_CHECKING:
    from minigpt.data.tokenizer import Tokenizer
    from minigpt.model.gpt import GPT

PROJECT = Path(__file__).resolve().parents[1]
SHARED_DATA = PROJECT.parent / "shared" / "data"

# Parallel tests share the cores, and the models are too small to divide.
torch.set_num_threads(1)

# Times on a busy machine say nothing. In CI the same examples are drawn each time, so that a
# change is judged by what it changed.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

WORDS = ("the", "sea", "wind", "night", "of", "and", "stars", "calls", "my", "heart")


class Train:
    """`train.py` within this process: a tiny model on a small file of ragged lines.

    Called with settings that are added to the small ones; gives the exit status.
    """

    def __init__(self, text: Path, cache: Path) -> None:
        self.settings: tuple[str, ...] = (
            "data=text",
            f"data.path={text}",
            "data.document=line",
            "data.batch_size=6",
            f"data.cache_dir={cache}",
            "tokenizer=char",
            "model.n_layer=2",
            "model.n_head=2",
            "model.n_embd=16",
            "model.block_size=16",
            "optim.lr=0.01",
            "trainer.accelerator=cpu",
            "trainer.log_every_n_steps=1",
        )

    def __call__(self, *settings: str) -> int:
        from minigpt.command_line import run
        from minigpt.config import TrainConfig
        from train import main

        return run(main, TrainConfig, "train", [*self.settings, *settings])

    def only(self, keeps: Callable[[str], bool]) -> "Train":
        """The same with those of the small settings that `keeps` is true of."""
        part = copy.copy(self)
        part.settings = tuple(each for each in self.settings if keeps(each))
        return part

    @staticmethod
    def losses(folder: Path) -> list[float]:
        """The logged training losses of the run in `folder`, by step."""
        from minigpt.training.metrics_file import column, read_metrics

        return [loss for _, loss in column(read_metrics(folder / "metrics.csv"), "train_loss")]


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """The program in small; the prepared corpus is shared by the tests of a process."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(1)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(80)]
    text = folder / "lines.txt"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Train(text, folder / "cache")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real texts beside the checkout, which not every checkout has."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no folder of real texts at {SHARED_DATA}")
    return SHARED_DATA


def write_model(path: Path, model: "GPT", tokenizer: "Tokenizer", documents: int) -> Path:
    """Write a checkpoint with what a model needs to be used, and nothing of a run."""
    from minigpt.checkpoint import MODEL_PREFIX, RECORD, write_checkpoint
    from minigpt.config import plain

    record = {
        "model_config": plain(model.config),
        "vocab_size": model.vocab_size,
        "tokenizer": tokenizer.to_json(),
        "documents": documents,
    }
    weights = {MODEL_PREFIX + name: tensor for name, tensor in model.state_dict().items()}
    write_checkpoint(path, {"state_dict": weights, RECORD: record})
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Makes a checkpoint of random weights and a context of 16 tokens; gives its path."""
    from minigpt.config import ModelConfig, TokenizerConfig
    from minigpt.data.tokenizer_training import train_tokenizer
    from minigpt.model.gpt import GPT

    def make(place: str = "model.ckpt", *, kind: str = "bytes", documents: int = 5) -> Path:
        torch.manual_seed(0)
        tokenizer = train_tokenizer(TokenizerConfig(kind=kind), ["the alphabet of this corpus"])
        config = ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=16)
        model = GPT(config, tokenizer.vocab_size)
        return write_model(tmp_path / place, model, tokenizer, documents)

    return make


@pytest.fixture
def gpt2_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, Any]]:
    """Makes a folder with a random GPT-2 as `transformers` saves one; gives it and that model.

    Its tokenizer is of bytes; the model has `extra` tokens more, or `vocab_size` in all.
    """
    transformers = pytest.importorskip("transformers")
    from minigpt.config import TokenizerConfig
    from minigpt.data.tokenizer_training import train_tokenizer

    monkeypatch.setenv("TQDM_DISABLE", "1")

    def make(
        n_layer: int,
        n_head: int,
        n_embd: int,
        block_size: int,
        extra: int = 0,
        activation: str = "gelu_new",
        *,
        place: str = "gpt2_folder",
        vocab_size: int | None = None,
    ) -> tuple[Path, Any]:
        tokenizer = train_tokenizer(TokenizerConfig(kind="bytes"), [])
        config = transformers.GPT2Config(
            vocab_size=vocab_size or tokenizer.vocab_size + extra,
            n_positions=block_size,
            n_embd=n_embd,
            n_layer=n_layer,
            n_head=n_head,
            activation_function=activation,
            bos_token_id=tokenizer.end_id,
            eos_token_id=tokenizer.end_id,
        )
        torch.manual_seed(n_layer)
        model = transformers.GPT2LMHeadModel(config).eval()
        for parameter in model.parameters():  # biases too, and large enough to matter
            torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(tmp_path / place)
        (tmp_path / place / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        return tmp_path / place, model

    return make
