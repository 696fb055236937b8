"""Whether training can go on with what a checkpoint holds beside the model."""

import dataclasses
import math
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from minigpt.checkpoint import RECORD
from minigpt.config import TrainConfig
from minigpt.errors import InputError
from minigpt.model.gpt import GPT
from minigpt.training.optimizer import build_optimizer


def check_training_state(
    path: Path, contents: dict[str, Any], model: GPT, config: TrainConfig
) -> None:
    """Raise `InputError` unless training can go on with what a checkpoint holds beside the model.

    Lightning restores it, much later, and believes what it is given.
    """
    fresh = build_optimizer(model, dataclasses.replace(config.optim, lr=1.0), fused=False)
    try:
        fault = _fault_of_state(contents, fresh)
    except (LookupError, TypeError, ValueError, AttributeError):
        fault = f"it does not have the form of {config.optim.kind}'s"
    if fault:
        raise InputError(f"{path}: its training state cannot be used: {fault}")


def _fault_of_state(contents: dict[str, Any], fresh: torch.optim.Optimizer) -> str:
    """What is wrong with a training state, in words, if its parts are what they should be."""
    step = contents[RECORD]["step"]
    if contents.get("global_step") != step:
        return f"global_step is {contents.get('global_step')!r}, not {step}"
    if not all(map(_is_number, contents.get("MixedPrecision", {}).values())):
        return "MixedPrecision, the scaling of float16's loss, is no numbers"
    state: dict[str, Any]
    (state,) = contents["optimizer_states"]
    expected = [group["params"] for group in fresh.state_dict()["param_groups"]]
    if [group["params"] for group in state["param_groups"]] != expected:
        return "the optimizer's groups are not those of the model"
    parameters = [each for group in fresh.param_groups for each in group["params"]]
    means_of = list(chain.from_iterable(map(_means, fresh.param_groups)))
    for number, saved in state["state"].items():
        means = means_of[int(number)]
        if saved.keys() != {"step", *means} or not _is_number(saved["step"]):
            return f"the optimizer's state of parameter {number} is not that of its update"
        shape = parameters[number].shape
        for name in means:
            if saved[name].shape != shape or not torch.isfinite(saved[name]).all():
                return (
                    f"the optimizer's {name} of parameter {number} is not {tuple(shape)} finite"
                    " numbers"
                )
    return ""


def _means(group: dict[str, Any]) -> list[tuple[str, ...]]:
    """What a group's optimizer keeps of each parameter besides the number of its updates."""
    means = ("momentum",) if "momentum" in group else ("exp_avg", "exp_avg_sq")
    return [means] * len(group["params"])


def _is_number(value: object) -> bool:
    """Whether it is a finite number, as one or in a tensor of one."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and value.is_floating_point() and math.isfinite(value.item())
    return isinstance(value, int | float) and math.isfinite(value)
