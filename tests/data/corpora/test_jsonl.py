import json
from pathlib import Path

import pytest

from minigpt.config import DataConfig
from minigpt.data.corpora import load_corpus
from minigpt.data.corpora.corpus import whole
from minigpt.errors import InputError

POEMS = Path(__file__).parents[4] / "shared" / "data" / "tang300.jsonl"


def config(path: Path, **settings: object) -> DataConfig:
    return DataConfig(corpus="jsonl", path=[str(path)], **settings)  # type: ignore[arg-type]


def documents(path: Path, **settings: object) -> list[str]:
    corpus = load_corpus(config(path, **settings))
    return [*whole(corpus.train()), *whole(corpus.validation())]


def test_one_field_of_each_line(tmp_path: Path) -> None:
    texts = [f"line {i}\nand\u2028more é" for i in range(10)]
    lines = [json.dumps({"title": "a", "text": text}, ensure_ascii=i % 2 == 0)
             for i, text in enumerate(texts)]  # fmt: skip
    (tmp_path / "my.jsonl").write_text("\r\n".join([*lines, "", " "]), "utf-8", newline="")
    (tmp_path / "other.txt").write_text("not read in a folder")
    assert documents(tmp_path) == texts
    assert set(documents(tmp_path / "my.jsonl", field="title")) == {"a"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'text': 1}", "my.jsonl, line 3: not JSON: .* at column 2"),
        ("[1]", "line 3: a JSON object is needed, this is an array"),
        ("null", "this is null"),
        ('"text"', "this is a string"),
        ('{"title": "a", "body": "b"}', "line 3: no field 'text'; data.field .*: title, body"),
        ("{}", "no field 'text'; data.field may be one of: none"),
        ('{"text": 3}', "line 3: the field 'text' must be a string, this is a number"),
        ('{"text": {"a": "b"}}', "this is an object"),
        ('{"text": true}', "this is a boolean"),
        ('{"text": "\\ud83d"}', "half of a surrogate pair at character 0"),
    ],
)
def test_a_line_that_will_not_do_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "my.jsonl").write_text(f'{{"text": "a"}}\n\n{line}\n')
    with pytest.raises(InputError, match=message):
        documents(tmp_path / "my.jsonl")


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the folder holds no file that ends in \.jsonl"):
        documents(tmp_path)
    (tmp_path / "my.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"no text in it .0 blank documents"):
        documents(tmp_path)
    (tmp_path / "my.jsonl").write_bytes(b'{"text": "caf\xe9"}')
    with pytest.raises(InputError, match="byte 13 is not utf-8"):
        documents(tmp_path)


def test_validation_from_another_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    (tmp_path / "b.jsonl").write_text('{"text": "b"}')
    corpus = load_corpus(config(tmp_path, val_path=[str(tmp_path / "b.jsonl")]))
    assert (list(whole(corpus.train())), list(whole(corpus.validation()))) == (["a"], ["b"])


@pytest.mark.skipif(not POEMS.is_file(), reason="tang300.jsonl is not there")
def test_poems() -> None:
    corpus = load_corpus(config(POEMS))
    assert (len(list(whole(corpus.train()))), len(list(whole(corpus.validation())))) == (330, 36)
    assert next(whole(corpus.train())).startswith("在嶽詠蟬\n駱賓王\n西陸")
