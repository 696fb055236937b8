"""What was written, read back and compared with the model it was made of."""

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.checkpoint import LoadedModel
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import END
from minigpt.errors import RunError
from minigpt.generation.prompts import prompt_ids
from minigpt.model.gpt import GPT

#: How far a logit may be from the original's where no weight was rounded, as a share of the largest
#: (at least 1): float32 has 24 bits, and adding a bias of zero is another kernel than adding none.
TOLERANCE = 1e-5

#: Rows of random tokens that are run and decoded, and the most tokens in one.
ROWS, LENGTH = 4, 256

#: What tokenizers have stumbled over.
TEXTS = (
    "Once upon a time there was a fox, and that was all.",
    "It's we'll they've I'd 'tis don''t 'S 'T",
    " leading, trailing ",
    "Spaces , that are kept . Are they ? Yes ! She 's , I 'm , we 've , do n't ' so '",
    "a  b   c    d\t\te\n\nf\r\n\r\n  g \n ",
    "\u00a0no-break\u2003em\u3000ideographic\u2028line\u0085next\x0b\x0c\x1c",
    "3.14159 1,000,000 ½ ² Ⅷ ١٢٣ 1234567890123",
    "Жил-был ёжик; гулял, пел песни.",
    "吾輩は猫である。名前はまだ無い。 我是猫",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "e\u0301 é \u1100\u1161 가 \u0130i ẞß ﬁ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇭 👍🏽 ☃️",
    "def f(x):\n    return {'a': [x**2, \"b\"], **x}  # <tag/> $1 && || :=",
    f"{END} text like the end token{END}{END} <|endoftext |> <s></s>[PAD1]",
    "\x00\x01\x7f\ufeff\ufffd\ufffe\U0010ffff",
    "a" * 300 + " " * 300 + "!" * 300,
)


_FAILED = "the check of what was written failed, nothing is left of it:"


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What the files of an export say by themselves, to be compared with the original.

    `encode` gives a prompt's ids as the other program would, `decode` the text of ids.
    """

    model: GPT
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class Checked:
    """What was compared, and the figures."""

    n_tensors: int
    n_texts: int
    n_tokens: int
    weight: float  # how far one was rounded, as a share of its tensor's largest
    logit: float  # how far one is from the original's
    largest_logit: float
    n_same: int  # of n_tokens: where the likeliest next token is the same


def checked(
    loaded: LoadedModel, plain: GPT, back: ReadBack, as_written: Callable[[str, Tensor], Tensor]
) -> Checked:
    """Compare; `RunError` says what is not as it was meant to be.

    `plain` is the model that was written, `as_written(name, tensor)` a tensor of it in the numbers
    of the file. The tensors have to be those to the bit, and `plain` has to give the original's
    logits to `TOLERANCE`; what rounding does to them beyond that is a figure, not a fault.
    """
    read = back.model.config  # in which nothing tells how training went
    shape = dataclasses.replace(
        plain.config, dropout=read.dropout, residual_init=read.residual_init
    )
    if (read, back.model.vocab_size) != (shape, plain.vocab_size):
        raise RunError(f"{_FAILED} its shape is {back.model.shape()}, not {plain.shape()}")
    weight = _compare_tensors(plain, back.model, as_written)
    n_texts = _compare_texts(loaded, back)
    original, found = _logits(loaded.model), _logits(back.model)
    largest = original.abs().max().item()
    allowed = TOLERANCE * max(1.0, largest)
    for logits in (_logits(plain), original if weight else found):
        if not (off := (logits - original).abs().max().item()) <= allowed:  # NaN too
            raise RunError(
                f"{_FAILED} a logit is {off:.2g} from the original's, {allowed:.2g} is allowed"
            )
    return Checked(
        n_tensors=len(plain.state_dict()),
        n_texts=n_texts,
        n_tokens=original.shape[0] * original.shape[1],
        weight=weight,
        logit=(found - original).abs().max().item(),
        largest_logit=largest,
        n_same=int((original.argmax(-1) == found.argmax(-1)).sum()),
    )


def _compare_tensors(plain: GPT, back: GPT, as_written: Callable[[str, Tensor], Tensor]) -> float:
    """Every tensor bit for bit as it was to be; how far the rounding of the format has moved one.

    The distance is a share of the largest number in the tensor.
    """
    found = back.state_dict()
    largest = 0.0
    for name, tensor in plain.state_dict().items():
        meant = as_written(name, tensor).float()
        if not torch.equal(meant.view(torch.int32), found[name].view(torch.int32)):
            raise RunError(f"{_FAILED} {name} is not what was to be written")
        size = tensor.abs().max().item()
        largest = max(largest, (meant - tensor).abs().max().item() / size if size else 0.0)
    return largest


@torch.no_grad()
def _logits(model: GPT) -> Tensor:
    """(ROWS, T, V) for rows of random tokens, the same for every model of a vocabulary."""
    length = min(LENGTH, model.config.block_size)
    drawn = torch.Generator().manual_seed(0)
    return model(torch.randint(model.vocab_size, (ROWS, length), generator=drawn))


def _compare_texts(loaded: LoadedModel, back: ReadBack) -> int:
    """Texts that are likely to differ, and what random tokens say; how many there were."""
    tokenizer, start = loaded.tokenizer, loaded.start_of_document
    compared = texts(tokenizer)
    for text in compared:
        if back.encode(text) != prompt_ids(tokenizer, text, start_of_document=start):
            raise RunError(f"{_FAILED} {text[:40]!r} encodes otherwise")
    for ids in (*map(tokenizer.encode, compared), *_drawn_ids(tokenizer)):
        if back.decode(ids) != (text := tokenizer.decode(ids)):
            raise RunError(f"{_FAILED} {text[:40]!r} decodes otherwise")
    return len(compared)


def texts(tokenizer: Tokenizer) -> list[str]:
    """Texts to compare tokenizers by, none of them empty, of characters that `tokenizer` knows."""
    shown = [text.replace(END, tokenizer.end) for text in TEXTS]
    compared = [*shown, *map(tokenizer.decode, _drawn_ids(tokenizer))]
    if tokenizer.kind == "char":
        known = set(tokenizer.decode(range(tokenizer.vocab_size)))
        compared = ["".join(each for each in text if each in known) for text in compared]
    return [text for text in compared if text]


def _drawn_ids(tokenizer: Tokenizer) -> list[list[int]]:
    draw = random.Random(0)
    return [draw.choices(range(tokenizer.vocab_size), k=LENGTH) for _ in range(ROWS)]
