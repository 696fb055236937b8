"""The one file: whole or not there, safe to load, enough by itself."""

import dataclasses
import json
import os
import pickle
import resource
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.checkpoint import (
    MODEL_PREFIX,
    RECORD,
    load_model,
    read_checkpoint,
    write_checkpoint,
)
from minigpt.config import ModelConfig, TokenizerConfig, plain
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.errors import InputError, RunError
from minigpt.model.gpt import GPT

CONFIG = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=8)


def contents(config: ModelConfig = CONFIG) -> dict[str, Any]:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["abcde"])
    model = GPT(config, tokenizer.vocab_size)
    return {
        "state_dict": {MODEL_PREFIX + name: t for name, t in model.state_dict().items()},
        RECORD: {
            "model_config": plain(config),
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.to_json(),
            "documents": 1,
        },
    }


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_what_is_saved_is_what_is_loaded(
    tmp_path: Path, position: str, dtype: torch.dtype | None
) -> None:
    config = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=8, position=position)
    saved = contents(config)
    write_checkpoint(tmp_path / "a.ckpt", saved)
    loaded = load_model(tmp_path / "a.ckpt", dtype=dtype)
    assert not loaded.model.training
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("decade")) == "decade"
    for name, tensor in loaded.model.state_dict().items():
        assert tensor.dtype == (dtype or torch.float32)
        assert torch.equal(tensor.float(), saved["state_dict"][MODEL_PREFIX + name])


def test_loading_draws_nothing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.ckpt", contents())
    before = torch.get_rng_state()
    load_model(tmp_path / "a.ckpt")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_model_can_be_trained_whatever_shares_memory_in_the_file(tmp_path: Path) -> None:
    """Names of one memory, a part of a larger one, a turned one, one without gradient."""
    saved = contents()
    weights = saved["state_dict"]
    first, second = (f"{MODEL_PREFIX}blocks.{i}.attention.output.weight" for i in (0, 1))
    weights[second] = weights[first]
    up = f"{MODEL_PREFIX}blocks.0.mlp.up.weight"
    weights[up] = torch.randn(99, 8)[7:39]
    down = f"{MODEL_PREFIX}blocks.0.mlp.down.weight"
    weights[down] = torch.randn(32, 8).T
    table = f"{MODEL_PREFIX}embedding.weight"
    weights[table] = torch.nn.Parameter(weights[table], requires_grad=False)
    write_checkpoint(tmp_path / "a.ckpt", saved)
    model = load_model(tmp_path / "a.ckpt").model
    places: set[int] = set()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[MODEL_PREFIX + name]), name
        assert parameter.requires_grad, name
        assert parameter.is_contiguous(), name
        assert parameter.untyped_storage().nbytes() == parameter.nbytes, name
        places.add(parameter.data_ptr())
    assert len(places) == len(list(model.parameters()))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_none_is_found(tmp_path: Path, number: float) -> None:
    saved = contents()
    saved["state_dict"][f"{MODEL_PREFIX}blocks.1.mlp.up.weight"][3, 5] = number
    write_checkpoint(tmp_path / "a.ckpt", saved)
    with pytest.raises(
        InputError, match=r"blocks\.1\.mlp\.up\.weight in its weights is not finite"
    ):
        load_model(tmp_path / "a.ckpt")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ckpt"
    write_checkpoint(path, contents())
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match="No space left"):
        write_checkpoint(path, contents())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.ckpt"]


class RunsCode:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def rewritten(path: Path, change: Callable[[str, bytes], bytes], packing: int = 0) -> None:
    """Write the archive at `path` again, each entry as `change(name, content)` gives it."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in entries.items():
            archive.writestr(name, change(name, content))


def legacy(path: Path, trap: Path) -> None:
    torch.save(contents() | {"x": RunsCode(trap)}, path, _use_new_zipfile_serialization=False)


def plain_pickle(path: Path, trap: Path) -> None:
    path.write_bytes(pickle.dumps(contents() | {"x": RunsCode(trap)}))


def poisoned_pickle_of_a_sound_file(path: Path, trap: Path) -> None:
    torch.save(contents(), path)
    poison = pickle.dumps(RunsCode(trap), protocol=2)
    rewritten(path, lambda name, old: poison if name.endswith("data.pkl") else old)


def poison_before_what_is_sound(path: Path, trap: Path) -> None:
    torch.save(contents(), path)
    poison = pickle.dumps(RunsCode(trap), protocol=2)[2:-1] + pickle.POP
    rewritten(
        path, lambda name, old: old[:2] + poison + old[2:] if name.endswith("data.pkl") else old
    )


def inside(*place: str) -> Callable[[Path, Path], None]:
    """A file of ours with such an object somewhere in it."""

    def make(path: Path, trap: Path) -> None:
        whole = contents()
        part = whole
        for name in place[:-1]:
            part = part.setdefault(name, {})
        part[place[-1]] = RunsCode(trap)
        torch.save(whole, path)

    return make


MALICE: list[Callable[[Path, Path], None]] = [
    inside("x"),
    inside("state_dict"),
    inside("state_dict", MODEL_PREFIX + "norm.weight"),
    inside(RECORD),
    inside(RECORD, "tokenizer"),
    inside(RECORD, "config", "seed"),
    inside("optimizer_states", "0", "state"),
    inside("hyper_parameters", "_instantiator"),
    legacy,
    plain_pickle,
    poisoned_pickle_of_a_sound_file,
    poison_before_what_is_sound,
]


@pytest.mark.parametrize("make", MALICE)
def test_a_checkpoint_that_would_run_code_is_refused_and_does_not(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    trap = tmp_path / "ran"
    make(tmp_path / "a.ckpt", trap)
    for read in (read_checkpoint, load_model):
        with pytest.raises(InputError, match=r"a.ckpt: damaged, or not a checkpoint$"):
            read(tmp_path / "a.ckpt")
    # in the folder of a damaged one too, where what is beside it is looked at
    (tmp_path / "b.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match=r"b.ckpt: damaged, or not a checkpoint$"):
        read_checkpoint(tmp_path / "b.ckpt")
    assert not trap.exists()


def test_the_traps_spring_where_nobody_takes_care(tmp_path: Path) -> None:
    for number, make in enumerate(MALICE):
        path, trap = tmp_path / f"{number}.ckpt", tmp_path / f"ran{number}"
        make(path, trap)
        if make is plain_pickle:
            pickle.loads(path.read_bytes())  # noqa: S301  (that is what is shown)
        else:
            torch.load(path, weights_only=False)
        assert trap.is_dir(), make


def test_a_class_named_in_hyperparameters_is_not_looked_for(tmp_path: Path) -> None:
    whole = contents() | {
        "hyper_parameters": {"_instantiator": "os.system", "_class_path": "antigravity.fly"},
        "hparams_name": "kwargs",
        "pytorch-lightning_version": "not a version",
        "callbacks": {"Milestones": {"_target_": "os.system"}},
    }
    write_checkpoint(tmp_path / "a.ckpt", whole)
    assert load_model(tmp_path / "a.ckpt").model.vocab_size == 6
    assert "antigravity" not in sys.modules


# ------------------------------------------------------------------ larger than it is


def test_a_packed_file_is_refused_before_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    torch.save(contents() | {"x": torch.zeros(10_000_000)}, path)
    rewritten(path, lambda _, old: old, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="damaged, or not a checkpoint"):
        read_checkpoint(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # of 40,000 KiB


def test_a_tensor_that_claims_more_than_the_file_is_refused(tmp_path: Path) -> None:
    whole = contents()
    whole["state_dict"]["model.x"] = torch.zeros(1).expand(1_000_000_000)
    write_checkpoint(tmp_path / "a.ckpt", whole)
    with pytest.raises(InputError, match=r"its weights claim 4,000,00.* more than the file has"):
        read_checkpoint(tmp_path / "a.ckpt")
    path = tmp_path / "b.ckpt"
    torch.save(contents() | {"x": torch.zeros(1000)}, path)
    thousand, claimed = b"M\xe8\x03", b"J" + (10**9).to_bytes(4, "little")
    rewritten(path, lambda _, old: old.replace(thousand, claimed))
    with pytest.raises(InputError, match="damaged, or not a checkpoint"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("n_layer", 10**9), ("block_size", 10**12), ("n_embd", 10**9)],
)
@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_a_config_of_a_huge_model_is_refused_at_once(
    tmp_path: Path, setting: str, value: int, position: str
) -> None:
    whole = contents(dataclasses.replace(CONFIG, position=position))
    whole[RECORD]["model_config"][setting] = value
    write_checkpoint(tmp_path / "a.ckpt", whole)
    started = time.process_time()
    with pytest.raises(InputError, match="do not fit each other"):
        load_model(tmp_path / "a.ckpt")
    assert time.process_time() - started < 2


def test_a_huge_vocabulary_is_refused(tmp_path: Path) -> None:
    whole = contents()
    whole[RECORD]["vocab_size"] = 10**12
    write_checkpoint(tmp_path / "a.ckpt", whole)
    with pytest.raises(
        InputError, match=r"embedding.weight is \(6, 8\), its config says \(10{12}, 8\)"
    ):
        load_model(tmp_path / "a.ckpt")


def test_a_tokenizer_of_huge_ids_is_refused(tmp_path: Path) -> None:
    whole = contents()
    written = json.loads(whole[RECORD]["tokenizer"])
    written["model"]["vocab"]["a"] = 2**32 - 2
    whole[RECORD] |= {"tokenizer": json.dumps(written), "vocab_size": 2**32 - 1}
    write_checkpoint(tmp_path / "a.ckpt", whole)
    with pytest.raises(InputError, match="ids go up to 4,294,967,294 for 6 tokens"):
        load_model(tmp_path / "a.ckpt")


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.999])
def test_a_truncated_file_is_named_and_its_neighbour_offered(tmp_path: Path, keep: float) -> None:
    write_checkpoint(tmp_path / "last.ckpt", contents())
    write_checkpoint(tmp_path / "best.ckpt", contents())
    whole = (tmp_path / "last.ckpt").read_bytes()
    size = int(keep * len(whole)) if isinstance(keep, float) else keep
    (tmp_path / "last.ckpt").write_bytes(whole[:size])
    with pytest.raises(InputError) as caught:
        load_model(tmp_path / "last.ckpt")
    assert "last.ckpt" in str(caught.value)
    assert "best.ckpt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    with pytest.raises(InputError, match="not a checkpoint of this program"):
        read_checkpoint(tmp_path / "foreign.ckpt")
    (tmp_path / "text.ckpt").write_text("hello", encoding="utf-8")
    with pytest.raises(InputError, match="damaged, or not a checkpoint"):
        read_checkpoint(tmp_path / "text.ckpt")
    with pytest.raises(InputError, match="no such checkpoint file"):
        read_checkpoint(tmp_path / "missing.ckpt")


def without(name: str) -> Callable[[dict[str, Any]], None]:
    def change(whole: dict[str, Any]) -> None:
        part = whole[RECORD] if name in whole[RECORD] else whole["state_dict"]
        del part[name]

    return change


def with_part(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(whole: dict[str, Any]) -> None:
        part: Any = whole
        *groups, name = (int(each) if each.isdigit() else each for each in place.split("/"))
        for group in groups:
            part = part[group]
        part[name] = value

    return change


WEIGHT = MODEL_PREFIX + "norm.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without(MODEL_PREFIX + "embedding.weight"), "embedding.weight is in only one of"),
        (with_part("state_dict/model.more", torch.zeros(2)), "more is in only one of"),
        (with_part(f"state_dict/{WEIGHT}", torch.zeros(9)), r"norm.weight is \(9,\), .* \(8,\)"),
        (with_part(f"state_dict/{WEIGHT}", torch.full((8,), torch.nan)), "norm.weight.*finite"),
        (with_part(f"state_dict/{WEIGHT}", torch.zeros(8).int()), "norm.weight in its state_dict"),
        (with_part(f"state_dict/{WEIGHT}", torch.zeros(8, device="meta")), "no tensor of floating"),
        (with_part(f"state_dict/{WEIGHT}", torch.zeros(8).to_sparse()), "no tensor of floating"),
        (with_part(f"state_dict/{WEIGHT}", [1.0] * 8), "norm.weight in its state_dict"),
        (with_part("state_dict/more", torch.zeros(8)), "more is in only one of"),
        (with_part("state_dict/3", torch.zeros(8)), "3 in its state_dict"),
        (with_part("state_dict", [1]), "its state_dict is list, must be dict"),
        (with_part(RECORD, 3), "not a checkpoint of this program"),
        (without("vocab_size"), "vocab_size in its record is missing, must be int"),
        (without("documents"), "documents in its record is missing"),
        (with_part(f"{RECORD}/vocab_size", "6"), "vocab_size in its record is of type str"),
        (with_part(f"{RECORD}/vocab_size", True), "vocab_size in its record is of type bool"),
        (with_part(f"{RECORD}/documents", -1), "documents in its record is -1, must be 0 or more"),
        (with_part(f"{RECORD}/model_config", []), "model_config in its record is of type list"),
        (with_part(f"{RECORD}/model_config/n_layer", "2"), "n_layer=2: must be int"),
        (with_part(f"{RECORD}/model_config/n_head", 3), "must be a multiple of n_head=3"),
        (with_part(f"{RECORD}/model_config/rope", True), "unknown setting rope"),
        (with_part(f"{RECORD}/model_config", {1: 2}), "its record cannot be used"),
        (with_part(f"{RECORD}/tokenizer", "{}"), "not a tokenizer's JSON"),
        (with_part(f"{RECORD}/tokenizer", ""), "not a tokenizer's JSON"),
    ],
)
def test_parts_that_are_wrong_are_refused_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    whole = contents()
    change(whole)
    write_checkpoint(tmp_path / "a.ckpt", whole)
    with pytest.raises(InputError, match=says) as caught:
        load_model(tmp_path / "a.ckpt")
    assert str(caught.value).startswith(f"{tmp_path}/a.ckpt: ")
    assert "\n" not in str(caught.value)


def test_every_flipped_byte_of_a_tensor_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    write_checkpoint(path, contents())
    with zipfile.ZipFile(path) as archive:
        tensor = next(e for e in archive.infolist() if e.filename.endswith("data/0"))
    whole = path.read_bytes()
    start = tensor.header_offset
    sizes = struct.unpack_from("<HH", whole, start + 26)  # of the name and of what pads it
    place = start + 30 + sum(sizes) + 20
    for bit in range(8):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged"):
            read_checkpoint(path)
