"""When training goes wrong: numbers that are no numbers, where they arose, and jumps of the loss.

A gradient that is not finite must not reach the weights, and looking at it would make a GPU wait
at every step. So the optimizer itself is told, on the device, to leave the weights alone from then
on (`Health`); whoever looks later finds the model as it was at the bad step and, since the data
of a step are a function of its number, can run that step again and watch (`first_fault`).
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from statistics import median
from typing import Any

import torch
from torch import nn

from minigpt.data.batches import Batch
from minigpt.errors import RunError
from minigpt.model.gpt import GPT
from minigpt.training.loss import batch_loss

#: Logged losses that a jump is judged against, and how many of them there must be.
_WINDOW, _FEWEST = 20, 10
#: A jump is this many times the losses' median deviation, and at least so many nats.
_DEVIATIONS, _LEAST_JUMP = 10.0, 0.5


class Health:
    """Whether every gradient so far was finite, kept where the model is.

    `broken` is 0.0, and 1.0 from the first bad gradient on; `healthy_steps` counts the steps
    before it.
    """

    def __init__(self, device: torch.device):
        self.broken = torch.zeros((), device=device)
        self.healthy_steps = torch.zeros((), device=device)

    def note(self, grad_norm: torch.Tensor) -> None:
        """Take in the gradient norm of one more step; waits for nothing."""
        self.broken = torch.maximum(self.broken, (~torch.isfinite(grad_norm)).float())
        self.healthy_steps += 1 - self.broken

    def bad_step(self) -> int | None:
        """Steps before the first bad one, if there was one; waits for the device."""
        return int(self.healthy_steps.item()) if self.broken.item() else None


def diverged(
    step: int, what: str, faults: Sequence[str | None], *, saved: bool, lr: float | None
) -> RunError:
    """The error that ends a run at `step`; `faults` is what each process has found.

    `saved` is whether there are checkpoints from before.
    """
    found = next((each for each in faults if each), None)
    return RunError(
        f"step {step}: {what}, "
        + (f"beginning with {found}" if found else "but the same step run again is sound")
        + ("; the checkpoints from before stay." if saved else "; nothing was saved yet.")
        + f" A lower optim.lr than {lr:g} may help"
    )


def first_fault(
    model: GPT,
    batches: Iterable[Batch],
    arithmetic: Callable[[], AbstractContextManager[object]],
    seed: Callable[[int], None],
) -> str | None:
    """Run the micro-batches of a step again; the first layer that gives no numbers, in words.

    "First" in the order of the forward pass or, where that is sound, of the backward pass.
    `arithmetic` opens the precision's context, `seed` sets dropout's draw of a micro-batch. None
    if all is finite this time. The gradients of the model are spoilt.
    """
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weights of {name}, after the update before"
    for micro_step, batch in enumerate(batches):
        seed(micro_step)
        model.zero_grad()
        found: list[str] = []
        with torch.compiler.set_stance("force_eager"), _watched(model, found), arithmetic():
            loss = batch_loss(model, batch, scale=1 / batch.step_targets)
        if found or not torch.isfinite(loss):
            return f"the output of {found[0]}" if found else "the loss"
        loss.backward()
        for name, parameter in reversed(list(model.named_parameters())):
            if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                return f"the gradient of {name}"
    return None


def _watched(model: nn.Module, found: list[str]) -> ExitStack:
    """Note in `found` the modules whose output is not finite, in the order they finish."""
    hooks = ExitStack()
    for name, module in model.named_modules():  # pyright: ignore[reportUnknownVariableType]

        def note(_: nn.Module, inputs: tuple[Any, ...], output: Any, name: str = name) -> None:
            if not _finite(output):
                # what reaches a part already broken was broken between the parts of its whole
                found.append(name if _finite(*inputs) else name.rpartition(".")[0] or name)

        hooks.enter_context(module.register_forward_hook(note))  # pyright: ignore[reportUnknownArgumentType]
    return hooks


def _finite(*values: Any) -> bool:
    tensors = (each for each in values if isinstance(each, torch.Tensor))
    return all(bool(torch.isfinite(each).all()) for each in tensors if each.is_floating_point())


class SpikeWatch:
    """Notices when the logged training loss jumps far out of its usual scatter."""

    def __init__(self, losses: Iterable[float] = ()):
        """Begin with the losses logged so far."""
        self._recent = deque(losses, maxlen=_WINDOW)
        self._jumped = False

    def usual(self, loss: float) -> float | None:
        """The usual loss, if this one jumped above it; said once until it is back."""
        usual = median(self._recent) if len(self._recent) >= _FEWEST else math.inf
        scatter = median(abs(each - usual) for each in self._recent) if self._recent else 0.0
        jumps = loss > usual + max(_DEVIATIONS * scatter, _LEAST_JUMP)
        first, self._jumped = jumps and not self._jumped, jumps
        if not jumps:
            self._recent.append(loss)
        return usual if first else None
