"""AdamW, with weight decay where it belongs.

The matrices of linear layers decay; biases, norms and the embeddings do not. The token embedding
is also the output head (one tensor): it is treated as an embedding, since decay would shrink the
vectors of rare tokens, which get little gradient to grow back.
"""

import torch
from torch import nn

from minigpt.config import OptimConfig


def build_optimizer(model: nn.Module, optim: OptimConfig, *, fused: bool) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) over every trainable parameter, each in exactly one group.

    `fused` runs the update as one kernel; it must be off under float16, whose gradients are
    unscaled before they are clipped.
    """
    assert optim.lr is not None
    decayed = [
        layer.weight
        for layer in model.modules()
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    ]
    in_decayed = {id(weight) for weight in decayed}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in in_decayed]
    groups = [
        {"params": decayed, "weight_decay": optim.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), fused=fused)
