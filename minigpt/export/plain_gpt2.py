"""A model as GPT-2 is: what other programs can run, the same numbers from it.

A sinusoidal table becomes a learned one with the same rows, and a model without biases gets
biases of zero. A norm after the residual sum or of queries and keys has no place in GPT-2, nor have
rotary positions, so they are refused.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.config import ModelConfig
from minigpt.errors import InputError
from minigpt.model.gpt import GPT
from minigpt.model.positions import SinusoidalPositions


@dataclass(frozen=True, slots=True)
class PlainGPT2:
    """A model with learned positions and biases, and what of the original was folded into it."""

    model: GPT
    folded: tuple[str, ...]


def plain_gpt2(model: GPT, format_name: str) -> PlainGPT2:
    """The model as GPT-2, sharing its tensors; `InputError` if the format cannot express it."""
    config = model.config
    check_expressible(config, format_name)
    folded: list[str] = []
    own = model.state_dict()
    if isinstance(model.position, SinusoidalPositions):
        own["position.weight"] = model.position.table
        folded.append("the sinusoidal positions, as a learned table")
    if not config.bias:
        folded.append("no biases, as biases of zero")
    with torch.device("meta"):
        plain = GPT(dataclasses.replace(config, position="learned", bias=True), model.vocab_size)
    weights: dict[str, Tensor] = {
        name: own[name] if name in own else torch.zeros(expected.shape)
        for name, expected in plain.state_dict().items()
    }
    plain.load_state_dict(weights, assign=True)
    return PlainGPT2(plain.eval(), tuple(folded))


def check_expressible(config: ModelConfig, format_name: str) -> None:
    """Raise `InputError` that names the setting which the format has no way to say."""
    if config.norm_order == "post":
        raise InputError(
            "the model has model.norm_order=post: GPT-2's norms come before each sublayer, so"
            " other programs cannot run it"
        )
    if config.position == "rotary":
        raise InputError(
            "the model has model.position=rotary: GPT-2 adds a table of positions to the"
            " embeddings and turns nothing, so other programs cannot run it"
        )
    if config.qk_norm:
        raise InputError(
            "the model has model.qk_norm=true: GPT-2 has no norm of queries and keys, so other"
            " programs cannot run it"
        )
    if format_name == "gguf" and config.n_head == config.n_embd:
        raise InputError(
            f"the model has model.n_head={config.n_head} and model.n_embd={config.n_embd}:"
            " llama.cpp has no heads that are one wide; format=huggingface can say them"
        )
    if format_name == "gguf" and config.activation != "gelu":
        raise InputError(
            f"the model has model.activation={config.activation}: llama.cpp runs every GPT-2 with"
            f" GELU; format=huggingface can say {config.activation}"
        )
