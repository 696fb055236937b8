"""Tokenizers that are made for a corpus: byte-level BPE, characters, bytes."""

from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from minigpt.config import TokenizerConfig
from minigpt.data.pieces import bounded
from minigpt.data.tokenizer import Tokenizer, allow_threads
from minigpt.data.tokenizer_json import END, byte_symbols
from minigpt.errors import InputError

#: Size a BPE vocabulary aims for where the setting is null.
DEFAULT_VOCAB_SIZE = 4096


def train_tokenizer(config: TokenizerConfig, documents: Iterable[str]) -> Tokenizer:
    """Make a tokenizer of the kind asked for from documents (`bytes` needs none).

    BPE is to be given the training documents, `char` the whole corpus. The vocabulary may come
    out smaller than `config.vocab_size` where the text has too few repeated pairs. Raises
    `InputError` for a kind that is not trained.
    """
    match config.kind:
        case "bpe":
            return _train_bpe(config.vocab_size or DEFAULT_VOCAB_SIZE, documents)
        case "char":
            return _symbol_tokenizer(sorted(_alphabet(documents)))
        case "bytes":
            return _symbol_tokenizer(sorted(byte_symbols()), byte_level=True)
        case _:
            raise InputError(f"tokenizer.kind={config.kind}: choose one of bpe, char, bytes")


def _alphabet(documents: Iterable[str]) -> set[str]:
    alphabet: set[str] = set()
    for text in documents:
        alphabet.update(text)
    return alphabet


def _train_bpe(vocab_size: int, documents: Iterable[str]) -> Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=sorted(byte_symbols()),
        show_progress=False,
    )
    allow_threads()
    inner.train_from_iterator(
        (part for text in documents for part in bounded(text)), trainer=trainer
    )
    return Tokenizer(inner)


def _symbol_tokenizer(symbols: list[str], *, byte_level: bool = False) -> Tokenizer:
    """A BPE without merges: one token a symbol, and the end token after them."""
    vocabulary = {symbol: i for i, symbol in enumerate([*symbols, END])}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    if byte_level:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
    else:
        inner.decoder = decoders.Fuse()
    inner.add_special_tokens([END])
    return Tokenizer(inner)
