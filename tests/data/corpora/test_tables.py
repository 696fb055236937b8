"""CSV and Parquet, and what is packed with gzip."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]  (it has none)
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]  (it has none)

from minigpt.config import DataConfig
from minigpt.data.corpora import load_corpus
from minigpt.data.corpora.corpus import whole
from minigpt.data.corpora.csv import SUFFIXES
from minigpt.errors import InputError

TEXTS = [f'document {i}, "quoted"\r\nand é\u2028 🐈\n' for i in range(10)]


def documents(corpus: str, path: Path, **settings: object) -> list[str]:
    config = DataConfig(corpus=corpus, path=[str(path)], **settings)  # type: ignore[arg-type]
    found = load_corpus(config)
    return [*whole(found.train()), *whole(found.validation())]


def as_csv(texts: list[str], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerows([["id", "text"], *([i, text] for i, text in enumerate(texts))])
    return file.getvalue().encode()


def as_parquet(texts: list[str | None], kind: pa.DataType | None = None) -> bytes:
    file = io.BytesIO()
    column = pa.array(texts, kind or pa.string())
    table = pa.table({"id": list(range(len(texts))), "text": column})
    parquet.write_table(table, file, row_group_size=4, compression="none")
    return file.getvalue()


def as_jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts).encode()


FORMS = {
    "text": "\f".join(TEXTS).encode(),
    "jsonl": as_jsonl(TEXTS),
    "csv": as_csv(TEXTS),
    "parquet": as_parquet([*TEXTS]),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("corpus", FORMS)
def test_the_text_is_exactly_theirs(tmp_path: Path, corpus: str, packed: bool) -> None:
    folder = tmp_path / "folder" / "inside"
    folder.mkdir(parents=True)
    contents = gzip.compress(FORMS[corpus]) if packed else FORMS[corpus]
    file = folder / f"my.{corpus}{'.gz' * packed}"
    file.write_bytes(contents)
    settings = {"document": "\f"} if corpus == "text" else {}
    assert documents(corpus, file, **settings) == TEXTS
    assert documents(corpus, tmp_path / "folder", **settings) == TEXTS
    assert documents(corpus, tmp_path / "*" / "*" / "my*", **settings) == TEXTS


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=10, max_size=20))
@settings(max_examples=50)
def test_csv_cells_are_kept(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    file = tmp_path_factory.mktemp("csv") / "my.csv"
    # Python's own reader and writer take a lone \r for a line's end unless it is quoted
    file.write_bytes(as_csv(texts))
    found = documents("csv", file)
    assert sorted(found) == sorted(texts)


def test_a_tsv_has_tabs(tmp_path: Path) -> None:
    (tmp_path / "my.tsv").write_bytes(as_csv(TEXTS, "\t"))
    (tmp_path / "my.tsv.gz").write_bytes(gzip.compress(as_csv(["packed"], "\t")))
    assert documents("csv", tmp_path, val_path=[str(tmp_path / "my.tsv.gz")]) == [*TEXTS, "packed"]
    assert SUFFIXES == (".csv", ".tsv")


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_arrow_has_several_kinds_of_text(tmp_path: Path, kind: pa.DataType) -> None:
    (tmp_path / "my.parquet").write_bytes(as_parquet(["a", None, "", "b"] * 5, kind))
    found = load_corpus(DataConfig(corpus="parquet", path=[str(tmp_path)]))
    assert (found.n_documents, found.left_out["blank one"]) == (10, 10)


@pytest.mark.parametrize(
    ("corpus", "contents", "message"),
    [
        ("jsonl", as_jsonl(["a"]) + b"{", r"my.jsonl, line 2: not JSON"),
        ("csv", b"", r"my.csv: no column 'text'; data.field may be one of: none"),
        ("csv", b"id,title\n1,a\n", "no column 'text'; data.field may be one of: id, title"),
        ("csv", b"id,text\n1,a\n2,b,c\n", r"my.csv, line 3: 3 cells where .* names 2 columns"),
        ("csv", b'id,text\n1,"a\n2,b\n', r"my.csv, line 2: not CSV: unexpected end of data"),
        ("csv", b'id,text\n1,"a"b\n', r"line 2: not CSV: .*expected after"),
        ("csv", b"id,text\n1,caf\xe9\n", "byte 13 is not utf-8"),
        ("parquet", b"PAR1 not really", "my.parquet: no Parquet file, or a damaged one"),
        ("parquet", b"", "my.parquet: no Parquet file, or a damaged one"),
        ("parquet", FORMS["parquet"][:-40], "my.parquet: no Parquet file, or a damaged one"),
        (
            "parquet",
            FORMS["parquet"].replace(b"document 2", b"\xff" * 10),
            "my.parquet: no Parquet file, or a damaged one",
        ),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, corpus: str, contents: bytes, message: str
) -> None:
    (tmp_path / f"my.{corpus}").write_bytes(contents)
    with pytest.raises(InputError, match=message) as raised:
        documents(corpus, tmp_path)
    assert "\n" not in str(raised.value)


def test_a_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "my.parquet").write_bytes(FORMS["parquet"])
    with pytest.raises(InputError, match="the column 'id' holds int64, and text is needed"):
        documents("parquet", tmp_path, field="id")
    with pytest.raises(InputError, match=r"no column 'txt'; data.field may be one of: id, text"):
        documents("parquet", tmp_path, field="txt")


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[: len(packed) // 2],
        lambda packed: packed[:-6] + b"wrong!",
        lambda packed: b"no gzip" + packed,
        lambda packed: packed[:20] + bytes(20) + packed[40:],
        lambda packed: packed + b"and more",
    ],
)
@pytest.mark.parametrize("corpus", FORMS)
def test_damaged_gzip_is_named(tmp_path: Path, corpus: str, damage: object) -> None:
    packed = gzip.compress(FORMS[corpus])
    (tmp_path / f"my.{corpus}.gz").write_bytes(damage(packed))  # type: ignore[operator]
    with pytest.raises(InputError, match=rf"my.{corpus}.gz: .*damaged") as raised:
        documents(corpus, tmp_path)
    assert "\n" not in str(raised.value)


def test_a_byte_inside_a_packed_file(tmp_path: Path) -> None:
    (tmp_path / "my.txt.gz").write_bytes(gzip.compress(b"abc\xff"))
    with pytest.raises(InputError, match=r"byte 3 of what is packed in it is not utf-8"):
        documents("text", tmp_path)


def test_a_folder_without_such_files_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("text")
    with pytest.raises(InputError, match=r"no file that ends in \.csv or \.tsv"):
        documents("csv", tmp_path)
