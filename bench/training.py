"""Training steps of three sizes against the peers' and against the matrix products alone.

python bench/training.py [rounds=8] [first=0] [last=2] [compiled=1]

float32 on two threads. Every contestant is a process of its own and has its turn in every round
(`turns.py`, `trainers.py`): this program is the real train.py with logging on, the peers are
`transformers`, `litgpt` and a plain script, each eager and compiled. The weights of `transformers`
are taken into this program's model before, and have to give the same loss.
`first` and `last` choose among the sizes; only a run of all of them is kept.
"""

import importlib.util
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from record import PROJECT, keep, machine, options, shared_data
from shapes import SHAPES, Shape
from turns import contest, ratios, seconds_a_step, spread

sys.path.insert(0, str(PROJECT))

#: How much faster than the best peer a step is to be, and the least share of the matrix products'
#: own speed; steps of a turn.
TARGETS = {"char": 1.3, "small": 1.1, "gpt2": 1.2}
LIMIT_SHARE = {"small": 0.85}
STEPS = {"char": 20, "small": 2, "gpt2": 1}
#: The peers that are there; compiling the largest model takes minutes.
PEERS = [name for name in ("transformers", "litgpt") if importlib.util.find_spec(name)] + ["plain"]


def settings(name: str, shape: Shape, folder: Path) -> list[str]:
    """What train.py is told, so that its step is one of this shape."""
    told = [
        "data=text", "optim=adamw", f"data.path={shared_data('tinyshakespeare.txt')}",
        "trainer.accelerator=cpu",
        f"model.n_layer={shape.n_layer}", f"model.n_head={shape.n_head}",
        f"model.n_embd={shape.n_embd}", f"model.block_size={shape.T}",
        f"data.batch_size={shape.B}", "trainer.max_steps=1000000", "optim.warmup_steps=100",
        "trainer.val_check_interval=1000000", "saving.every_n_steps=1000000",
        f"data.cache_dir={folder / 'cache'}",
    ]  # fmt: skip
    match name:
        case "char":
            return [*told, "tokenizer=char"]
        case "small":
            return [*told, f"tokenizer.vocab_size={shape.vocab_size}"]
        case _:
            return [*told[:4], *told[7:], f"init_from={gpt2_folder(shape, folder)}"]


def gpt2_folder(shape: Shape, folder: Path) -> Path:
    """A GPT-2 folder of random weights with GPT-2's own tokenizer: only so are there 50,257."""
    from trainers import transformers_model

    place = folder / "gpt2"
    model: Any = transformers_model(shape)[0]
    model.save_pretrained(place)
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(shared_data(f"gpt2_tokenizer/{file}"), place)
    return place


def same_loss(shape: Shape) -> float:
    """How far the losses of one batch are apart, for the weights of `transformers`."""
    from trainers import transformers_model

    from minigpt.config import ModelConfig
    from minigpt.huggingface import gpt2_name
    from minigpt.model.gpt import GPT

    theirs, logits = transformers_model(shape)
    config = ModelConfig(
        n_layer=shape.n_layer, n_head=shape.n_head, n_embd=shape.n_embd, block_size=shape.T
    )
    ours, weights = GPT(config, shape.vocab_size), theirs.state_dict()
    taken: dict[str, Any] = {}
    for name in ours.state_dict():
        their_name, turned = gpt2_name(name)
        taken[name] = weights[their_name].T if turned else weights[their_name]
    ours.load_state_dict(taken)
    tokens = torch.randint(shape.vocab_size, (shape.B, shape.T + 1))
    with torch.inference_mode():
        losses = [
            F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).item()
            for model in (ours, logits)
        ]
    apart = abs(losses[0] - losses[1])
    assert apart < 1e-5, f"the losses of the same weights are {apart} apart"
    return apart


def measure(name: str, folder: Path, rounds: int, *, compiled: bool) -> dict[str, Any]:
    """Seconds a step of every contestant, and how this program stands among them."""
    shape, told = SHAPES[name], settings(name, SHAPES[name], folder)
    script = "bench/trainers.py"
    commands = {
        "matrices": [script, "matrices", name],
        "minigpt": [script, "minigpt", name, *told, f"run_dir={folder / 'eager'}"],
    }
    if compiled:
        commands["minigpt compiled"] = [
            *commands["minigpt"][:-1], f"run_dir={folder / 'compiled'}", "compile=true",
        ]  # fmt: skip
    for peer in PEERS:
        for form in ("", " compiled")[: 1 + compiled]:
            commands[peer + form] = [script, peer + form, name]
    with contest(commands) as contestants:
        times = seconds_a_step(contestants, STEPS[name], rounds)
        starts = {each: contestants[each].start_seconds for each in contestants}
    peers = {each: times[each] for each in times if not each.startswith(("minigpt", "matrices"))}
    own = {each: times[each] for each in times if each.startswith("minigpt")}
    best_peer = min(peers, key=lambda each: median(peers[each]))
    found: dict[str, Any] = {
        "tokens_a_second": {
            each: round(shape.B * shape.T / median(taken)) for each, taken in times.items()
        },
        "milliseconds_a_step": {
            each: spread([1000 * second for second in taken]) for each, taken in times.items()
        },
        "start_seconds": starts,
        "matrix_gigaflops_a_second": shape.flops() / 1e9 / median(times["matrices"]),
        "best_peer": best_peer,
        "loss_difference": same_loss(shape),
    }
    for each, taken in own.items():
        found[each] = {
            "over_best_peer": ratios(peers[best_peer], taken),
            "share_of_limit": ratios(times["matrices"], taken),
        }
    reached = max(found[each]["over_best_peer"]["median"] for each in own) >= TARGETS[name]
    found["reached"] = {"over best peer": reached}
    if name in LIMIT_SHARE:
        share = max(found[each]["share_of_limit"]["median"] for each in own)
        found["reached"]["share of limit"] = share >= LIMIT_SHARE[name]
    return found


def main(rounds: int, first: int, last: int, compiled: int) -> None:
    """Measure, show and keep."""
    facts = machine()
    measured: dict[str, Any] = {
        "rounds": rounds,
        "peers": {name: version(name) for name in PEERS if name != "plain"},
    }
    shapes = list(SHAPES)[first : last + 1]
    for name in shapes:
        with tempfile.TemporaryDirectory() as folder:
            measured[name] = found = measure(name, Path(folder), rounds, compiled=bool(compiled))
        print(f"{name}: {found['tokens_a_second']} tokens a second")
        for own in ("minigpt", "minigpt compiled")[: 1 + compiled]:
            over, share = (
                found[own][what]["median"] for what in ("over_best_peer", "share_of_limit")
            )
            print(f"  {own}: {over:.2f} x {found['best_peer']}, {share:.0%} of the limit")
    if len(shapes) == len(SHAPES):
        keep("training", facts, measured)


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=8, first=0, last=2, compiled=1))
