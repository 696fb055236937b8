"""How the cost of attention grows with the length of what it reads, beside that of loading it."""

import copy
import itertools
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from minigpt.data.batches import TrainingBatches
from minigpt.doctor.finding import Finding, Subject, blocks

#: Lengths that are tried, and rounds of each; the median counts.
LENGTHS, ROUNDS = (64, 128, 256, 512, 1024, 2048), 5


def observe_lengths(subject: Subject) -> Finding:
    """Time and memory of one layer's attention as T doubles, forward and backward, for one row.

    Memory is what is kept for the backward pass. The scores alone are H T² numbers; the fast
    attention never has them all at once.
    """
    module = copy.deepcopy(blocks(subject.model)[0].attention)
    weight = module.qkv.weight

    def run(T: int, attention: list[Tensor] | None) -> None:
        x = torch.randn(1, T, module.qkv.in_features, device=weight.device, dtype=weight.dtype)
        module(x.requires_grad_(), None, None, attention).sum().backward()
        if weight.device.type == "cuda":
            torch.cuda.synchronize(weight.device)

    curves: dict[str, list[float]] = {
        "fast_seconds": [_seconds(lambda n=T: run(n, None)) for T in LENGTHS],
        "readable_seconds": [_seconds(lambda n=T: run(n, [])) for T in LENGTHS],
        "fast_bytes": [_kept_bytes(lambda n=T: run(n, None)) for T in LENGTHS],
        "readable_bytes": [_kept_bytes(lambda n=T: run(n, [])) for T in LENGTHS],
    }
    if subject.store is not None:
        curves["loading_seconds"] = [_loading_seconds(subject, T) for T in LENGTHS]
    grown = {name: values[-1] / values[-2] for name, values in curves.items()}
    figure = (
        f"from {LENGTHS[-2]} to {LENGTHS[-1]} positions time x{grown['fast_seconds']:.1f} (readable"
        f" x{grown['readable_seconds']:.1f}), memory x{grown['fast_bytes']:.1f} (readable"
        f" x{grown['readable_bytes']:.1f}); T² would be x4"
    )
    warnings: list[str] = []
    if "loading_seconds" in curves:
        loading, layers = curves["loading_seconds"][-1], subject.model.config.n_layer
        figure += f"; loading a row takes {1000 * loading:.2g} ms"
        if loading > curves["fast_seconds"][-1] * layers:
            warnings.append("loading a row takes longer than its attention in all layers")
    return Finding(
        status="warning" if warnings else "ok",
        figure=figure,
        cause="; ".join(warnings),
        details={"lengths": list(LENGTHS), **curves},
    )


def _seconds(work: Callable[[], object]) -> float:
    work()  # the first run waits for memory and kernels
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times)


def _kept_bytes(work: Callable[[], object]) -> float:
    """Bytes of the tensors that a forward pass keeps for its backward pass, each storage once."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        work()
    return float(sum(sizes.values()))


def _loading_seconds(subject: Subject, T: int) -> float:
    """Time to cut one row of T tokens out of the store."""
    assert subject.store is not None
    rows = TrainingBatches(subject.store, block_size=T, layout="packed", batch_size=1, seed=0)
    numbers = itertools.count()
    return _seconds(lambda: rows[next(numbers)])
