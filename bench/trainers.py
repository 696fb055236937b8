"""One contestant of `training.py`: trains a shape in its own way, turn by turn.

python bench/trainers.py NAME SHAPE [SETTINGS of train.py …]

`minigpt` is the real train.py with those settings, logging on. The peers are their libraries'
models in the plain loop that their users write: random tokens, cross entropy, clipping, AdamW.
`matrices` only does the matrix products of a step: no trainer of this arithmetic can be faster.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from record import FIRST_SEED, PROJECT
from shapes import SHAPES, Shape
from torch import Tensor, nn
from turns import Turns, take_turns

sys.path.insert(0, str(PROJECT))

THREADS = 2
#: Steps before the first turn: memory is touched, kernels are chosen, graphs are compiled.
WARM_UP = 5


def ours(settings: list[str]) -> None:
    """train.py itself; a callback of Lightning waits for the turns."""
    import lightning as L  # noqa: N812  (Lightning's own name for it)

    import train
    from minigpt.command_line import run
    from minigpt.config import TrainConfig

    class InTurns(L.Callback):
        def __init__(self) -> None:
            self.turns = Turns()

        def on_train_batch_start(
            self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
        ) -> None:
            del trainer, pl_module, batch
            if batch_idx >= WARM_UP:
                self.turns.step_begins()

    build = train.build_trainer

    def with_turns(*arguments: Any) -> L.Trainer:
        trainer = build(*arguments)
        trainer.callbacks.append(InTurns())  # pyright: ignore[reportAttributeAccessIssue]
        return trainer

    with patch.object(train, "build_trainer", with_turns):
        sys.exit(run(train.main, TrainConfig, "train", settings))


def transformers_model(shape: Shape) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """GPT-2 of `transformers`, and its logits."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model: Any = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.vocab_size, n_positions=shape.T, n_embd=shape.n_embd,
            n_layer=shape.n_layer, n_head=shape.n_head, activation_function="gelu_new",
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    return model, lambda tokens: model(tokens).logits


def litgpt_model(shape: Shape) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The model of litgpt in GPT-2's form, its head tied as ours is: so it is of the same size."""
    library: Any = importlib.import_module("litgpt")  # which has no types
    model: Any = library.GPT(
        library.Config(
            block_size=shape.T, vocab_size=shape.vocab_size, padded_vocab_size=shape.vocab_size,
            n_layer=shape.n_layer, n_head=shape.n_head, n_embd=shape.n_embd, bias=True,
            parallel_residual=False, norm_class_name="LayerNorm", mlp_class_name="GptNeoxMLP",
            gelu_approximate="tanh",
        )
    )  # fmt: skip
    model.lm_head.weight = model.transformer.wte.weight
    return model, model


def plain_model(shape: Shape) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The yardstick in one file, at this shape."""
    import plain_char as plain

    plain.N_LAYER, plain.N_HEAD, plain.N_EMBD = shape.n_layer, shape.n_head, shape.n_embd
    plain.BLOCK_SIZE = shape.T
    model = plain.Transformer(shape.vocab_size)
    return model, model


PEERS = {"transformers": transformers_model, "litgpt": litgpt_model, "plain": plain_model}


def peer(name: str, shape: Shape, *, compiled: bool) -> None:
    """A peer's model in a plain loop."""
    model, logits = PEERS[name](shape)
    model.train()
    if compiled:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        tokens = torch.randint(shape.vocab_size, (shape.B, shape.T + 1))
        optimizer.zero_grad()
        loss = F.cross_entropy(logits(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    take_turns(step, WARM_UP)


def matrices(shape: Shape) -> None:
    """The products of every linear layer: forward, and the gradients of input and weight."""
    C, rows = shape.n_embd, shape.B * shape.T
    layer = ((C, 3 * C), (C, C), (C, 4 * C), (4 * C, C))
    sizes = (*layer * shape.n_layer, (C, shape.vocab_size))
    drawn = {size: _operands(rows, *size) for size in set(sizes)}

    def step() -> None:
        for size in sizes:
            x, w, g, y, dx, dw = drawn[size]
            torch.mm(x, w.T, out=y)
            torch.mm(g, w, out=dx)
            torch.mm(g.T, x, out=dw)

    take_turns(step, WARM_UP)


def _operands(rows: int, n_in: int, n_out: int) -> list[Tensor]:
    shapes = ((rows, n_in), (n_out, n_in), (rows, n_out))
    return [torch.randn(shape) for shape in (*shapes, shapes[2], shapes[0], shapes[1])]


def main(name: str, shape_name: str, *settings: str) -> None:
    """Be the contestant `name`."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(FIRST_SEED)
    shape = SHAPES[shape_name]
    if name == "minigpt":
        ours(list(settings))
    elif name == "matrices":
        matrices(shape)
    else:
        library, _, compiled = name.partition(" ")
        peer(library, shape, compiled=bool(compiled))


if __name__ == "__main__":
    main(*sys.argv[1:])
