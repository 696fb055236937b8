"""Documents in parts to tokens in parts, as fast as the tokenizer goes."""

from collections.abc import Iterable, Iterator

from minigpt.data.corpora.corpus import Part, whole
from minigpt.data.tokenizer import Ids, Tokenizer


def encode_parts(tokenizer: Tokenizer, parts: Iterable[Part]) -> Iterator[tuple[Ids, bool]]:
    """The tokens of documents in parts, with True for the last part of each."""
    return ((ids, True) for ids in tokenizer.encode_documents(whole(parts)))
