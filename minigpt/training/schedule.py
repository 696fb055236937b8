"""The learning rate as a pure function of the optimizer step.

Nothing has to be stored to resume it, and accumulation or the number of processes cannot move it.
"""

import math

from minigpt.config import OptimConfig

#: The share of the schedule that warm-up-stable-decay spends on its decay
#: (Hu et al. 2024, "MiniCPM", section 4, use about a tenth; a fifth suits short runs).
COOL_DOWN = 0.2


def learning_rate(step: int, optim: OptimConfig) -> float:
    """The rate of optimizer step `step`, counted from 0.

    Above 0 from the first step, and within [lr * min_lr_ratio, lr] after warm-up. `optim.lr`,
    `warmup_steps` and `decay_steps` must be filled (`minigpt.defaults`).
    """
    assert optim.lr is not None
    assert optim.warmup_steps is not None
    assert optim.decay_steps is not None
    if step < optim.warmup_steps:
        return optim.lr * (step + 1) / (optim.warmup_steps + 1)
    span = optim.decay_steps - optim.warmup_steps
    progress = min(1.0, (step - optim.warmup_steps) / span) if span > 0 else 1.0
    return optim.lr * (
        optim.min_lr_ratio + (1 - optim.min_lr_ratio) * _height(progress, optim.schedule)
    )


def _height(progress: float, schedule: str) -> float:
    """From 1 at progress 0 down to 0 at progress 1, by the schedule's shape."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    if schedule == "linear":
        return 1 - progress
    if schedule == "wsd":
        return min(1.0, (1 - progress) / COOL_DOWN)
    return 1.0  # constant
