"""Small tokenizers of the kinds that other programs have, made with their library."""

import json
from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

TEXTS = [
    "The cat's 12 mats, it'S said: they've 3.14159 (or 1,000)!!\n\n  And the dog's  too.\r\n",
    "def f(x):\n\treturn {'a': x ** 2}  # <tag/>\n",
    "el niño camelCase HTTPServer 猫が好き 🐈 e\u0301té été </s> <|endoftext|>",
] * 3

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}{_REST}"
)
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}|\p{{N}}{{1,3}}{_REST}"
)
#: One that no safe place to cut is known of: it takes a word with the space after it.
WORD_AND_SPACE = r"\S+\s*|\s+"

PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2S_OWN = pre_tokenizers.ByteLevel(add_prefix_space=False)


def splitting(pattern: str, *, invert: bool = False) -> pre_tokenizers.PreTokenizer:
    """Cuts a text by a pattern; with `invert` it removes what does not match, as some files do."""
    split = pre_tokenizers.Split(Regex(pattern), "removed" if invert else "isolated", invert)
    return pre_tokenizers.Sequence([split, PLAIN])


#: How a text is cut before it is merged; of the last three no safe place is known.
CUTTERS = {
    "gpt2": splitting(GPT2),
    "gpt2's own": GPT2S_OWN,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), GPT2S_OWN]),
    "llama3": splitting(LLAMA3),
    "gpt4": splitting(LLAMA3, invert=True),
    "qwen": splitting(QWEN),
    "tekken": splitting(TEKKEN),
    "gpt4o": splitting(GPT4O),
    "unknown": splitting(WORD_AND_SPACE),
    "unknown first": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORD_AND_SPACE), "isolated"), splitting(LLAMA3)]
    ),
    "none": PLAIN,
}


def made(
    cutter: pre_tokenizers.PreTokenizer | None = None,
    special: Iterable[str] = ("<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>"),
    vocab_size: int = 400,
    texts: Iterable[str] = TEXTS,
) -> tokenizers.Tokenizer:
    """A byte-level BPE, by default as Llama 3's; its special tokens are the last."""
    inner = tokenizers.Tokenizer(models.BPE(ignore_merges=cutter is None))
    inner.pre_tokenizer = cutter or splitting(LLAMA3)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer=trainer)
    inner.add_special_tokens(list(special))
    return inner


def described(inner: tokenizers.Tokenizer) -> dict[str, Any]:
    """The JSON of a tokenizer, to be changed."""
    return json.loads(inner.to_str())


def with_holes(*, end: str = "</s>") -> dict[str, Any]:
    """A JSON whose ids leave some unused: in the model's, and between the added tokens.

    An added token stands among the model's ids, too.
    """
    description = described(made(special=()))
    vocabulary = description["model"]["vocab"]
    # 100 is of an added token, 101 to 104 are nobody's
    vocabulary.update({token: i + 5 for token, i in vocabulary.items() if i >= 100})
    last = max(vocabulary.values())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    description["added_tokens"] = [
        {"id": i, "content": content, **flags, "special": special}
        for i, content, special in (
            (100, end, True), (last + 7, "<|pad|>", True), (last + 9, "    ", False),
        )
    ]  # fmt: skip
    return description
