"""The tokenized corpus on disk, memory-mapped by every process.

A folder holds one corpus under one tokenizer: `meta.json`, `tokenizer.json`, and for each of
`train` and `validation` the stream (`.bin`) and the places of its end tokens (`.idx`). The stream
is end, document, end, document, …, end. `preparation.py` makes such folders.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.data.tokenizer import Tokenizer

#: Part of every folder's digest; a change of what is stored needs a new one.
FORMAT = 2
PARTS = ("train", "validation")
META, TOKENIZER = "meta.json", "tokenizer.json"

_PLACE = np.dtype("<i8")
#: Documents whose boundaries are looked at when a stream is opened, evenly spread.
_LOOKED_AT = 1000


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
        """To another process a mapped stream goes as the name of its files."""
        rest = (self.n_bytes, self.log_probability)
        if isinstance(self.tokens, np.memmap):
            path = Path(self.tokens.filename or "").with_suffix("")
            return mapped, (path, self.tokens.dtype.str, *rest)
        return TokenStore, (self.tokens, self.starts, *rest)

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


def open_stores(folder: Path) -> tuple[TokenStore, TokenStore] | None:
    """The training and the validation part in a folder, None if it is not there or not whole."""
    try:
        meta = json.loads((folder / META).read_text("utf-8"))
        tokenizer = Tokenizer.from_json((folder / TOKENIZER).read_text("utf-8"))
        train, validation = (_open_part(folder / part, meta[part], tokenizer) for part in PARTS)
    except (OSError, EOFError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return train, validation


def _open_part(path: Path, meta: dict[str, Any], tokenizer: Tokenizer) -> TokenStore:
    """Map one stream; `ValueError` where it is not what it should be.

    Its sizes are looked at, and a thousand of its boundaries and of its tokens.
    """
    known = meta["log_probability"]
    store = mapped(path, meta["dtype"], meta["bytes"] + 0, None if known is None else known + 0.0)
    tokens, starts = store.tokens, store.starts
    if (len(tokens), len(starts)) != (meta["tokens"], meta["documents"] + 1):
        raise ValueError(f"{path}: not of the size that was written")
    seen = np.append(starts[:: len(starts) // _LOOKED_AT + 1], starts[-1])
    if starts[-1] != len(tokens) - 1 or not (tokens[seen] == tokens[0]).all():
        raise ValueError(f"{path}: the boundaries are not where the end tokens are")
    if tokens[0] != tokenizer.end_id or tokens[:: len(tokens) // _LOOKED_AT + 1].max() >= (
        tokenizer.vocab_size
    ):
        raise ValueError(f"{path}: has tokens that its tokenizer has not")
    return store


def mapped(path: Path, dtype: str, n_bytes: int, log_probability: float | None) -> TokenStore:
    """A stream that was written as `path`, without its suffixes."""
    tokens = np.memmap(path.with_suffix(".bin"), dtype=dtype, mode="r")
    starts = np.memmap(path.with_suffix(".idx"), dtype=_PLACE, mode="r")
    return TokenStore(tokens, starts, n_bytes, log_probability)


def id_type(tokenizer: Tokenizer) -> np.dtype[Any]:
    """The type that a tokenizer's ids are stored in."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def write_stream(
    path: Path, ids: Iterable[tuple[npt.NDArray[Any], bool]], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Write documents as a stream, and the places of its end tokens; what there is of it.

    `ids` are the tokens of documents in parts, with True for the last of each.
    """
    dtype = id_type(tokenizer)
    end = np.array([tokenizer.end_id], dtype=dtype).tobytes()
    n_tokens, n_documents = 1, 0
    with path.with_suffix(".bin").open("wb") as stream, path.with_suffix(".idx").open("wb") as idx:
        stream.write(end)
        idx.write((0).to_bytes(_PLACE.itemsize, "little"))
        for part, last in ids:
            stream.write(part.astype(dtype, copy=False).tobytes())
            n_tokens += len(part)
            if last:
                stream.write(end)
                idx.write(n_tokens.to_bytes(_PLACE.itemsize, "little"))
                n_tokens, n_documents = n_tokens + 1, n_documents + 1
    return {"dtype": dtype.str, "tokens": n_tokens, "documents": n_documents}
