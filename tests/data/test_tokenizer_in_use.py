"""A foreign tokenizer all the way: training, checkpoint, generation, evaluation, export."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.checkpoint import LoadedModel, load_model
from minigpt.command_line import run
from minigpt.config import ModelConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_files import pretrained_tokenizer
from minigpt.evaluate.coloured import token_name
from minigpt.export.__main__ import main as export_main
from minigpt.export.config import ExportConfig
from minigpt.generation.language_model import LanguageModel
from minigpt.model.gpt import GPT
from minigpt.training.samples import recites, sample_texts
from tests.conftest import Train, write_model
from tests.data.foreign_tokenizers import CUTTERS, described, made, with_holes

Captured = pytest.CaptureFixture[str]


def saved(folder: Path, description: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(description), encoding="utf-8")
    return path


def model_of(folder: Path, tokenizer: Tokenizer, *, padded: int = 0) -> LoadedModel:
    """A model of random weights, through its checkpoint `model.ckpt`."""
    torch.manual_seed(0)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=16)
    model = GPT(config, tokenizer.vocab_size + padded)
    return load_model(write_model(folder / "model.ckpt", model, tokenizer, 5))


def drawn_to(model: GPT, tokens: list[int]) -> None:
    """Give some tokens logits that are far above all others', whatever was read."""
    weights = model.state_dict()
    weights["embedding.weight"].zero_()[tokens] = 9.0
    weights["norm.weight"].zero_()
    weights["norm.bias"].fill_(1.0)


@pytest.fixture(params=["</s>", "[EOS]"])
def holes(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    """Ids that no token has, within and between; the end token among the others, or added."""
    return pretrained_tokenizer(str(saved(tmp_path, with_holes(end=request.param))))


def test_an_id_that_no_token_has_is_never_sampled(holes: Tokenizer, tmp_path: Path) -> None:
    loaded = model_of(tmp_path, holes, padded=7)
    assert loaded.model.vocab_size == holes.vocab_size + 7  # those of the padding neither
    nobodys = [*loaded.tokenizer.unused, *range(holes.vocab_size, holes.vocab_size + 7)]
    assert len(nobodys) > 15
    drawn_to(loaded.model, nobodys)
    model = LanguageModel(loaded, say=lambda _: None)
    for temperature in (0, 1.0):
        samples = model.generate("a", num_samples=5, temperature=temperature, seed=1)
        ids = {token for sample in samples for token in sample.ids}
        assert ids
        assert not ids.intersection(nobodys)
    # nor in the samples of training
    end = holes.end_id
    assert recites(loaded.model, holes, [end, 0], given=1)  # all others are alike: the first
    texts = sample_texts(loaded.model, holes, count=20, max_new_tokens=20)
    assert len(set(texts)) == 20
    for token in nobodys:
        assert token_name(holes, token) == f"token {token}, which is in no text"


def test_a_document_ends_with_its_own_end_token(holes: Tokenizer, tmp_path: Path) -> None:
    loaded = model_of(tmp_path, holes)
    assert (loaded.tokenizer.end, loaded.tokenizer.end_id) == (holes.end, holes.end_id)
    drawn_to(loaded.model, [loaded.tokenizer.end_id])
    model = LanguageModel(loaded, say=lambda _: None)
    sample = model.generate("a", temperature=0)[0]
    assert (sample.text, sample.ids, sample.reason) == ("", [], "end")
    assert list(model.stream("a", temperature=0)) == [""]
    assert token_name(loaded.tokenizer, loaded.tokenizer.end_id) == "end of document"


@pytest.fixture
def exported(tmp_path: Path) -> Callable[[str], int]:
    def export(form: str) -> int:
        given = [f"checkpoint={tmp_path / 'model.ckpt'}", f"to={tmp_path / 'out'}"]
        return run(export_main, ExportConfig, "export", [*given, f"format={form}"])

    return export


@pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")
def test_it_goes_out_as_it_came(
    holes: Tokenizer, tmp_path: Path, exported: Callable[[str], int]
) -> None:
    transformers = pytest.importorskip("transformers")
    model_of(tmp_path, holes)
    assert exported("huggingface") == 0
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (theirs.eos_token, theirs.eos_token_id) == (holes.end, holes.end_id)
    text = f"The cat's 12 mats{holes.end}\n<|pad|>"
    assert theirs(text, add_special_tokens=False).input_ids == holes.encode(text)
    assert theirs(text).input_ids == [holes.end_id, *holes.encode(text)]
    generating = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generating["suppress_tokens"] == list(holes.unused)
    back = load_model(tmp_path / "out")
    assert (back.tokenizer.end_id, back.start_of_document) == (holes.end_id, True)
    assert f"`{holes.end}` (id {holes.end_id})" in (tmp_path / "out" / "README.md").read_text()


def test_to_llama_cpp_goes_what_it_follows(
    tmp_path: Path, exported: Callable[[str], int], capsys: Captured
) -> None:
    pytest.importorskip("gguf")
    tokenizer = pretrained_tokenizer(
        str(saved(tmp_path, described(made(CUTTERS["gpt2's own"], ["</s>"]))))
    )
    model_of(tmp_path, tokenizer, padded=2)
    assert exported("gguf") == 0
    (tmp_path / "out").unlink()
    capsys.readouterr()
    other = described(made(CUTTERS["qwen"], ["</s>"]))
    model_of(tmp_path, pretrained_tokenizer(str(saved(tmp_path, other))))
    assert exported("gguf") == 2
    said = capsys.readouterr().err
    assert "only GPT-2's (ByteLevel with its pattern" in said
    assert not (tmp_path / "out").exists()


def test_a_run_with_it(train: Train, tmp_path: Path, capsys: Captured) -> None:
    """The model has a row for each id up to the largest; the run says the real size."""
    description = with_holes(end="</s>")
    path = saved(tmp_path, description)
    pretrained = train.only(lambda setting: not setting.startswith("tokenizer="))
    given = ["tokenizer=pretrained", f"tokenizer.path={path}", f"run_dir={tmp_path / 'run'}"]
    assert pretrained(*given, "trainer.max_steps=3") == 0
    last = max(description["model"]["vocab"].values())
    loaded = load_model(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert loaded.model.vocab_size == loaded.tokenizer.vocab_size == last + 10
    assert loaded.tokenizer.end_id == 100
    assert f"{last + 10:,}" in capsys.readouterr().err
    path.unlink()  # the run holds it
    resumed = [f"resume={tmp_path / 'run'}", "trainer.max_steps=4"]
    assert train.only(lambda _: False)(*resumed) == 0
