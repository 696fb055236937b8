"""A GPT-2 folder: what `transformers` saves is what is read, and nothing else is."""

import fnmatch
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from torch import Tensor

from minigpt import hub
from minigpt.checkpoint import load_model
from minigpt.data import tokenizer_files
from minigpt.data.tokenizer_json import END
from minigpt.errors import InputError
from minigpt.generation.decode import Decoding, generate
from minigpt.generation.sampling import Sampling
from minigpt.huggingface import gpt2_name, read_folder
from minigpt.model.gpt import GPT
from minigpt.run_folder import find_checkpoint

transformers = pytest.importorskip("transformers")

#: What `tokenizer_files` calls the files that it reads.
NAMES = ("TOKENIZER", "VOCABULARY", "MERGES", "SETTINGS", "ADDED")

#: layers, heads, width, context, vocabulary beyond the tokenizer's, activation
SHAPES = [
    (1, 1, 8, 5, 0, "gelu_new"),
    (2, 3, 24, 17, 7, "gelu_pytorch_tanh"),
    (3, 5, 40, 33, 1, "relu"),
    (1, 7, 21, 64, 40, "gelu_new"),
]

MakeFolder = Callable[..., tuple[Path, Any]]


def reference_logits(theirs: Any, tokens: Tensor) -> Tensor:
    return theirs(tokens).logits


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_gradients_are_those_of_transformers(
    gpt2_folder: MakeFolder, shape: tuple[int, int, int, int, int, str]
) -> None:
    folder, theirs = gpt2_folder(*shape)
    ours = load_model(folder).model
    assert ours.vocab_size == theirs.config.vocab_size
    tokens = torch.randint(ours.vocab_size, (3, shape[3]))
    expected, got = reference_logits(theirs, tokens), ours(tokens)
    assert (got - expected).abs().max() <= 1e-5
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (got * weights).sum().backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        their_name, turned = gpt2_name(name)
        gradient = gradients.pop(their_name)
        assert parameter.grad is not None
        scale = max(1.0, gradient.abs().max().item())
        turned_gradient = gradient.T if turned else gradient
        assert (parameter.grad - turned_gradient).abs().max() <= 1e-4 * scale, name
    assert gradients == {}


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_float64_is_exact_to_rounding(
    gpt2_folder: MakeFolder, shape: tuple[int, int, int, int, int, str]
) -> None:
    folder, theirs = gpt2_folder(*shape)
    ours = load_model(folder, dtype=torch.float64).model
    tokens = torch.randint(ours.vocab_size, (2, shape[3]))
    assert (ours(tokens) - reference_logits(theirs.double(), tokens)).abs().max() <= 1e-11


def assert_follows(ours: GPT, ids: list[int], chosen: list[int], gap: float) -> None:
    """Each of `chosen` has the best logit after those before it, or one within `gap` of it."""
    whole = torch.tensor([[*ids, *chosen]])
    with torch.no_grad():
        logits = ours(whole)[0, len(ids) - 1 : -1]
    lacking = logits.max(-1).values - logits.gather(1, torch.tensor(chosen)[:, None])[:, 0]
    assert lacking.max() <= gap


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_greedy_text_of_200_tokens_is_that_of_transformers(
    gpt2_folder: MakeFolder, dtype: torch.dtype
) -> None:
    folder, theirs = gpt2_folder(2, 3, 24, 256, 3, "gelu_new")
    ours = load_model(folder, dtype=dtype)
    theirs = theirs.to(dtype)
    prompt = ours.tokenizer.encode("Once upon")
    tokens = torch.tensor([prompt])
    written = theirs.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=200,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()
    decoding = Decoding(
        end_id=-1,
        vocab_size=ours.model.vocab_size,
        max_new_tokens=200,
        sampling=Sampling(temperature=0.0),
    )
    (own,) = generate(ours.model, [prompt], decoding, seed=0)
    assert len(written) == len(own.ids) == 200
    if dtype == torch.float64:
        assert own.ids == written
    else:  # as far as rounding cannot change a choice
        assert_follows(ours.model, prompt, own.ids, 1e-4)
        assert_follows(ours.model, prompt, written, 1e-4)


def test_shards_and_pickles_of_plain_tensors_and_a_model_without_its_head_are_the_same(
    gpt2_folder: MakeFolder, tmp_path: Path
) -> None:
    folder, theirs = gpt2_folder(2, 3, 24, 17, 7, "gelu_new")
    expected = load_model(folder).model.state_dict()
    sharded, pickled, bare = (
        copied_without_weights(folder, tmp_path / name) for name in ("sharded", "pickled", "bare")
    )
    theirs.save_pretrained(sharded, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 17, 17, dtype=torch.uint8)}
    torch.save(theirs.state_dict() | masks, pickled / "pytorch_model.bin")
    theirs.transformer.save_pretrained(bare)
    for place in (sharded, pickled, bare):
        weights = load_model(place).model.state_dict()
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in weights), place


def copied_without_weights(folder: Path, place: Path) -> Path:
    shutil.copytree(folder, place)
    (place / "model.safetensors").unlink()
    return place


def test_half_precision_files_are_widened(gpt2_folder: MakeFolder) -> None:
    folder, theirs = gpt2_folder(1, 1, 8, 5)
    theirs.half().save_pretrained(folder)
    loaded = load_model(folder).model
    assert loaded.embedding.weight.dtype == torch.float32
    assert torch.equal(loaded.embedding.weight, theirs.transformer.wte.weight.float())


def test_gpt2s_own_tokenizer_files(gpt2_folder: MakeFolder, shared_data: Path) -> None:
    folder, theirs = gpt2_folder(1, 2, 8, 16, vocab_size=50257)
    (folder / "tokenizer.json").unlink()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(shared_data / "gpt2_tokenizer" / name, folder)
    loaded = load_model(folder)
    assert loaded.tokenizer.encode("Hello world") == [15496, 995]
    assert loaded.tokenizer.end_id == 50256
    assert loaded.tokenizer.encode("<|endoftext|>") != [50256]
    assert not loaded.start_of_document
    assert theirs.config.vocab_size == loaded.tokenizer.vocab_size


def test_a_folder_is_found_and_not_resumed(gpt2_folder: MakeFolder) -> None:
    folder, _ = gpt2_folder(1, 1, 8, 5)
    assert find_checkpoint(str(folder)) == folder
    with pytest.raises(InputError, match="no training to resume; start from it with init_from="):
        find_checkpoint(str(folder), for_resuming=True)
    with pytest.raises(InputError, match=r"one file of a Hugging Face folder; name the folder"):
        find_checkpoint(str(folder / "model.safetensors"))


def described(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class Code:
    """What a pickle could run when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("was_run"),)


def with_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def without_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1-of-2.safetensors")
    places = {"transformer.wte.weight": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def with_index(folder: Path, places: dict[str, object]) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def with_pickle(folder: Path, contents: object) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(contents))


def with_torch_file(folder: Path, weights: dict[str, Tensor]) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")


def flipped(folder: Path) -> None:
    from safetensors.torch import load_file

    with_torch_file(folder, load_file(folder / "model.safetensors"))
    path = folder / "pytorch_model.bin"
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def with_tokenizer(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    change(tokenizer)
    path.write_text(json.dumps(tokenizer))


def with_space_in_front(folder: Path) -> None:
    with_tokenizer(folder, lambda t: t["pre_tokenizer"].update(add_prefix_space=True))


C_ATTN, WTE = "transformer.h.0.attn.c_attn.weight", "transformer.wte.weight"

WRONG: list[tuple[str, Callable[[Path], object], str]] = [
    ("no config", lambda f: (f / "config.json").unlink(), "no config.json"),
    ("config", lambda f: (f / "config.json").write_text("{"), "config.json: cannot be read"),
    ("list", lambda f: (f / "config.json").write_text("[]"), "config.json: not a JSON object"),
    ("llama", lambda f: described(f, model_type="llama"), 'model_type is "llama"; .* gpt2'),
    ("gelu", lambda f: described(f, activation_function="gelu"), 'is "gelu"; .* gelu_new, relu'),
    ("list?", lambda f: described(f, activation_function=["relu"]), r"activation_function is \["),
    ("inner", lambda f: described(f, n_inner=30), r"n_inner is 30; only 96 \(4 n_embd\)"),
    ("eps", lambda f: described(f, layer_norm_epsilon=1e-6), "layer_norm_epsilon is 1e-06; only"),
    ("scale", lambda f: described(f, scale_attn_by_inverse_layer_idx=True), "only false can be"),
    ("untied", lambda f: described(f, tie_word_embeddings=False), "tie_word_embeddings is false"),
    ("text", lambda f: described(f, n_layer="2"), 'n_layer is "2"; must be a whole number above 0'),
    ("zero", lambda f: described(f, n_layer=0), "n_layer is 0; must be"),
    ("many", lambda f: described(f, n_layer=10**9), "config has 1,000,000,000 layers and its"),
    ("wide", lambda f: described(f, n_embd=2**31 - 1, n_head=1), "possible model|by its config"),
    ("few bytes", lambda f: with_tokenizer(f, lambda t: t["model"]["vocab"].pop("é")),
     "tokenizer.json: the tokenizer has no token for 1 of the 256 bytes"),
    ("added", lambda f: (f / "added_tokens.json").write_text('{"<extra>": 257}'),
     "the token '<extra>' is added beside the tokenizer's files; only a tokenizer.json"),
    ("decoder", lambda f: (f / "tokenizer_config.json").write_text(
        '{"added_tokens_decoder": {"257": {"content": "<extra>"}}}'), "token '<extra>' is added"),
    ("wider", lambda f: described(f, n_embd=10**30), "n_embd is 1000.*; must be a whole number"),
    ("alias", lambda f: described(f, num_attention_heads=4), "n_head is 3 and num_attention_heads"),
    ("heads", lambda f: described(f, n_head=5), "must be a multiple of n_head=5"),
    ("dropout", lambda f: described(f, resid_pdrop=2), "resid_pdrop is 2; must be a number from 0"),
    ("vocab", lambda f: described(f, vocab_size=9), "tokenizer has 257 tokens and its model 9"),
    ("no weights", lambda f: (f / "model.safetensors").unlink(), "no model.safetensors, model"),
    ("cut", cut_short, "model.safetensors: damaged, or not safetensors"),
    ("shard", without_a_shard, "the shard model-2-of-2.safetensors is missing"),
    ("empty name", lambda f: with_index(f, {"a": ""}), "no weight_map from tensors to the files"),
    ("list of names", lambda f: with_index(f, {"a": ["b"]}), "no weight_map from tensors to the"),
    ("outside", lambda f: with_index(f, {"a": "../model.safetensors"}), "to the files beside it"),
    ("missing", lambda f: with_weights(f, lambda w: w.pop(C_ATTN)), f"have no {C_ATTN}"),
    ("shape", lambda f: with_weights(f, lambda w: w.update({C_ATTN: torch.ones(24, 24)})),
     r"c_attn.weight is \(24, 24\) of float32; .* \(24, 72\)"),
    ("kind", lambda f: with_weights(f, lambda w: w.update({WTE: w[WTE].int()})), "of int32"),
    ("nan", lambda f: with_weights(f, lambda w: w[WTE].fill_(torch.nan)), "is not finite"),
    ("more", lambda f: with_weights(f, lambda w: w.update({"lora": torch.ones(1)})),
     "transformer.lora among its weights is of no plain GPT-2"),
    ("head", lambda f: with_weights(f, lambda w: w.update({"lm_head.weight": w[WTE] + 1})),
     "lm_head.weight is not the embedding"),
    ("code", lambda f: with_pickle(f, Code()), "not plain tensors"),
    ("meta", lambda f: with_torch_file(f, {WTE: torch.ones(257, 24, device="meta")}),
     "not plain tensors"),
    ("flipped", flipped, "pytorch_model.bin: damaged, or not plain tensors"),
    ("float8", lambda f: with_weights(f, lambda w: w.update({WTE: w[WTE].to(torch.float8_e5m2)})),
     "of float8_e5m2; .* 16 to 64 bits"),
    ("no tensors", lambda f: with_pickle(f, {"a": 1}), "not plain tensors"),
    ("pickle", lambda f: (f / "model.safetensors").write_bytes(pickle.dumps(Code())),
     "damaged, or not safetensors"),
    ("no tokenizer", lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json, and no vocab"),
    ("tokenizer", lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer's JSON"),
    ("latin", lambda f: (f / "tokenizer.json").write_bytes(b"\xff"), "tokenizer.json: .*utf-8"),
    ("normal", lambda f: with_tokenizer(f, lambda t: t.update(normalizer={"type": "Lowercase"})),
     "tokenizer.json: the tokenizer changes a text"),
    ("symbols", lambda f: with_tokenizer(f, lambda t: t["model"]["vocab"].update({"日": 257})),
     "tokenizer.json: the tokenizer's token '日' is not in the symbols"),
    ("prefix", lambda f: (f / "tokenizer_config.json").write_text('{"add_prefix_space": true}'),
     "tokenizer_config.json: add_prefix_space is true"),
    ("settings", lambda f: (f / "tokenizer_config.json").write_text("{"), "cannot be read"),
    ("space", with_space_in_front, "tokenizer.json: the tokenizer changes a text"),
]  # fmt: skip


@pytest.mark.parametrize(("break_it", "says"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_folder_that_cannot_be_read_says_why(
    gpt2_folder: MakeFolder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    break_it: Callable[[Path], object],
    says: str,
) -> None:
    folder, _ = gpt2_folder(2, 3, 24, 17)
    monkeypatch.chdir(tmp_path)
    break_it(folder)
    with pytest.raises(InputError, match=says) as caught:
        load_model(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    assert not Path("was_run").exists()


def test_what_a_config_leaves_out_is_gpt2s(gpt2_folder: MakeFolder) -> None:
    folder, theirs = gpt2_folder(12, 12, 24, 8)
    sizes = {"n_embd": 24, "n_positions": 8, "vocab_size": theirs.config.vocab_size}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"} | sizes))
    config = read_folder(folder).config
    assert (config.n_layer, config.n_head, config.activation, config.dropout) == (
        12,
        12,
        "gelu",
        0.1,
    )


def test_sizes_by_their_other_names(gpt2_folder: MakeFolder) -> None:
    folder, theirs = gpt2_folder(2, 3, 24, 17)
    described = json.loads((folder / "config.json").read_text())
    aliases = {"n_head": "num_attention_heads", "n_embd": "hidden_size"}
    renamed = {aliases.get(name, name): value for name, value in described.items()}
    (folder / "config.json").write_text(json.dumps(renamed))
    config = read_folder(folder).config
    assert (config.n_head, config.n_embd) == (theirs.config.n_head, theirs.config.n_embd)


def test_a_token_that_was_added_takes_no_bytes_of_others(gpt2_folder: MakeFolder) -> None:
    folder, _ = gpt2_folder(1, 1, 8, 5, 3)
    path = folder / "tokenizer.json"
    inner = tokenizers.Tokenizer.from_file(str(path))
    inner.add_special_tokens(["[PAD]"])
    inner.save(str(path))
    inner.encode_special_tokens = True
    tokenizer = read_folder(folder).tokenizer
    assert tokenizer.vocab_size == 258
    for text in ("[12]", "[PAD]", "a[b"):
        assert tokenizer.encode(text) == inner.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("single", "opens"), [("</s> $A", True), ("$A </s>", False), ("</s> $A </s>", True)]
)
def test_whether_texts_are_opened_is_what_the_tokenizer_does(
    gpt2_folder: MakeFolder, single: str, opens: bool
) -> None:
    folder, _ = gpt2_folder(1, 1, 8, 5)
    path = folder / "tokenizer.json"
    inner = tokenizers.Tokenizer.from_file(str(path))
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=single.replace("</s>", END), special_tokens=[(END, inner.token_to_id(END))]
    )
    inner.save(str(path))
    assert load_model(folder).start_of_document == opens


def test_gpt2s_files_may_ask_for_the_token_in_front(
    gpt2_folder: MakeFolder, shared_data: Path
) -> None:
    folder, _ = gpt2_folder(1, 2, 8, 16, vocab_size=50257)
    (folder / "tokenizer.json").unlink()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(shared_data / "gpt2_tokenizer" / name, folder)
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    assert load_model(folder).start_of_document
    named = {"add_bos_token": True, "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    with pytest.raises(InputError, match=r"opens a text with '<s>'; only <\|endoftext\|> can"):
        load_model(folder)


def test_padding_and_truncation_of_a_tokenizer_are_left_aside(gpt2_folder: MakeFolder) -> None:
    folder, _ = gpt2_folder(1, 1, 8, 5)
    truncated = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padded = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    with_tokenizer(folder, lambda t: t.update(truncation=truncated, padding=padded))
    assert len(read_folder(folder).tokenizer.encode("Once")) == 4


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, and a hub that cannot be reached and has left nothing in its cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2"])
def test_a_name_on_a_hub_that_cannot_be_reached(name: str) -> None:
    with pytest.raises(InputError) as caught:
        find_checkpoint(name)
    assert str(caught.value).startswith(f"{name}: no such folder or checkpoint here, and the")
    assert "cannot be reached" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("offline")
def test_a_name_that_is_in_the_hubs_cache(gpt2_folder: MakeFolder, tmp_path: Path) -> None:
    folder, _ = gpt2_folder(1, 1, 8, 5)
    kept = tmp_path / "cache" / "models--someone--model"
    shutil.copytree(folder, kept / "snapshots" / "c0ffee")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("c0ffee")
    assert load_model(find_checkpoint("someone/model")).model.config.n_embd == 8


def test_every_file_that_is_read_is_asked_of_the_hub() -> None:
    names = {"config.json", *(getattr(tokenizer_files, name) for name in NAMES)}
    assert names == set(hub.FILES)
    weights = (*hub.WEIGHTS, *hub.OLDER_WEIGHTS)
    for name in ("model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin",
                 "model.safetensors.index.json", "pytorch_model.bin.index.json"):  # fmt: skip
        assert any(fnmatch.fnmatch(name, pattern) for pattern in weights)


@pytest.mark.parametrize("place", ["runs/last", "best", "a/b.ckpt", "a/b.bin", "./gpt2", "a/b/c"])
def test_what_is_no_name_on_the_hub_is_not_looked_for_there(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match="no such run folder, checkpoint or Hugging Face folder; train one"
    ):
        find_checkpoint(place)
