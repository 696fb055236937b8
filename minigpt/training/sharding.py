"""What FSDP asks for: a gradient's norm over all shards, and the whole model in every process.

Under FSDP (Zhao et al. 2023) each process holds a part of every weight, and the whole of a block
only while it computes with it. All processes call these functions together. Without FSDP they do
the plain thing.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

from minigpt.model.gpt import GPT


def clip_gradient(
    wrapped: nn.Module | None, parameters: Iterable[Tensor], largest: float
) -> Tensor:
    """Scale the gradient so that its norm is at most `largest`; the norm before.

    `wrapped` is the module as Lightning's strategy holds it, `parameters` those of the model in it.
    """
    if isinstance(wrapped, FullyShardedDataParallel):
        return wrapped.clip_grad_norm_(largest)
    return torch.nn.utils.clip_grad_norm_(parameters, largest)


def whole_model(wrapped: nn.Module | None, model: GPT, prefix: str = "model.") -> GPT:
    """A model to evaluate: `model` itself, or a copy of it that FSDP's shards are gathered into.

    `prefix` is what `wrapped` puts before the names of the model's weights.
    """
    if not isinstance(wrapped, FullyShardedDataParallel):
        return model
    gathered = FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
    with FullyShardedDataParallel.state_dict_type(wrapped, StateDictType.FULL_STATE_DICT, gathered):
        weights = {name.removeprefix(prefix): w for name, w in wrapped.state_dict().items()}
    with torch.device(next(iter(weights.values())).device):
        whole = GPT(model.config, model.vocab_size)
    whole.load_state_dict(weights)
    return whole.train(model.training)
