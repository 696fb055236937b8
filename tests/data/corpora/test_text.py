import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import DataConfig
from minigpt.data.corpora import load_corpus, sources
from minigpt.data.corpora.corpus import whole
from minigpt.data.corpora.files import split_text
from minigpt.data.corpora.split import usable
from minigpt.errors import InputError

SHAKESPEARE = Path(__file__).parents[4] / "shared" / "data" / "tinyshakespeare.txt"


def config(*paths: Path | str, **settings: object) -> DataConfig:
    return DataConfig(corpus="text", path=[str(path) for path in paths], **settings)  # type: ignore[arg-type]


def documents(*paths: Path | str, **settings: object) -> list[str]:
    """All documents in their order: held out with everything else, from the whole of a split."""
    corpus = load_corpus(config(*paths, **settings))
    train, validation = list(whole(corpus.train())), list(whole(corpus.validation()))
    if len(train) == len(validation) == corpus.n_documents:
        return [a + b for a, b in zip(train, validation, strict=True)]
    return train + validation


def test_characters_are_kept_as_they_are(tmp_path: Path) -> None:
    text = "a\r\nb\rc\n\n\tnot\ufeffthe start\u2028\x0c é 猫 \n"
    file = tmp_path / "my.txt"
    file.write_bytes(text.encode())
    assert documents(file) == [text]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "gb18030"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    text = "naïve café\n" * 50
    file = tmp_path / "my.txt"
    file.write_bytes(text.encode(encoding))
    assert documents(file, encoding=encoding) == [text]
    assert documents(tmp_path, encoding=encoding) == [text]


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "my.txt"
    file.write_bytes(b"\xef\xbb\xbftext \xef\xbb\xbf here")
    assert documents(file) == ["text \ufeff here"]


def test_large_files_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.data.corpora.files.CHUNK", 5)
    text = "猫が好き, é and so on\r\nmore 🐈 text"
    file = tmp_path / "my.txt"
    file.write_text(text, "utf-8", newline="")
    assert documents(file) == [text]
    assert documents(file, document="line") == ["猫が好き, é and so on", "more 🐈 text"]
    good = text.encode()
    file.write_bytes(good + b"\xff" + good)
    with pytest.raises(InputError, match=rf"byte {len(good):,} is not utf-8"):
        documents(file)


def test_what_is_not_in_the_encoding_names_file_byte_and_setting(tmp_path: Path) -> None:
    file = tmp_path / "my.txt"
    file.write_bytes(b"x" * 1_500_000 + "café".encode("latin-1") + b" and more")
    with pytest.raises(InputError, match=r"my.txt: byte 1,500,003 is not utf-8 .*data.encoding"):
        documents(file)
    file.write_bytes(b"caf\xc3")
    with pytest.raises(InputError, match=r"byte 3 is not utf-8 .unexpected end"):
        documents(file)


@pytest.mark.parametrize("encoding", ["klingon", "rot13", "base64", "utf\0"])
def test_an_unknown_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "my.txt").write_text("text")
    with pytest.raises(InputError, match=r"data.encoding="):
        documents(tmp_path / "my.txt", encoding=encoding)


def test_lines_and_separators(tmp_path: Path) -> None:
    file = tmp_path / "my.txt"
    file.write_bytes(b"one\n\ntwo\r\nthree\r")
    corpus = load_corpus(config(file, document="line"))
    assert (corpus.n_documents, corpus.left_out["blank one"]) == (3, 1)
    assert documents(file, document="line") == ["one", "two", "three\r"]
    assert documents(file, document="\n\n") == ["one", "two\r\nthree\r"]


@given(
    lines=st.lists(st.text("ab\r", max_size=9), min_size=1, max_size=5),
    ends=st.sampled_from(["\n", "\r\n"]),
    closed=st.booleans(),
    chunk=st.integers(1, 5),
)
@settings(max_examples=150)
def test_lines_in_parts_are_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ends: str, closed: bool, chunk: int
) -> None:
    text = ends.join(lines) + ends * closed
    file = tmp_path_factory.mktemp("lines") / "my.txt"
    file.write_bytes(text.encode())
    *ended, rest = text.split("\n")
    wanted = [*(line.removesuffix("\r") for line in ended), rest]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minigpt.data.corpora.files.CHUNK", chunk)
        source, _ = sources(config(file, document="line"))
        assert list(whole(usable(source.documents, None))) == [w for w in wanted if w.strip()]
        told = [line for line in wanted if line.strip()]
        places = [int(len(line) * 0.95) for line in told]
        if sum(map(len, told)) < 20 or not any(places):
            return
        corpus = load_corpus(config(file, document="line", val_fraction=0.05))
        train = [line[:place] for line, place in zip(told, places, strict=True)]
        held = [line[place:] for line, place in zip(told, places, strict=True)]
        assert list(whole(corpus.train())) == list(filter(None, train))
        assert list(whole(corpus.validation())) == list(filter(None, held))


@given(st.lists(st.text("ab-", max_size=4)), st.sampled_from(["-", "--", "a-a"]))
@settings(deadline=None, max_examples=200)
def test_splitting_in_parts_is_splitting(parts: list[str], separator: str) -> None:
    assert list(whole(split_text(parts, separator))) == "".join(parts).split(separator)


@pytest.mark.parametrize("document", ["lines", "Line", "files", "fiel"])
def test_a_misspelt_choice_is_no_separator(tmp_path: Path, document: str) -> None:
    (tmp_path / "my.txt").write_text(f"one {document} two\n")
    with pytest.raises(InputError, match=rf"data.document={document}: .*did you mean (file|line)"):
        documents(tmp_path, document=document)


@pytest.mark.parametrize("document", ["pages", "", "---"])
def test_a_separator_that_separates_nothing_is_refused(tmp_path: Path, document: str) -> None:
    (tmp_path / "my.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError, match=r"file.*line"):
        documents(tmp_path, document=document)


def test_folders_and_globs(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "sub/c.txt", ".hidden/d.txt", ".e.txt", "sub/noext"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"this is {name}")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    told = [f"this is {name}" for name in ("a.md", "b.txt", "sub/c.txt", "sub/noext")]
    corpus = load_corpus(config(tmp_path))
    assert documents(tmp_path) == told
    assert corpus.left_out["binary file"] == 1
    assert "1 binary file left out" in corpus.summary()
    assert documents(f"{tmp_path}/*.txt") == [told[1]]
    assert documents(f"{tmp_path}/**/*.txt") == [told[1], told[2]]
    # named twice, read once
    assert documents(tmp_path / "b.txt", f"{tmp_path}/*.txt", tmp_path) == [
        told[1], told[0], *told[2:]
    ]  # fmt: skip
    # named by hand, read whatever it is called
    assert documents(tmp_path / ".e.txt") == ["this is .e.txt"]


def test_a_name_with_brackets_is_a_name_first(tmp_path: Path) -> None:
    (tmp_path / "my [1].txt").write_text("in brackets")
    assert documents(tmp_path / "my [1].txt") == ["in brackets"]


def test_what_is_held_out_is_not_trained_on(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name * 5)
    corpus = load_corpus(config(tmp_path, val_path=[str(tmp_path / "b.txt")]))
    assert list(whole(corpus.train())) == ["aaaaa", "ccccc"]
    assert list(whole(corpus.validation())) == ["bbbbb"]
    with pytest.raises(InputError, match="none is left to train on"):
        load_corpus(config(tmp_path, val_path=[str(tmp_path)]))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "data.path=.*my.txt: no text in it .1 blank document"),
        (b" \n\n\t", "no text in it"),
        (
            b"x",
            "too short: 1 document of 1 character, and to hold out data.val_fraction=0.1 of them",
        ),
        (b"123456789", "too short: 1 document of 9 characters, .* at least 10 are needed"),
    ],
)
def test_empty_blank_and_too_short_files(tmp_path: Path, contents: bytes, message: str) -> None:
    (tmp_path / "my.txt").write_bytes(contents)
    with pytest.raises(InputError, match=message):
        documents(tmp_path / "my.txt")


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data=text needs data.path="):
        documents()
    with pytest.raises(InputError, match=r"data.path=.*gone.txt: no such file or folder"):
        documents(tmp_path / "gone.txt")
    with pytest.raises(InputError, match="the folder holds no file of text"):
        documents(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(InputError, match=r"data.val_path=gone: no such file"):
        documents(tmp_path, val_path=["gone"])


@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason="tinyshakespeare.txt is not there")
def test_shakespeare_is_split_as_usual() -> None:
    text = SHAKESPEARE.read_bytes().decode()
    corpus = load_corpus(config(SHAKESPEARE))
    assert list(whole(corpus.train())) == [text[:1_003_854]]
    assert list(whole(corpus.validation())) == [text[1_003_854:]]


def test_a_line_that_ends_with_a_chunk_ends(tmp_path: Path) -> None:
    file = tmp_path / "my.txt"
    file.write_bytes(b"x" * ((2 << 20) - 1) + b"\r\nsecond line is this\r\nthird stands here\n")
    corpus = load_corpus(config(file, document="line"))
    assert corpus.n_documents == 3
    train, validation = list(whole(corpus.train())), list(whole(corpus.validation()))
    lines = [a + b for a, b in zip(train, validation, strict=True)]
    assert lines[1:] == ["second line is this", "third stands here"]
    assert lines[0] == "x" * ((2 << 20) - 1)


def test_only_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("this is a text")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "blob").write_bytes(gzip.compress(b"this is a packed one"))
    (tmp_path / "link.txt.gz").symlink_to("blob")
    found = documents(tmp_path / "a.txt", tmp_path / "link.txt.gz")
    assert found == ["this is a text", "this is a packed one"]
    assert "this is a text" in documents(tmp_path)


@pytest.mark.parametrize(
    ("contents", "encoding"),
    [(b"a text", "utf-16"), (b"a text \xff", "punycode"), (b"a +2AA- text", "utf-7")],
)
def test_encodings_with_rules_of_their_own(tmp_path: Path, contents: bytes, encoding: str) -> None:
    (tmp_path / "my.txt").write_bytes(contents)
    with pytest.raises(InputError, match=f"my.txt.* {encoding}"):
        documents(tmp_path / "my.txt", encoding=encoding)


def test_what_a_file_is_instead_is_said(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_bytes("text".encode("utf-16"))
    with pytest.raises(InputError, match=r"begins as UTF-16 does: data.encoding=utf-16"):
        documents(tmp_path / "my.txt")
    (tmp_path / "my.txt").write_bytes(b"PAR1\x15\xff")
    with pytest.raises(InputError, match=r"it is a Parquet file: data=parquet"):
        documents(tmp_path / "my.txt")
    (tmp_path / "my.jsonl").write_text('{"text": "a"}')
    corpus = load_corpus(config(tmp_path / "my.jsonl"))
    assert "1 file read as plain text might be for data=jsonl" in corpus.summary()
