"""From a corpus to its token store: made once, whole, by one process while others wait.

A prepared folder's name holds a digest of the text, its division and the tokenizer, so that a
folder is right or is not found; it appears by a rename.
"""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from minigpt.config import DataConfig, TokenizerConfig
from minigpt.data.cache import cache_folder, digest
from minigpt.data.corpora import Corpus, load_corpus
from minigpt.data.corpora.corpus import Part, whole
from minigpt.data.corpus_tokenizer import corpus_tokenizer
from minigpt.data.token_store import (
    FORMAT,
    META,
    PARTS,
    TOKENIZER,
    TokenStore,
    open_stores,
    write_stream,
)
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_files import pretrained_tokenizer
from minigpt.errors import InputError, RunError
from minigpt.files import locked
from minigpt.progress import Count

#: Seconds without a write after which a half-made folder is taken for left.
_LEFT = 600.0


@dataclass(frozen=True, slots=True)
class PreparedData:
    """A corpus ready for training. `documents` counts those of the training part."""

    tokenizer: Tokenizer
    train: TokenStore
    validation: TokenStore
    folder: Path
    reused: bool
    documents: int
    corpus: Corpus


def prepare(
    data: DataConfig,
    tokenizer: TokenizerConfig | Tokenizer,
    *,
    corpus: Corpus | None = None,
    trained_on: str | None = None,
    say: Callable[[str], None],
) -> PreparedData:
    """Load a corpus, train its tokenizer unless there is one, and tokenize it once.

    `corpus` is what `load_corpus` made of the same settings, where it was called already. What was
    prepared before from the same text and settings is used again; `say` gets a line that says
    which. `trained_on` names the prepared folder that a resumed run began with: it stands for the
    documents, their split and the tokenizer, wherever the files lie now. Raises `InputError` for a
    corpus or a cache folder that cannot be used or another corpus than that, and `RunError` if the
    disk is full.
    """
    cache = cache_folder(data)
    if isinstance(tokenizer, TokenizerConfig) and tokenizer.kind == "pretrained":
        path, tokenizer = tokenizer.path, pretrained_tokenizer(tokenizer.path)
        say(f"tokenizer {path}: {tokenizer.vocab_size:,} tokens, {tokenizer.end} ends a document")
    what = tokenizer.to_json() if isinstance(tokenizer, Tokenizer) else asdict(tokenizer)
    with _alone(cache, digest([_of_the_text(data), what]), say):
        if corpus is None:
            corpus = _found(data, moved=trained_on is not None)
            say(corpus.summary())
        with _kept_in(cache):
            if isinstance(tokenizer, TokenizerConfig):
                tokenizer = corpus_tokenizer(cache, corpus, tokenizer, say)
            folder = cache / prepared_name(corpus, tokenizer)
            if trained_on not in (None, folder.name):
                raise InputError(
                    f"corpus {corpus.name}: not the text that the resumed run was trained on, it"
                    " has changed since; start a new run"
                )
            stores = open_stores(folder)
            reused = stores is not None
            if stores is None:
                meta = _facts(data, corpus, tokenizer)
                say(f"tokenizing into {folder}{_what_differs(cache, meta)}")
                stores = _make(folder, corpus, tokenizer, meta)
            else:
                say(f"using the prepared tokens in {folder}")
    train, validation = stores
    return PreparedData(tokenizer, train, validation, folder, reused, train.n_documents, corpus)


def _found(data: DataConfig, *, moved: bool) -> Corpus:
    """The corpus; where it may have `moved` since a run began, the error says what to do."""
    try:
        return load_corpus(data)
    except InputError as error:
        if moved and "no such file" in str(error):
            raise InputError(f"{error}; if it was moved, data.path=… says where to") from error
        raise


def _of_the_text(data: DataConfig) -> dict[str, Any]:
    """The settings that decide what is prepared."""
    others = ("batch_size", "layout", "document_mask", "num_workers", "cache_dir", "shuffle_buffer")
    return {name: value for name, value in asdict(data).items() if name not in others}


def prepared_name(corpus: Corpus, tokenizer: Tokenizer) -> str:
    """The name of a corpus's prepared folder: the same for the same documents and tokenizer."""
    key = digest([FORMAT, corpus.identity, tokenizer.to_json()])
    return f"{corpus.name}-{tokenizer.kind}-{key[:16]}"


@contextlib.contextmanager
def _kept_in(cache: Path) -> Generator[None, None, None]:
    """Say which folder it was that something could not be written to."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot keep prepared tokens in {cache}: {error.strerror or error};"
            " data.cache_dir sets another folder"
        ) from error


@contextlib.contextmanager
def _alone(cache: Path, key: str, say: Callable[[str], None]) -> Generator[None, None, None]:
    """Let one process prepare the same thing at a time; those that waited share its failure.

    It is written into the file that is locked, and holds for them alone: a process that finds the
    file free begins anew.
    """
    with _kept_in(cache):
        (cache / "locks").mkdir(parents=True, exist_ok=True)
    path = cache / "locks" / key[:16]
    waited: list[bool] = []

    def wait() -> None:
        waited.append(True)
        say("another process prepares the same data; waiting for it")

    with locked(path, wait=wait):
        failure = path.read_text("utf-8") if waited and path.exists() else ""
        if failure:
            raise InputError(failure)
        with _kept_in(cache):
            path.write_text("", "utf-8")
        try:
            yield
        except InputError as error:
            with contextlib.suppress(OSError):
                path.write_text(str(error), "utf-8")
            raise


def _facts(data: DataConfig, corpus: Corpus, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a prepared folder is made from."""
    return {
        "format": FORMAT,
        "corpus": corpus.name,
        "source": [*data.path, data.name],
        "text": corpus.text,
        "division": corpus.division,
        "tokenizer": digest(tokenizer.to_json()),
        "kind": tokenizer.kind,
    }


def _what_differs(cache: Path, meta: dict[str, Any]) -> str:
    """What is new about what was prepared from the same place before, in words."""
    before: list[list[str]] = []
    for path in cache.glob(f"{meta['corpus']}-*/{META}"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            old: object = json.loads(path.read_text("utf-8"))
            if isinstance(old, dict) and old.get("source") == meta["source"]:
                before.append(_differences(cast("dict[str, Any]", old), meta))
    if not before:
        return ""
    new = min(before, key=len)
    if not new:
        return ", since what was prepared before is damaged"
    return f", since {' and '.join(new)} differ{'s' * (len(new) == 1)} from what was prepared"


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs. Of another text another tokenizer is learned: that is not said too."""
    words = {"text": "the text", "division": "the split"}
    found = [word for key, word in words.items() if old.get(key) != new[key]]
    key = "kind" if found else "tokenizer"
    return found + ["the tokenizer"] * (old.get(key) != new[key])


def _make(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, meta: dict[str, Any]
) -> tuple[TokenStore, TokenStore]:
    """Tokenize both parts into a temporary folder and give it its name when it is whole."""
    _clear_left(folder)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    count = Count(corpus.n_bytes, "tokenizing", "B")
    try:
        for part, documents in zip(PARTS, (corpus.train, corpus.validation), strict=True):
            meta |= {part: _write(temporary / part, documents(), tokenizer, count)}
        if corpus.log_probability is not None:
            told = map(corpus.log_probability, whole(corpus.validation()))
            meta["validation"]["log_probability"] = sum(told)
        corpus.check_unchanged()
        (temporary / TOKENIZER).write_text(tokenizer.to_json(), "utf-8")
        (temporary / META).write_text(json.dumps(meta, indent=1), "utf-8")
        _give_name(temporary, folder)
    finally:
        count.close()
        shutil.rmtree(temporary, ignore_errors=True)
    stores = open_stores(folder)
    if stores is None:
        raise RunError(f"{folder}: what was written cannot be read back")
    return stores


def _clear_left(folder: Path) -> None:
    """Remove what processes that were killed have left of the same: nothing writes to it."""
    for left in folder.parent.glob(f".{folder.name}.*"):
        with contextlib.suppress(OSError):
            written = max(path.stat().st_mtime for path in (left, *left.iterdir()))
            if time.time() - written > _LEFT:
                shutil.rmtree(left)


def _give_name(temporary: Path, folder: Path) -> None:
    """Rename, unless another process was there first; a damaged folder gives way."""
    temporary.chmod(0o755)  # mkdtemp makes it private
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists() and open_stores(folder) is None:
        shutil.rmtree(folder)
    try:
        temporary.rename(folder)
    except OSError:
        if open_stores(folder) is None:
            raise


def _write(
    path: Path, documents: Iterable[Part], tokenizer: Tokenizer, count: Count
) -> dict[str, Any]:
    """Write a part of a corpus as a stream; what `meta.json` says of it."""
    size = 0
    document = 1

    def counted() -> Iterator[Part]:
        nonlocal size, document
        for part in documents:
            n_bytes = len(part.text.encode())
            size += n_bytes
            yield part
            document += part.last
            count.add(n_bytes)

    try:
        facts = write_stream(path, tokenizer.encode_parts(counted()), tokenizer)
    except InputError as error:
        raise InputError(f"{path.name} document {document:,}: {error}") from error
    return facts | {"bytes": size, "log_probability": None}
