"""A folder that is exported: `transformers` loads it with no code of ours, and it is the model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from minigpt.checkpoint import LoadedModel, load_model
from minigpt.command_line import run
from minigpt.export.__main__ import main
from minigpt.export.config import ExportConfig
from minigpt.generation.decode import Decoding, generate
from minigpt.generation.sampling import Sampling
from minigpt.huggingface import gpt2_name
from minigpt.model.gpt import GPT
from tests.export.conftest import SHAPES, Make

Export = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")


def load(transformers: Any, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def random_ids(model: GPT, rows: int = 3) -> Tensor:
    drawn = torch.Generator().manual_seed(1)
    return torch.randint(model.vocab_size, (rows, model.config.block_size), generator=drawn)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_gradients_and_tensors_are_the_models(
    make: Make, export: Export, transformers: Any, shape: str
) -> None:
    ours = make("bpe", **SHAPES[shape]).model
    folder = export("huggingface")
    ids = random_ids(ours)
    for dtype, logits_apart, gradients_apart in (
        (torch.float32, 1e-5, 1e-4),
        (torch.float64, 1e-10, 1e-10),
    ):
        theirs, ours = load(transformers, folder, dtype), ours.to(dtype)
        logits, their_logits = ours(ids), theirs(ids).logits
        largest = max(1.0, logits.abs().max().item())
        assert torch.allclose(logits, their_logits, rtol=0, atol=logits_apart * largest)
        ours.zero_grad()
        for each in (logits, their_logits):
            each.logsumexp(-1).mean().backward()
        named = dict(theirs.named_parameters())
        for name, parameter in ours.named_parameters():
            their_name, turned = gpt2_name(name)
            gradient = named[their_name].grad.T if turned else named[their_name].grad
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad, gradient, rtol=0, atol=gradients_apart), name


def test_every_tensor_is_there_once_and_to_the_bit(make: Make, export: Export) -> None:
    ours = make("char").model.state_dict()
    held = load_file(export("huggingface") / "model.safetensors")
    for name, tensor in ours.items():
        their_name, turned = gpt2_name(name)
        theirs = held.pop(their_name)
        assert torch.equal(tensor, theirs.T if turned else theirs)
    assert not held  # no head, no masks


def greedy(loaded: LoadedModel, prompt: list[int], n: int) -> list[int]:
    decoding = Decoding(
        end_id=-1,  # goes on to the end
        vocab_size=loaded.model.vocab_size,
        max_new_tokens=n,
        sampling=Sampling(temperature=0.0),
        token_bytes=loaded.tokenizer.token_bytes,
    )
    return generate(loaded.model, [prompt], decoding, seed=0)[0].ids


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_greedy_text_is_the_same(
    make: Make, export: Export, transformers: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    make("bpe", block_size=208, n_layer=2)
    loaded = load_model(tmp_path / "model.ckpt", dtype=dtype)
    theirs = load(transformers, export("huggingface"), dtype)
    prompt = [1, 2, 3, 4]
    written = greedy(loaded, prompt, 200)
    theirs.generation_config.eos_token_id = None
    whole = theirs.generate(torch.tensor([prompt]), max_new_tokens=200, do_sample=False)
    their_ids = whole[0, len(prompt) :].tolist()
    assert len(their_ids) == len(written) == 200
    logits = loaded.model(torch.tensor([prompt + written]))[0, len(prompt) - 1 : -1]
    best = logits.topk(2).values
    gaps = (best[:, 0] - best[:, 1]).tolist()
    same = next((i for i in range(200) if written[i] != their_ids[i]), 200)
    assert same == 200 or (dtype == torch.float32 and gaps[same] <= 1e-4)
    assert same > 20


def test_a_prompt_of_the_tokenizer_goes_in_as_it_comes(
    make: Make, export: Export, transformers: Any
) -> None:
    """In transformers GPT-2 adds an embedding for each `token_type_ids` that it is given."""
    loaded = make("bpe")
    folder = export("huggingface")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("the wind", return_tensors="pt")
    assert set(prompt) == {"input_ids", "attention_mask"}
    theirs = load(transformers, folder)(**prompt).logits
    assert torch.allclose(theirs, loaded.model(prompt["input_ids"]), rtol=0, atol=1e-4)


def test_the_config_says_everything(make: Make, export: Export, transformers: Any) -> None:
    loaded = make("bpe", dropout=0.25)
    folder = export("huggingface", "dtype=bfloat16")
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = transformers.GPT2Config.from_pretrained(folder)
    for name in ("n_layer", "n_head", "n_embd"):
        assert getattr(config, name) == getattr(loaded.model.config, name) == said[name]
    assert config.n_positions == loaded.model.config.block_size
    assert config.vocab_size == loaded.model.vocab_size
    assert config.resid_pdrop == config.embd_pdrop == config.attn_pdrop == 0.25
    assert config.bos_token_id == config.eos_token_id == loaded.tokenizer.end_id
    assert config.dtype == torch.bfloat16
    # what is left to its default has no part in a language model
    unsaid = transformers.GPT2Config().to_diff_dict().keys() - said.keys()
    unsaid -= {"transformers_version", "pad_token_id"}
    assert all(name.startswith("summary_") for name in unsaid)
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {
        torch.bfloat16
    }


@pytest.mark.parametrize(("dtype", "step"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_other_types_round_as_torch_does(
    make: Make, export: Export, transformers: Any, dtype: str, step: float
) -> None:
    ours = make("bpe").model
    folder = export("huggingface", f"dtype={dtype}")
    for name, tensor in load_model(folder).model.state_dict().items():
        original = ours.state_dict()[name]
        assert torch.equal(tensor, original.to(getattr(torch, dtype)).float())
        assert ((tensor - original).abs() <= step * original.abs()).all()
    theirs = load(transformers, folder)
    ids = random_ids(ours)
    logits = ours(ids)
    apart = (theirs(ids).logits - logits).abs().max() / logits.abs().max()
    assert apart < 40 * step


def test_a_padded_vocabulary_keeps_its_size_and_is_never_sampled(
    make: Make, export: Export, transformers: Any
) -> None:
    loaded = make("bytes", padded=7)
    folder = export("huggingface")
    assert load_model(folder).model.vocab_size == 264
    theirs = load(transformers, folder)
    with torch.no_grad():  # the likeliest by far
        theirs.transformer.wte.weight[257:] = 9 * theirs.transformer.wte.weight.abs().max()
    ids = theirs.generate(torch.tensor([[1, 2]]), max_new_tokens=20, do_sample=True)
    assert ids.max() < loaded.tokenizer.vocab_size


def test_what_transformers_saves_again_is_the_same(
    make: Make, export: Export, transformers: Any, tmp_path: Path
) -> None:
    loaded = make("bpe")
    folder = export("huggingface")
    load(transformers, folder).save_pretrained(tmp_path / "again")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path / "again")
    again = load_model(tmp_path / "again")
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, loaded.model.state_dict()[name])
    assert again.start_of_document
    text = "the sea <|endoftext|>"
    assert again.tokenizer.encode(text) == loaded.tokenizer.encode(text)
    reread = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert reread(text).input_ids == [loaded.tokenizer.end_id, *loaded.tokenizer.encode(text)]


def test_a_folder_that_goes_in_and_out_again_has_the_same_tensors(
    gpt2_folder: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    folder, _ = gpt2_folder(3, 5, 40, 33, 7)
    given = (f"checkpoint={folder}", f"to={tmp_path / 'out'}", "format=huggingface")
    assert run(main, ExportConfig, "export", [*given]) == 0
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor.view(torch.int32), after[name].view(torch.int32)), name
