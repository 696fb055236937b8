"""Every setting of `generate.py`: what each control means, and its range.

The controls act in the order in which they stand here: biases, penalties and bans change the
logits, temperature divides them, then `top_k`, `top_p` and `min_p` each leave fewer tokens.
"""

import dataclasses
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypedDict, cast

from minigpt.errors import InputError
from minigpt.settings import check_ranges, nearest, range_text, setting, settings

#: A number, or -inf; that it is from -100 to 100 is seen to by `check_controls`.
_BIAS = r"(-inf|[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?)"


@dataclass(kw_only=True, slots=True)
class GenerateConfig:
    """Everything `generate.py` can be told."""

    checkpoint: str = setting(
        "",
        "a run folder, checkpoint file or Hugging Face folder; the newest run if empty",
        free_text=True,
    )
    prompt: list[str] = setting([], "text to go on from; may be repeated", free_text=True)
    prompt_file: str = setting("", "file with prompts; - is standard input", free_text=True)
    prompt_format: str = setting(
        "line",
        "of the prompt file: a prompt a line (a blank one too), the whole file as one, or a JSON"
        " object a line with prompt, id and settings of its own",
        choices=("line", "whole", "jsonl"),
    )
    interactive: bool = setting(False, "take prompts from the keyboard, one after another")
    start_of_document: bool | None = setting(
        None,
        "put the document's opening token before a prompt; if null, as the model was trained: "
        "true where its corpus had several documents, for a Hugging Face folder as its tokenizer"
        " does (an empty prompt always gets it)",
    )
    logit_bias_ids: list[str] = setting(
        [],
        "ID=BIAS: added to the logit of a token; -inf bans it; may be repeated",
        form=(rf"[0-9]{{1,9}}={_BIAS}", "ID=BIAS with a bias from -100 to 100, or -inf"),
        free_text=True,
    )
    logit_bias: list[str] = setting(
        [],
        "TEXT=BIAS: added to the logit of every token that would complete the text; -inf bans it;"
        " may be repeated",
        form=(rf".+={_BIAS}", "TEXT=BIAS with a bias from -100 to 100, or -inf"),
        free_text=True,
    )
    repetition_penalty: float = setting(
        1.0,
        "divides the logits above 0 of tokens in the prompt or the text, and multiplies those"
        " below; 1 changes nothing",
        low=0.01, high=100.0,
    )  # fmt: skip
    frequency_penalty: float = setting(
        0.0, "taken from the logit of a token once for each time it is in the text, the prompt left"
        " out", low=-2.0, high=2.0,
    )  # fmt: skip
    presence_penalty: float = setting(
        0.0, "taken once from the logits of tokens in the text, the prompt left out",
        low=-2.0, high=2.0,
    )  # fmt: skip
    no_repeat_ngram: int | None = setting(
        None, "no so many tokens in a row come twice, those of the prompt counted",
        low=1, high=10_000,
    )  # fmt: skip
    min_new_tokens: int = setting(
        0, "tokens before which neither the document nor a stop may end the text", low=0
    )
    temperature: float = setting(
        1.0, "divides the logits; 0 takes the best token", low=0.0, high=1e4
    )
    top_k: int | None = setting(None, "sample among the k best tokens; all if null", low=1)
    top_p: float | None = setting(
        None, "sample among the fewest best tokens whose probability reaches p", above=0.0, high=1.0
    )
    min_p: float | None = setting(
        None, "sample among the tokens with at least p times the best one's probability",
        low=0.0, high=1.0,
    )  # fmt: skip
    max_new_tokens: int = setting(256, "most tokens to generate", low=0)
    stop: list[str] = setting(
        [], "text that ends a sample and is not shown; may be repeated",
        form=(r".+", "not empty"), free_text=True,
    )  # fmt: skip
    stop_ids: list[str] = setting(
        [], "id of a token that ends a sample and is not shown; may be repeated",
        form=(r"[0-9]{1,9}", "a token's id"), free_text=True,
    )  # fmt: skip
    seed: int | None = setting(
        None, "fixes the samples; a new one each time if null", low=0, high=2**32 - 1
    )
    num_samples: int = setting(1, "samples for each prompt", low=1)
    context_stride: int | None = setting(
        None, "tokens dropped at a time past the context; a quarter of it if null", low=1
    )
    use_cache: bool = setting(True, "keep keys and values; false recomputes every step")
    echo: bool = setting(True, "show the prompt before its continuation")
    stream: bool = setting(True, "show text as it is generated")
    format: str = setting(
        "text", "of the output; json is a line a sample", choices=("text", "json")
    )
    output: str = setting("", "file for the output; standard output if empty", free_text=True)
    device: str = setting("auto", "where to run", choices=("auto", "cpu", "cuda", "mps"))
    dtype: str = setting(
        "auto", "arithmetic; auto is float32 on a CPU and bfloat16 on a GPU that has it",
        choices=("auto", "float32", "float64", "bfloat16", "float16"),
    )  # fmt: skip
    quantize: str = setting(
        "none", "int8 rounds weights to 8 bits: a large model is faster and smaller on a CPU, and a"
        " little worse", choices=("none", "int8"),
    )  # fmt: skip
    compile: bool = setting(
        False, "compile the step: slow to start the first time, and no faster on a CPU"
    )
    batch_size: int | None = setting(
        None, "most samples generated side by side; by the memory they take if null",
        low=1, high=100_000,
    )  # fmt: skip


class Controls(TypedDict, total=False):
    """The settings that each prompt may have of its own, as a program or a JSON line gives them.

    They mean what those of `GenerateConfig` mean, and have their defaults.
    """

    start_of_document: bool | None
    logit_bias_ids: Mapping[int, float]
    logit_bias: Mapping[str, float]
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    no_repeat_ngram: int | None
    min_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    max_new_tokens: int
    stop: Sequence[str]
    stop_ids: Sequence[int]
    seed: int | None
    num_samples: int
    context_stride: int | None
    use_cache: bool


def with_controls(config: GenerateConfig, controls: Mapping[str, object]) -> GenerateConfig:
    """A copy of `config` with other values of some of `Controls`.

    Raises `InputError` for a name that is not one of them, and for a value of another type or out
    of its range.
    """
    known = {each.key: each for each in settings(GenerateConfig)}
    values: dict[str, object] = {}
    for key, value in controls.items():
        if key not in known:
            near = nearest(key, GenerateConfig)
            raise InputError(f"unknown setting {key}; the nearest is {near}")
        if key not in Controls.__annotations__:
            raise InputError(
                f"{key}: holds for all prompts; set it on the command line, or where the model is"
                " loaded"
            )
        if isinstance(value, str) and known[key].type is not str:
            raise InputError(f'{key}="{value}": is text, must be {range_text(known[key])}')
        values[key] = _repeated(key, value) if known[key].repeatable else value
    changed = dataclasses.replace(config, **values)
    check_controls(changed)
    return changed


def _repeated(key: str, value: object) -> list[str]:
    """A control of several values as the command line gives it: a text each, or KEY=VALUE."""
    ids = key.endswith("_ids")
    kind, is_one = ("token ids", _is_id) if ids else ("texts", _is_text)
    given = " ".join(reprlib.repr(value).split())
    if key.startswith("stop"):
        if isinstance(value, Sequence) and not isinstance(value, str):
            items = cast("Sequence[object]", value)
            if all(map(is_one, items)):
                return [str(item) for item in items]
        raise InputError(f"{key}={given}: must be a list of {kind}")
    if isinstance(value, Mapping):
        biases = cast("Mapping[object, object]", value)
        if all(map(is_one, biases)) and all(map(_is_bias, biases.values())):
            return [f"{each}={float(cast('float', bias))}" for each, bias in biases.items()]
    raise InputError(f"{key}={given}: must map {kind} to biases, -100 to 100 or -inf")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_id(value: object) -> bool:
    # the names of a JSON object are texts
    return _is_number(value, Integral) or (isinstance(value, str) and value.isdecimal())


def _is_bias(value: object) -> bool:
    # JSON has no infinity
    return value == "-inf" or (_is_number(value, Real) and _in_range(cast("float", value)))


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _in_range(bias: float) -> bool:
    return abs(bias) <= 100 or bias == -math.inf


def check_controls(config: GenerateConfig) -> None:
    """Hold the settings against their ranges and each other; `InputError` says what is wrong."""
    check_ranges(config)
    for key in ("logit_bias", "stop"):
        for text in getattr(config, key):
            check_text(text, key)
    for key in ("logit_bias", "logit_bias_ids"):
        for text in getattr(config, key):
            if not _in_range(key_and_bias(text)[1]):
                raise InputError(f"{key}={text}: a bias must be from -100 to 100, or -inf")
    if config.min_new_tokens > config.max_new_tokens:
        raise InputError(
            f"min_new_tokens={config.min_new_tokens}: must be at most"
            f" max_new_tokens={config.max_new_tokens}"
        )


def key_and_bias(text: str) -> tuple[str, float]:
    """What KEY=BIAS names; a key may hold `=` too."""
    key, _, bias = text.rpartition("=")
    return key, float(bias)


def check_text(text: str, name: str) -> None:
    """`InputError`, which `name` begins, for what other bytes on a command line leave in a text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name}: not UTF-8 at character {error.start}; set the terminal to UTF-8"
        ) from error
