"""The tokenizer of an exported folder, as `AutoTokenizer` has it, gives our ids and our text."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigpt.checkpoint import load_model
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import END
from minigpt.export.check import TEXTS, texts
from minigpt.generation.prompts import prompt_ids
from tests.export.conftest import Make, make_model

Export = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")

#: Every Unicode text; some that look like the end token, or a part of it.
any_text = st.lists(st.one_of(st.text(max_size=12), st.sampled_from([END, "<|", " ", "\n"]))).map(
    "".join
)


@dataclass(frozen=True)
class Exported:
    ours: Tokenizer
    theirs: Any
    start: bool


@pytest.fixture(scope="module", params=["bpe", "bytes", "char"])
def exported(
    request: pytest.FixtureRequest, transformers: Any, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    """A tokenizer of each kind, the texts of one with the end token in front."""
    from minigpt.export.huggingface import write

    folder = tmp_path_factory.mktemp("exported")
    documents = 1 if request.param == "bytes" else 5
    loaded = make_model(folder / "model.ckpt", request.param, documents=documents, n_layer=1)
    write(folder / "out", loaded, loaded.model, card="", dtype="float32")
    theirs = transformers.AutoTokenizer.from_pretrained(folder / "out")
    return Exported(loaded.tokenizer, theirs, loaded.start_of_document)


def known(tokenizer: Tokenizer, text: str) -> str:
    """What `tokenizer` has tokens for, of a text."""
    if tokenizer.kind != "char":
        return text
    alphabet = set(tokenizer.decode(range(tokenizer.vocab_size)))
    return "".join(character for character in text if character in alphabet)


@given(text=any_text)
def test_every_text_becomes_our_ids_and_comes_back(exported: Exported, text: str) -> None:
    ours, theirs = exported.ours, exported.theirs
    text = known(ours, text)
    ids = theirs(text).input_ids
    if text:
        assert ids == prompt_ids(ours, text, start_of_document=exported.start)
        assert theirs(text, add_special_tokens=False).input_ids == ours.encode(text)
    else:
        assert ids == ([ours.end_id] if exported.start else [])
    assert theirs.decode(ids, skip_special_tokens=True) == text


@given(data=st.data())
def test_any_ids_become_our_text(exported: Exported, data: st.DataObject) -> None:
    ours = exported.ours
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=20))
    assert exported.theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)


def test_the_texts_of_the_check(exported: Exported) -> None:
    compared = texts(exported.ours)
    assert len(compared) >= len(TEXTS)
    for text in compared:
        expected = prompt_ids(exported.ours, text, start_of_document=exported.start)
        assert exported.theirs(text).input_ids == expected


def test_the_end_token_is_begin_and_end(exported: Exported) -> None:
    assert exported.theirs.bos_token_id == exported.ours.end_id
    assert exported.theirs.eos_token_id == exported.ours.end_id
    assert exported.theirs.vocab_size + len(exported.theirs.get_added_vocab()) >= (
        exported.ours.vocab_size
    )
    assert exported.theirs.model_max_length == 64


@pytest.mark.parametrize("documents", [1, 2])
def test_our_reader_knows_again_how_a_prompt_begins(
    make: Make, export: Export, documents: int
) -> None:
    loaded = make("bpe", documents=documents)
    again = load_model(export("huggingface"))
    assert again.start_of_document == loaded.start_of_document == (documents > 1)
    for text in texts(loaded.tokenizer):
        assert again.tokenizer.encode(text) == loaded.tokenizer.encode(text)


def test_an_export_of_an_export_is_the_same(make: Make, export: Export, tmp_path: Path) -> None:
    from minigpt.command_line import run
    from minigpt.export.__main__ import main
    from minigpt.export.config import ExportConfig

    make("bpe", documents=1)
    first = export("huggingface")
    again = [f"checkpoint={first}", f"to={tmp_path / 'again'}", "format=huggingface"]
    assert run(main, ExportConfig, "export", again) == 0
    for path in first.iterdir():
        if path.name != "README.md":  # names its folder
            assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
