"""A trained model as a program uses it: `minigpt.load("runs/latest").generate("Once")`.

`generate.py` is made of the same parts, so names and results are the same.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Unpack

from minigpt.checkpoint import LoadedModel, load_model
from minigpt.errors import InputError
from minigpt.generation.config import Controls, GenerateConfig, key_and_bias, with_controls
from minigpt.generation.continuation import Continuation
from minigpt.generation.decode import Decoding, Row, continue_rows, ignore_count, stream
from minigpt.generation.logprobs import token_logprobs
from minigpt.generation.placement import (
    check_compile,
    check_quantize,
    find_device,
    find_dtype,
    rows_that_fit,
)
from minigpt.generation.prompts import Prompt, prompt_ids, seeded
from minigpt.generation.sampling import Sampling, banned
from minigpt.generation.text_match import check_size
from minigpt.generation.windows import stride_of
from minigpt.model.int8 import round_weights

#: Most batches whose samples are held back until all of them are there, to be given in order.
BATCHES_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """What was generated after a prompt.

    `sample` is its number among the prompt's samples, from 0; `text` is the continuation alone and
    `ids` its tokens; `logprobs` are the model's log-probabilities of these, in nats, before any
    control; `reason` is "end" (the model ended the document), "stop" (`stop` or `stop_ids`),
    "length" (`max_new_tokens`) or "banned" (no token was allowed); `seed` repeats it;
    `tokens_per_second` are its own tokens over the time its batch took; `id` is what a line of
    JSON calls the prompt, or its number from 1.
    """

    id: str | float
    prompt: str
    sample: int
    text: str
    ids: list[int]
    logprobs: list[float]
    reason: str
    seed: int
    tokens_per_second: float


def warn(notice: str) -> None:
    """Give a notice as a Python warning about the line that called into the package."""
    level, frame, inside = 1, inspect.currentframe(), ("minigpt.", "torch.")
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(notice, stacklevel=level)


@dataclass(frozen=True, slots=True)
class _Task:
    """One sample to be made."""

    prompt: Prompt
    row: Row
    decoding: Decoding


class LanguageModel:
    """A model, its tokenizer, and what can be done with them.

    `say` gets the notices (a prompt longer than the context, a text that goes past it); by default
    they are Python warnings.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        compile_step: bool = False,
        batch_size: int | None = None,
        say: Callable[[str], None] = warn,
    ) -> None:
        """Use what a checkpoint held; `batch_size` None is as many rows as memory has room for."""
        self._compile_step = compile_step
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.say = say
        self.block_size = loaded.model.config.block_size
        self._start_of_document = loaded.start_of_document
        self.batch_size = batch_size or rows_that_fit(loaded.model)

    def __repr__(self) -> str:
        return f"<LanguageModel: {self.model.shape()}>"

    def generate(self, prompt: str | Sequence[str], **controls: Unpack[Controls]) -> list[Sample]:
        """Continue a prompt, or several: a prompt's samples together, in the order given.

        The controls are those of `generate.py`, by their names (`temperature=0.8`, `stop=["."]`);
        `minigpt/generation/config.py` has the meaning, range and default of each. Raises
        `InputError`, a `ValueError`, for one that is wrong or does not fit the model.
        """
        config = seeded(with_controls(GenerateConfig(), dict(controls)))
        if not isinstance(prompt, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"a prompt must be text, this is {type(prompt).__name__}")
        texts = [prompt] if isinstance(prompt, str) else prompt
        prompts = [Prompt(text, config, number) for number, text in enumerate(texts, start=1)]
        return list(self.samples(prompts))

    def stream(
        self, prompt: str, *, sample: int = 0, **controls: Unpack[Controls]
    ) -> Iterator[str]:
        """The text of one sample of a prompt in pieces, each as soon as its characters are whole.

        Joined they are the `text` that `generate` gives for this sample, and so are the controls
        and what is raised, which is raised here and not at the first piece.
        """
        config = seeded(with_controls(GenerateConfig(), dict(controls)))
        if type(sample) is not int or sample < 0:
            raise InputError(f"sample={sample}: must be a whole number, 0 the first")
        if config.num_samples != 1:
            raise InputError(
                f"num_samples={config.num_samples}: a stream is one sample; sample=1 is the second"
            )
        return self.write(Prompt(prompt, config, 1), sample)[1]

    def logprobs(self, text: str) -> list[float]:
        """The log-probability of every token of a text but the first, in nats.

        Each is given those before it and nothing is put in front; past the context, those that
        generation would have read there. Raises `InputError` for a text that the tokenizer does
        not know.
        """
        _check_is_text(text, "the text")
        stride = stride_of(None, self.block_size)
        return token_logprobs(self.model, self.tokenizer.encode(text), stride)

    def samples(
        self,
        prompts: Sequence[Prompt],
        *,
        logprobs: bool = True,
        done: Callable[[int], object] = ignore_count,
    ) -> Iterator[Sample]:
        """The samples of all prompts in order, batched by length, as soon as they can be given.

        `done` is told how many were finished after each batch. Raises `InputError` before the
        first is begun.
        """
        ids = [
            self._ids(prompt, prompt.where or f"prompt {i}")
            for i, prompt in enumerate(prompts, start=1)
        ]
        long = [i for i, each in enumerate(ids, start=1) if len(each) > self.block_size]
        if len(long) > 1:
            first = f"the first of them prompt {long[0]}"
            self.say(self._what_is_cut(f"{len(long)} prompts, {first}, have more"))
        elif long:
            self.say(self._what_is_cut(f"prompt {long[0]} has {len(ids[long[0] - 1])}"))
        return self._in_order(self._tasks(prompts, ids, logprobs=logprobs), done)

    def _tasks(
        self, prompts: Sequence[Prompt], ids: Sequence[list[int]], *, logprobs: bool
    ) -> Iterator[_Task]:
        """All samples in order; `InputError` for settings that do not fit the model."""
        decodings: dict[int, Decoding] = {}  # most prompts share one config
        for prompt in prompts:
            if id(prompt.config) in decodings:
                continue
            try:
                decodings[id(prompt.config)] = self.decoding(prompt.config, logprobs=logprobs)
            except InputError as error:
                if not prompt.where:
                    raise
                raise InputError(f"{prompt.where}: {error}") from error
        return (
            _Task(prompt, Row(tokens, _seed(prompt), sample), decodings[id(prompt.config)])
            for prompt, tokens in zip(prompts, ids, strict=True)
            for sample in range(prompt.config.num_samples)
        )

    def _in_order(self, tasks: Iterator[_Task], done: Callable[[int], object]) -> Iterator[Sample]:
        say = cache(self.say)  # the same notice comes once
        n_batches = 1
        while held := list(islice(tasks, n_batches * self.batch_size)):
            rows = [(task.row, task.decoding) for task in held]
            written = continue_rows(
                self.model, rows, batch_size=self.batch_size, say=say, done=done
            )
            yield from map(_sample, held, written)
            n_batches = min(2 * n_batches, BATCHES_AT_A_TIME)

    def write(
        self, prompt: Prompt, sample: int = 0, say: Callable[[str], None] | None = None
    ) -> tuple[Continuation, Iterator[str]]:
        """One sample: what will have become of it, and the pieces of text that fill it.

        `say` gets its notices in place of the model's own.
        """
        say = say or self.say
        ids = self._ids(prompt, "the prompt")
        decoding = self.decoding(prompt.config)
        if len(ids) > self.block_size:
            say(self._what_is_cut(f"the prompt has {len(ids)}"))
        continuation = Continuation(decoding)
        row = Row(ids, _seed(prompt), sample)
        return continuation, stream(self.model, row, decoding, continuation, say)

    def _ids(self, prompt: Prompt, name: str) -> list[int]:
        """A prompt's tokens; `InputError`, which `name` begins, for a text that has none."""
        _check_is_text(prompt.text, name)
        start = prompt.config.start_of_document
        if start is None:
            start = self._start_of_document
        try:
            return prompt_ids(self.tokenizer, prompt.text, start_of_document=start)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error

    def _what_is_cut(self, which: str) -> str:
        return f"{which} tokens and the model reads {self.block_size}: the last part is used"

    def decoding(self, config: GenerateConfig, *, logprobs: bool = False) -> Decoding:
        """What the decoder is to do; `InputError` where a setting does not fit the model."""
        vocab_size = self.tokenizer.vocab_size
        stop_ids = tuple(map(int, config.stop_ids))
        biases = tuple((int(i), bias) for i, bias in map(key_and_bias, config.logit_bias_ids))
        for key, ids in (("stop_ids", stop_ids), ("logit_bias_ids", [i for i, _ in biases])):
            if ids and max(ids) >= vocab_size:
                raise InputError(f"{key}={max(ids)}: the model has tokens 0 to {vocab_size - 1}")
        logit_bias = tuple(map(key_and_bias, config.logit_bias))
        check_size("stop", config.stop, vocab_size)
        check_size("logit_bias", [text for text, _ in logit_bias], vocab_size)
        return Decoding(
            end_id=self.tokenizer.end_id,
            vocab_size=vocab_size,
            token_bytes=self.tokenizer.token_bytes,
            sampling=Sampling(
                logit_bias_ids=(*biases, *banned(self.tokenizer.unused)),
                logit_bias=logit_bias,
                repetition_penalty=config.repetition_penalty,
                frequency_penalty=config.frequency_penalty,
                presence_penalty=config.presence_penalty,
                no_repeat_ngram=config.no_repeat_ngram,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                min_p=config.min_p,
            ),
            min_new_tokens=config.min_new_tokens,
            max_new_tokens=config.max_new_tokens,
            stop=tuple(config.stop),
            stop_ids=stop_ids,
            context_stride=stride_of(config.context_stride, self.block_size),
            use_cache=config.use_cache,
            compile_step=self._compile_step,
            logprobs=logprobs,
        )


def load_language_model(
    checkpoint: Path, config: GenerateConfig, *, say: Callable[[str], None] = warn
) -> LanguageModel:
    """The model in a checkpoint file, as the settings from `device` to `batch_size` ask for it.

    Raises `InputError` where the file cannot be used, or there is no such device or compiler.
    """
    device = find_device(config.device)
    dtype = find_dtype(config.dtype, device)
    check_quantize(config.quantize, device, dtype)
    if config.compile:
        check_compile(config.quantize, device)
    loaded = load_model(checkpoint, device=device, dtype=dtype)
    if config.quantize == "int8":
        round_weights(loaded.model)
    return LanguageModel(loaded, compile_step=config.compile, batch_size=config.batch_size, say=say)


def _check_is_text(text: object, name: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{name}: must be text, this is {type(text).__name__}")


def _seed(prompt: Prompt) -> int:
    assert prompt.config.seed is not None, "see `seeded`"
    return prompt.config.seed


def _sample(task: _Task, continuation: Continuation) -> Sample:
    ids = continuation.ids
    return Sample(
        id=task.prompt.id,
        prompt=task.prompt.text,
        sample=task.row.sample,
        text=continuation.text,
        ids=ids,
        logprobs=continuation.logprobs,
        reason=continuation.reason,
        seed=task.row.seed,
        tokens_per_second=round(len(ids) / max(continuation.seconds, 1e-9), 1),
    )
