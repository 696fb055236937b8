"""The tokenized corpus on disk: made once, memory-mapped by every process.

A folder holds one corpus under one tokenizer: `meta.json`, `tokenizer.json`, and for each of
`train` and `validation` the stream (`.bin`) and its document boundaries (`.npy`). The stream is
end, document, end, document, …, end. The folder's name holds a digest of the documents, the split
and the tokenizer, so that a folder is right or is not found; it appears by a rename, whole.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.config import DataConfig, TokenizerConfig
from minigpt.data.corpora import Corpus, load_corpus
from minigpt.data.tokenizer import DEFAULT_VOCAB_SIZE, Tokenizer, train_tokenizer
from minigpt.errors import InputError, RunError
from minigpt.files import check_folder, written_whole

#: Part of every digest; a change of what is stored needs a new one.
FORMAT = 1

#: Seconds between lines about long preparation.
SAY_EVERY = 10.0

_PARTS = ("train", "validation")


@dataclass(frozen=True, slots=True)
class TokenStore:
    """One part of a corpus as a stream of tokens.

    `tokens` (n,) uint16 or uint32; `starts` (documents + 1,) int64, the places of the end tokens,
    which open and close documents; `n_bytes` of the documents as UTF-8; `log_probability` of the
    documents together, in nats, where the corpus knows it.
    """

    tokens: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    n_bytes: int
    log_probability: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process a mapped stream goes as the name of its file."""
        rest = (self.starts, self.n_bytes, self.log_probability)
        if isinstance(self.tokens, np.memmap):
            return _mapped, (self.tokens.filename, self.tokens.dtype.str, *rest)
        return TokenStore, (self.tokens, *rest)

    @property
    def end_id(self) -> int:
        """The end token, which opens every stream."""
        return int(self.tokens[0])

    @property
    def n_documents(self) -> int:
        """Documents in the stream."""
        return len(self.starts) - 1

    @property
    def longest(self) -> int:
        """Tokens of the longest document, its end token included."""
        return int(np.diff(self.starts).max(initial=0))

    @property
    def n_targets(self) -> int:
        """Tokens to predict: all but the first."""
        return len(self.tokens) - 1


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
    """Load a corpus, train its tokenizer unless one is given, and tokenize it once.

    `corpus` is what `load_corpus` made of the same settings, where it was called already. What was
    prepared before from the same documents and settings is used again; `say` gets a line
    that says which. `trained_on` names the prepared folder that a resumed run began with: it
    stands for the documents, their split and the tokenizer, wherever the files lie now. Raises
    `InputError` for a corpus or a cache folder that cannot be used or another corpus than that,
    and `RunError` if the disk is full.
    """
    cache = cache_folder(data)
    if corpus is None:
        corpus = load_corpus(data)
        say(corpus.summary())
    try:
        if isinstance(tokenizer, TokenizerConfig):
            tokenizer = _trained_tokenizer(cache, corpus, tokenizer, say)
        folder = cache / prepared_name(corpus, tokenizer)
        if trained_on not in (None, folder.name):
            raise InputError(
                f"corpus {corpus.name}: not the text that the resumed run was trained on, it has"
                " changed since; start a new run"
            )
        stores = _open(folder)
        reused = stores is not None
        if stores is None:
            say(f"tokenizing into {folder}")
            stores = _make(folder, corpus, tokenizer, say)
        else:
            say(f"using the prepared tokens in {folder}")
    except OSError as error:
        raise RunError(
            f"cannot keep prepared tokens in {cache}: {error.strerror or error};"
            " data.cache_dir sets another folder"
        ) from error
    train, validation = stores
    return PreparedData(tokenizer, train, validation, folder, reused, train.n_documents, corpus)


def cache_folder(data: DataConfig) -> Path:
    """Where prepared corpora go: the setting, else the project's data/cache, else the user's."""
    if data.cache_dir:
        try:
            folder = Path(data.cache_dir).expanduser().absolute()
        except RuntimeError as error:
            raise InputError(f"data.cache_dir={data.cache_dir}: {error}") from error
        check_folder(folder, f"data.cache_dir={data.cache_dir}")
        return folder
    project = Path(__file__).resolve().parents[2]
    if (project / "train.py").is_file() and os.access(project / "data", os.W_OK):
        return project / "data" / "cache"
    return Path.home() / ".cache" / "minigpt"


def _trained_tokenizer(
    cache: Path, corpus: Corpus, config: TokenizerConfig, say: Callable[[str], None]
) -> Tokenizer:
    """The tokenizer of this corpus and these settings, from the cache if it is there."""
    vocab_size = (config.vocab_size or DEFAULT_VOCAB_SIZE) if config.kind == "bpe" else None
    key = _key(corpus, json.dumps([config.kind, vocab_size]))
    path = cache / f"{corpus.name}-{config.kind}-tokenizer-{key}.json"
    if path.is_file():
        try:
            return Tokenizer.from_json(path.read_text("utf-8"))
        except (InputError, UnicodeDecodeError):
            say(f"{path} is damaged and is made again")
    if config.kind == "bpe":
        say(f"training a BPE tokenizer for up to {vocab_size:,} tokens")
    documents = chain(corpus.train(), corpus.validation() if config.kind == "char" else ())
    tokenizer = train_tokenizer(config, documents)
    cache.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(tokenizer.to_json().encode())
    return tokenizer


def _make(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, say: Callable[[str], None]
) -> tuple[TokenStore, TokenStore]:
    """Tokenize both parts into a temporary folder and give it its name when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        meta: dict[str, Any] = {"format": FORMAT, "corpus": corpus.name}
        for part, documents in zip(_PARTS, (corpus.train, corpus.validation), strict=True):
            meta[part] = _write(temporary / part, documents(), tokenizer, say)
        if corpus.log_probability is not None:
            told = map(corpus.log_probability, corpus.validation())
            meta["validation"]["log_probability"] = sum(told)
        (temporary / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
        (temporary / "meta.json").write_text(json.dumps(meta, indent=1), "utf-8")
        _give_name(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    stores = _open(folder)
    if stores is None:
        raise RunError(f"{folder}: what was written cannot be read back")
    return stores


def _give_name(temporary: Path, folder: Path) -> None:
    """Rename, unless another process was there first; a damaged folder gives way."""
    temporary.chmod(0o755)  # mkdtemp makes it private
    if folder.exists() and _open(folder) is None:
        shutil.rmtree(folder)
    try:
        temporary.rename(folder)
    except OSError:
        if _open(folder) is None:
            raise


def _write(
    path: Path, documents: Iterable[str], tokenizer: Tokenizer, say: Callable[[str], None]
) -> dict[str, Any]:
    """Write the stream and the boundaries of documents; what `meta.json` says of them."""
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    end = np.array([tokenizer.end_id], dtype=dtype)
    size = [0]
    starts = [0]
    with path.with_suffix(".bin").open("wb") as file:
        file.write(end.tobytes())
        try:
            for ids in tokenizer.encode_documents(_counting(documents, size, say)):
                file.write(ids.astype(dtype).tobytes())
                file.write(end.tobytes())
                starts.append(starts[-1] + len(ids) + 1)
        except InputError as error:
            raise InputError(f"{path.name} document {len(starts)}: {error}") from error
    np.save(path.with_suffix(".npy"), np.array(starts, dtype=np.int64))
    return {
        "dtype": dtype.str,
        "tokens": starts[-1] + 1,
        "documents": len(starts) - 1,
        "bytes": size[0],
        "log_probability": None,
    }


def _counting(
    documents: Iterable[str], size: list[int], say: Callable[[str], None]
) -> Iterator[str]:
    """Pass documents on, adding up their bytes in `size[0]` and telling of them now and then."""
    last = time.monotonic()
    for number, text in enumerate(documents, 1):
        size[0] += len(text.encode())
        yield text
        if time.monotonic() - last > SAY_EVERY:
            last = time.monotonic()
            say(f"tokenized {number:,} documents, {size[0] / 1e6:,.0f} MB")


def _open(folder: Path) -> tuple[TokenStore, TokenStore] | None:
    """The stores in a folder, or None if it is not there or not whole."""
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        Tokenizer.from_json((folder / "tokenizer.json").read_text("utf-8"))
        train, validation = (_open_part(folder / part, meta[part]) for part in _PARTS)
    except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError):
        return None
    return train, validation


def _open_part(path: Path, meta: dict[str, Any]) -> TokenStore:
    """Map one stream; `ValueError` where its size or its boundaries are not what they should be."""
    starts: npt.NDArray[np.int64] = np.load(path.with_suffix(".npy"))
    store = _mapped(
        path.with_suffix(".bin"), meta["dtype"], starts, meta["bytes"], meta["log_probability"]
    )
    tokens = store.tokens
    if (len(tokens), len(starts)) != (meta["tokens"], meta["documents"] + 1):
        raise ValueError(f"{path}: not of the size that was written")
    if not (tokens[starts] == tokens[0]).all():
        raise ValueError(f"{path}: the boundaries are not where the end tokens are")
    return store


def _mapped(path: Path, dtype: str, *rest: Any) -> TokenStore:
    return TokenStore(np.memmap(path, dtype=dtype, mode="r"), *rest)


def prepared_name(corpus: Corpus, tokenizer: Tokenizer) -> str:
    """The name of a corpus's prepared folder: the same for the same documents and tokenizer."""
    return f"{corpus.name}-{tokenizer.kind}-{_key(corpus, tokenizer.to_json())}"


def _key(corpus: Corpus, tokenizer: str) -> str:
    """The digest that stands for a corpus, its split and a tokenizer (or how to train one)."""
    parts = json.dumps([FORMAT, corpus.identity, tokenizer])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]
