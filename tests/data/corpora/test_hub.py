"""Data sets of the hub: the real loading code, on folders laid out like them."""

import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import datasets as library  # pyright: ignore[reportMissingTypeStubs]  (it has none)
import pytest

from minigpt.command_line import compose
from minigpt.composition import presets
from minigpt.config import DataConfig, TrainConfig
from minigpt.data.corpora import hub, load_corpus, sources
from minigpt.data.corpora.corpus import whole
from minigpt.data.stream import Place, documents
from minigpt.errors import InputError

datasets: Any = library

ROWS = {
    "train": [f"document {i}\r\n é" for i in range(200)],
    "validation": [f"held out {i}" for i in range(7)],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set in the hub's layout, the training split in two files."""
    place = tmp_path / "set" / "data"
    place.mkdir(parents=True)
    for split, rows in ROWS.items():
        for number in range(2 if split == "train" else 1):
            part = rows[number * 100 : number * 100 + 100]
            table = datasets.Dataset.from_dict({"text": part, "n": list(range(len(part)))})
            table.data.table.to_pandas().to_parquet(
                place / f"{split}-0000{number}-of-00002.parquet"
            )
    return tmp_path / "set"


def config(folder: Path | str, **settings: object) -> DataConfig:
    return DataConfig(corpus="hub", name=str(folder), **settings)  # type: ignore[arg-type]


def parts(config: DataConfig) -> tuple[list[str], list[str]]:
    corpus = load_corpus(config)
    return list(whole(corpus.train())), list(whole(corpus.validation()))


def test_the_data_sets_own_split(folder: Path) -> None:
    assert parts(config(folder, val_split="validation")) == (ROWS["train"], ROWS["validation"])


def test_without_one_documents_are_held_out_by_their_text(folder: Path) -> None:
    train, validation = parts(config(folder))
    assert sorted(train + validation) == sorted(ROWS["train"])
    assert 8 <= len(validation) <= 35
    # whatever else there is: a document is in the part that it is in
    train_of_limited, validation_of_limited = parts(config(folder, max_documents=150))
    assert set(train_of_limited) < set(train)
    assert set(validation_of_limited) < set(validation)
    held_out = set(parts(config(folder, val_fraction=0.05))[1])
    assert held_out < set(validation)


def test_a_stream_of_it_has_every_document_once_an_epoch(folder: Path) -> None:
    data = config(folder, val_split="validation", streaming=True, shuffle_buffer=30)
    told = list(islice(documents(sources(data)[0], data, 1, Place()), 400))
    assert Counter(text for _, text in told[:200]) == Counter(ROWS["train"])
    assert Counter(text for _, text in told[200:]) == Counter(ROWS["train"])
    assert {place.shard for place, _ in told} == {0, 1}
    again = documents(sources(data)[0], data, 1, told[137][0])
    assert list(islice(again, 50)) == told[137:187]
    head = load_corpus(data)
    assert list(whole(head.validation())) == ROWS["validation"]


@pytest.mark.parametrize("form", ["json", "csv", "text"])
def test_other_files_are_read_by_the_library_too(tmp_path: Path, form: str) -> None:
    table: Any = datasets.Dataset.from_dict({"text": [f"line {i}" for i in range(40)]})
    if form == "text":
        (tmp_path / "train.txt").write_text("\n".join(table["text"]) + "\n")
    else:
        frame = table.to_pandas()
        if form == "csv":
            frame.to_csv(tmp_path / "train.csv", index=False)
        else:
            frame.to_json(tmp_path / "train.json", orient="records", lines=True)
    train, validation = parts(config(tmp_path))
    assert sorted(train + validation) == sorted(table["text"])


def test_the_identity_is_that_of_the_contents(folder: Path, tmp_path: Path) -> None:
    before = load_corpus(config(folder)).identity
    folder.rename(tmp_path / "renamed")
    assert load_corpus(config(tmp_path / "renamed")).identity == before
    file = tmp_path / "renamed" / "data" / "train-00001-of-00002.parquet"
    datasets.Dataset.from_dict({"text": ["other"] * 100}).to_pandas().to_parquet(file)
    assert load_corpus(config(tmp_path / "renamed")).identity != before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "data=hub needs data.name="),
        ({"name": "./nowhere"}, r"data.name=./nowhere: no such folder"),
        ({"split": "trian"}, "data.split=trian: .*train.*validation"),
        ({"val_split": "test"}, "data.val_split=test: .*train.*validation"),
        ({"config": "other"}, "data.config=other: .*other.* Available: .*default"),
        ({"field": "txt"}, "no column 'txt'; data.field may be one of: text, n"),
        ({"field": "n"}, "the column 'n' holds int64, and text is needed"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(
    folder: Path, settings: dict[str, str], message: str
) -> None:
    asked = config(folder)
    for name, value in settings.items():
        setattr(asked, name, value)
    with pytest.raises(InputError, match=message) as raised:
        load_corpus(asked)
    assert "\n" not in str(raised.value)


def test_a_damaged_file_is_named(folder: Path) -> None:
    file = folder / "data" / "train-00001-of-00002.parquet"
    contents = file.read_bytes()
    file.write_bytes(b"x" * 100 + contents[100:])
    with pytest.raises(InputError, match=rf"{file}: cannot be read") as raised:
        load_corpus(config(folder))
    assert "\n" not in str(raised.value)


def test_a_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no files of data in it|cannot be read"):
        load_corpus(config(tmp_path))


def test_without_a_network_it_is_said_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody answers
    began = time.monotonic()
    with pytest.raises(InputError, match=r"hub cannot be reached.*local copy") as raised:
        load_corpus(config("nobody/nothing"))
    assert time.monotonic() - began < 10
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "preset", ["shakespeare", "tinystories", "wikitext", "openwebtext", "fineweb_edu"]
)
def test_presets_name_a_data_set(preset: str) -> None:
    assert preset in presets("data")
    made, _ = compose(TrainConfig, "train", [f"data={preset}"])
    assert made.data.corpus == "hub"
    assert "/" in made.data.name
    assert made.data.val_split == "validation" or made.data.val_fraction < 0.01


def test_cells_may_be_missing(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"text": ["a", None, "", "b"] * 10})
    table.to_pandas().to_parquet(tmp_path / "train.parquet")
    corpus = load_corpus(config(tmp_path))
    assert (corpus.n_documents, corpus.left_out["blank one"]) == (20, 20)
    assert hub.sources(config(tmp_path))[0].n_skipped == 0
