import random
from pathlib import Path

import pytest

from minigpt.config import DataConfig
from minigpt.data.corpora import load_corpus, stdlib
from minigpt.data.corpora.corpus import whole
from minigpt.errors import InputError


def test_the_standard_library_is_read() -> None:
    source = Path(random.__file__).read_bytes().decode()
    corpus = load_corpus(DataConfig(corpus="stdlib"))
    texts = [*whole(corpus.train()), *whole(corpus.validation())]
    assert corpus.n_documents == len(texts) > 100
    assert source in texts


def library(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(stdlib.sysconfig, "get_path", lambda name: {"stdlib": str(folder)}[name])


def test_tests_packages_and_odd_files_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.py", "a/z.py", "test/t.py", "site-packages/p.py", "a/tests/t.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(f"# {name}\r\n".encode())
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9")
    library(monkeypatch, tmp_path)
    corpus = load_corpus(DataConfig(corpus="stdlib"))
    parts = zip(whole(corpus.train()), whole(corpus.validation()), strict=True)
    assert [a + b for a, b in parts] == ["# a/z.py\r\n", "# b.py\r\n"]


def test_a_python_without_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(monkeypatch, tmp_path)
    with pytest.raises(InputError, match="holds no Python source"):
        load_corpus(DataConfig(corpus="stdlib"))
