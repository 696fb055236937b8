"""Text from a model in training, to look at and to judge."""

import os
from collections.abc import Callable
from pathlib import Path

from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import RunError
from minigpt.generation.decode import Decoding, generate
from minigpt.generation.sampling import Sampling, banned
from minigpt.model.gpt import GPT

#: Most tokens of a sample that is shown.
SAMPLE_TOKENS = 200
#: Samples whose validity is judged, where the corpus can judge it.
JUDGED_SAMPLES = 500
#: The loss at which one batch counts as learned by heart (`overfit=true`), in nats a token.
OVERFIT_LOSS = 0.01
#: Tokens, the opening end token included, from which the model has to recite the rest.
OVERFIT_PROMPT = 6


def sample_texts(
    model: GPT,
    tokenizer: Tokenizer,
    *,
    count: int = 1,
    seed: int = 0,
    max_new_tokens: int = SAMPLE_TOKENS,
) -> list[str]:
    """Documents written from their start, at temperature 1 without filters.

    Each ends where the model ends it, or after `max_new_tokens`.
    """
    was_training = model.training
    model.eval()
    decoding = Decoding(
        end_id=tokenizer.end_id,
        vocab_size=tokenizer.vocab_size,
        max_new_tokens=max_new_tokens,
        sampling=Sampling(logit_bias_ids=banned(tokenizer.unused)),
    )
    written = generate(
        model, [[tokenizer.end_id]], decoding, seed=seed, num_samples=count, batch_size=100
    )
    model.train(was_training)
    return [tokenizer.decode(each.ids) for each in written]


class SamplesFile:
    """`samples.txt`: a sample after each validation, under its step."""

    def __init__(self, path: Path, *, size: int):
        """Keep the first `size` bytes: what was written after them is no part of the run."""
        self.path = path
        if path.is_file() and path.stat().st_size > size:
            os.truncate(path, size)

    def append(self, step: int, text: str) -> int:
        """Write one sample; the size of the file in bytes. Raises `RunError` if it cannot."""
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(f"--- step {step} ---\n{text}\n\n")
                return file.tell()
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}") from error


def valid_share(
    model: GPT,
    tokenizer: Tokenizer,
    log_probability: Callable[[str], float],
    *,
    longest: int,
    count: int = JUDGED_SAMPLES,
    seed: int = 0,
) -> float:
    """The share of `count` samples that the corpus could have contained.

    `longest` is the length in tokens of the corpus's longest document: a sample may be as long.
    """
    room = max(SAMPLE_TOKENS, longest)
    texts = sample_texts(model, tokenizer, count=count, seed=seed, max_new_tokens=room)
    return sum(log_probability(text) > float("-inf") for text in texts) / len(texts)


def recites(model: GPT, tokenizer: Tokenizer, ids: list[int], *, given: int) -> bool:
    """Whether the model, greedily, goes on from the first `given` of `ids` to the rest of them."""
    decoding = Decoding(
        end_id=tokenizer.end_id,
        vocab_size=tokenizer.vocab_size,
        max_new_tokens=len(ids) - given,
        sampling=Sampling(temperature=0.0, logit_bias_ids=banned(tokenizer.unused)),
    )
    written = generate(model, [ids[:given]], decoding, seed=0)[0]
    rest = ids[given:-1] if ids[-1] == tokenizer.end_id else ids[given:]
    return written.ids == rest
