"""The tokenizer that is made for a corpus: once, from as much of it as is needed."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from minigpt.config import TokenizerConfig
from minigpt.data.cache import digest
from minigpt.data.corpora import Corpus
from minigpt.data.pieces import cut_parts
from minigpt.data.token_store import FORMAT
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import GPT2_CUT
from minigpt.data.tokenizer_training import DEFAULT_VOCAB_SIZE, train_tokenizer
from minigpt.errors import InputError
from minigpt.files import written_whole
from minigpt.progress import Count

#: Bytes of text that a BPE learns from: more would take memory, and hardly change its merges.
BPE_LEARNS_FROM = 200_000_000


def corpus_tokenizer(
    cache: Path, corpus: Corpus, config: TokenizerConfig, say: Callable[[str], None]
) -> Tokenizer:
    """The tokenizer of this corpus and these settings, from the cache if it is there."""
    vocab_size = (config.vocab_size or DEFAULT_VOCAB_SIZE) if config.kind == "bpe" else None
    key = digest([FORMAT, corpus.identity, config.kind, vocab_size])
    path = cache / f"{corpus.name}-{config.kind}-tokenizer-{key[:16]}.json"
    if path.is_file():
        try:
            return Tokenizer.from_json(path.read_text("utf-8"))
        except (InputError, UnicodeDecodeError):
            say(f"{path} is damaged and is made again")
    tokenizer = train_tokenizer(config, _learned_from(corpus, config, say))
    corpus.check_unchanged()
    with written_whole(path) as file:
        file.write(tokenizer.to_json().encode())
    return tokenizer


def _learned_from(
    corpus: Corpus, config: TokenizerConfig, say: Callable[[str], None]
) -> Iterator[str]:
    """The text that a tokenizer is made from, in parts of documents.

    The characters are those of the whole corpus. A BPE learns from the training part alone, of a
    large one from so much of it as is enough, evenly spread.
    """
    if config.kind != "bpe":
        yield from (text for text, _ in chain(corpus.train(), corpus.validation()))
        return
    size = corpus.n_bytes or 0
    share = min(1.0, BPE_LEARNS_FROM / size) if size else 1.0
    note = f" from {share:.0%} of the training text" if share < 1 else ""
    vocab_size = config.vocab_size or DEFAULT_VOCAB_SIZE
    say(f"training a BPE tokenizer for up to {vocab_size:,} tokens{note}")
    count = Count(round(size * share) if size else None, "reading for the tokenizer", "B")
    due = taken = 0.0
    for text, _ in cut_parts(corpus.train(), GPT2_CUT):
        due += share * len(text)
        if taken < due:
            taken += len(text)
            count.add(len(text))
            yield text
    count.close()
