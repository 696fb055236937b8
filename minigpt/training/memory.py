"""How much memory a run will take at its peak, and what to lower where there is not enough.

The prediction runs a step, a validation and an update of the model itself on tensors that have
shapes and no contents, and counts what lives at the same time. So it follows the model's code.
What the allocator and the libraries add was measured (bench/memory.py).
"""

import contextlib
import dataclasses
import os
import re
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minigpt.config import TrainConfig
from minigpt.data.batches import Batch
from minigpt.errors import InputError, RunError
from minigpt.model.gpt import GPT
from minigpt.training.loss import batch_loss, hidden_of
from minigpt.training.validation import Entropies, parts_to_look_at

#: Bytes of the libraries' code and buffers that come into use after the plan, on a CPU.
_LIBRARIES = 40e6
#: How much more room than their own size the blocks of a step take, on a CPU: kept for the next
#: one, they leave holes in glibc's heap (`heap.keep_freed_memory`). A step that holds so many bytes
#: beside weights and moments has so much to compute that it does not keep them.
_HOLES, _MOST_KEPT = 1.4, 2e9
#: A run that needs so many times what there is is not begun.
_HOPELESS = 2.0
#: What the allocators of torch say, besides `torch.OutOfMemoryError` and `MemoryError`.
_REFUSED = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process's peak depends on.

    `training` and `validation` are the largest batches it meets with; `held` is what it holds
    before training, its weights left out; `room` what it could hold in all; `predicted` what its
    own settings need. In bytes. On a CPU they are resident memory, Python and the libraries
    included; on a GPU torch's allocations. `kept`: whether what a step frees on a CPU is to be kept
    for the next one.
    """

    config: TrainConfig
    vocab_size: int
    training: Batch
    validation: Batch
    device: str
    held: int
    room: int
    predicted: int = 0
    kept: bool = True

    def needed(self, config: TrainConfig) -> int:
        """Bytes at the peak with settings that may divide or shorten the batches of `config`."""
        return self.looked_at(config)[0]

    def looked_at(self, config: TrainConfig) -> tuple[int, bool]:
        """`predicted` and `kept` of such settings."""
        device = torch.device(self.device)
        with FakeTensorMode(), device, LiveBytes() as live:
            lasting, steps, looks = _phases(config, self, live)
            weights = lasting // 3
        beside = max(steps, looks)
        kept = beside < _MOST_KEPT and not config.activation_checkpointing
        if device.type != "cpu":
            return lasting + beside, kept
        # at the end the best checkpoint is read whole, and put into a second model
        report = lasting + 2 * weights
        peak = max((_HOLES if kept else 1.0) * beside, report)
        return int(self.held + _LIBRARIES + lasting + peak), kept


def memory_of_run(
    config: TrainConfig, model: GPT, largest: tuple[Batch, Batch], device: str
) -> Memory:
    """`Memory` of a run whose model is made and not yet trained."""
    held = 0
    if device == "cpu":
        held = resident_bytes() - sum(p.nbytes for p in model.parameters())
    memory = Memory(config, model.vocab_size, *largest, device, held, room_bytes(device))
    predicted, kept = memory.looked_at(config)
    return dataclasses.replace(memory, predicted=predicted, kept=kept)


def check_room(memory: Memory) -> None:
    """Raise `InputError` if a run needs far more than there is, whatever the prediction's error.

    A system that promises more memory than it has lets the run begin, and later kills it.
    """
    if memory.predicted > _HOPELESS * memory.room:
        raise InputError(f"memory: {_too_little(memory)}")


def _too_little(memory: Memory) -> str:
    return (
        f"this run needs about {gigabytes(memory.predicted)} and {gigabytes(memory.room)} are"
        f" there for it. Lower one of: {suggestions(memory)}"
    )


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, while they live: `now`, `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count what it makes, once however many views of it there are."""
        del types
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        number, size = id(storage), storage.nbytes()
        if number in self._known:
            return
        self._known.add(number)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, number, size)

    def _gone(self, number: int, size: int) -> None:
        self._known.remove(number)
        self.now -= size


def _phases(config: TrainConfig, memory: Memory, live: LiveBytes) -> tuple[int, int, int]:
    """Bytes of weights and moments, and what comes beside them in a step and when it is judged."""
    divided = config.trainer.accumulate_grad_batches, memory.config.trainer.accumulate_grad_batches
    training, validation = (
        _like(batch, batch.inputs.size(0) * divided[1] // divided[0] or 1, config.model.block_size)
        for batch in (memory.training, memory.validation)
    )
    usual = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64 if config.trainer.precision == "64-true" else usual)
        model = GPT(config.model, memory.vocab_size).train()
    finally:
        torch.set_default_dtype(usual)
    model.activation_checkpointing = config.activation_checkpointing
    arithmetic = _arithmetic(config.trainer.precision, memory.device)
    lasting = 3 * sum(p.nbytes for p in model.parameters())
    moments = [torch.empty_like(p) for p in model.parameters() for _ in range(2)]
    live.peak = 0
    for _ in range(min(2, config.trainer.accumulate_grad_batches)):
        with arithmetic():
            loss = batch_loss(model, training)
        loss.backward()
        del loss
    steps = live.peak - lasting
    model.zero_grad()
    live.peak = 0
    model.eval()
    with torch.no_grad():
        with arithmetic():
            batch_loss(model, validation)
        hidden_of(model, parts_to_look_at(model, validation)[0], Entropies())
    del moments
    return lasting, steps, live.peak - lasting


def _like(batch: Batch, rows: int, length: int) -> Batch:
    """A batch of the same kind, of so many rows and at most so long, without contents."""
    length = min(length, batch.inputs.size(1))

    def shaped(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else torch.empty(rows, length, dtype=tensor.dtype)

    inputs = torch.empty(rows, length, dtype=batch.inputs.dtype)
    masks = (shaped(each) for each in (batch.real, batch.documents, batch.positions))
    return Batch(inputs, torch.empty_like(inputs), *masks, n_targets=1, step_targets=1)


def _arithmetic(precision: str | None, device: str) -> Callable[[], AbstractContextManager[Any]]:
    """What Lightning's precision does around a forward pass."""
    kinds = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    if precision not in kinds:
        return contextlib.nullcontext
    return lambda: torch.autocast(device, dtype=kinds[precision])


# ---- what a machine has ----


def resident_bytes() -> int:
    """What this process holds in memory now; 0 where the system does not tell."""
    return _of_process("VmRSS")


def peak_bytes(device: str) -> int:
    """The most that this process has held so far, as `Memory` counts it; 0 where unknown."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return _of_process("VmHWM") if device == "cpu" else 0


def room_bytes(device: str) -> int:
    """What this process may hold in all: what it has now, and what is free."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        limit = Path("/sys/fs/cgroup/memory.max")
        room = _kibibytes("MemAvailable", text) + resident_bytes()
        limited = limit.read_text(encoding="ascii").strip() if limit.is_file() else "max"
        return room if limited == "max" else min(room, int(limited))
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_process(name: str) -> int:
    try:
        return _kibibytes(name, Path("/proc/self/status").read_text(encoding="utf-8"))
    except OSError:
        return 0


def _kibibytes(name: str, text: str) -> int:
    """The bytes that a line `name: 123 kB` tells of."""
    found = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


# ---- what to lower ----


def gigabytes(size: float) -> str:
    """Bytes for a person: 0.47 GB, 1.9 GB, 140 GB."""
    return f"{size / 1e9:.2g} GB" if size < 99.5e9 else f"{size / 1e9:,.0f} GB"


def suggestions(memory: Memory) -> str:
    """Settings to try and what the run would take then: those that suffice alone, if any do."""
    config = memory.config
    parts = config.trainer.accumulate_grad_batches
    rows = memory.training.inputs.size(0)
    tries: list[tuple[str, TrainConfig]] = []
    divisor = 1
    while divisor < rows and not config.overfit:
        # at least twice as many each time: a try takes as long as the plan's own
        divisor = next(d for d in range(2 * divisor, rows + 1) if rows % d == 0)
        trainer = dataclasses.replace(config.trainer, accumulate_grad_batches=parts * divisor)
        changed = dataclasses.replace(config, trainer=trainer)
        tries = [(f"trainer.accumulate_grad_batches={parts * divisor}", changed)]
        if memory.needed(changed) < 0.9 * memory.room:
            break
    if not config.activation_checkpointing:
        changed = dataclasses.replace(config, activation_checkpointing=True)
        tries.append(("activation_checkpointing=true", changed))
    if (length := memory.training.inputs.size(1)) > 1:
        model = dataclasses.replace(config.model, block_size=length // 2)
        tries.append((f"model.block_size={length // 2}", dataclasses.replace(config, model=model)))
    sizes = {what: memory.needed(changed) for what, changed in tries}
    fitting = [what for what, size in sizes.items() if size < memory.room]
    told = [f"{what} ({gigabytes(sizes[what])})" for what in fitting or sizes]
    return ", ".join([*told, f"or less than model.n_layer={config.model.n_layer}"])


@contextlib.contextmanager
def explained_out_of_memory(memory: Memory) -> Generator[None, None, None]:
    """Turn a refused allocation into a `RunError` that says what was needed and what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        kinds = (MemoryError, torch.OutOfMemoryError)
        if not isinstance(error, kinds) and not _REFUSED.search(str(error)):
            raise
        asked = re.search(r"allocate (\d+) bytes", str(error))
        raise RunError(
            "out of memory"
            + (f", {gigabytes(int(asked[1]))} were asked for at once" if asked else "")
            + f": {_too_little(memory)}"
        ) from error
