"""Rung 10. The KV cache: writing a text without reading all of it again at each step.

To say the next token, the newest position asks the earlier ones, and all that it needs of them are
their keys and values. Those never change when the text goes on, since attention is causal. So they
are kept, and a step computes the newest position only. Here the cache is made by hand and compared
with the program's own; what it saves and what it costs is counted; and two ways to get it wrong.
"""

import math

import torch
from matplotlib import pyplot as plt
from page import hold, keep, show, title
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minigpt.config import ModelConfig, OptimConfig
from minigpt.model.block import Block
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.training.loss import summed_loss
from minigpt.training.optimizer import build_optimizer

CONFIG = ModelConfig(n_layer=2, n_head=2, n_embd=32, block_size=64)
L, H, C = CONFIG.n_layer, CONFIG.n_head, CONFIG.n_embd
D = C // H
TEXTS = "a cat naps on the sofa, then naps again", "a dog runs in the park, then runs again"
LETTERS = sorted(set("".join(TEXTS)))
T = len(TEXTS[0])

torch.manual_seed(0)

# A small model that knows two texts by heart (rung 9), so that an error can be read.
ids = torch.tensor([[LETTERS.index(letter) for letter in text] for text in TEXTS])  # (2, T)
model = GPT(CONFIG, len(LETTERS)).double()
optimizer = build_optimizer(model, OptimConfig(lr=3e-3), fused=True)
for _ in range(150):
    loss = summed_loss(model(ids[:, :-1]), ids[:, 1:]) / ids[:, 1:].numel()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.requires_grad_(requires_grad=False)  # it has learned enough


title("By hand")


def step_by_hand(
    token: int, position: int, keys: list[list[Tensor]], values: list[list[Tensor]]
) -> Tensor:
    """Logits (V,) after one more token; its keys and values are added to those of each layer."""
    x = model.embedding(torch.tensor(token)) + model.position(torch.tensor(position))  # (C,)
    for layer in range(L):
        block = model.blocks[layer]
        assert isinstance(block, Block)
        q, k, v = block.attention.qkv(block.norm_1(x)).split(C)  # of the newest position only
        keys[layer].append(k)
        values[layer].append(v)
        y = torch.zeros_like(x)
        for head in (slice(h * D, (h + 1) * D) for h in range(H)):
            scores = [q[head] @ key[head] / math.sqrt(D) for key in keys[layer]]
            weights = torch.stack(scores).softmax(0)
            for weight, value in zip(weights, values[layer], strict=True):
                y[head] += weight * value[head]
        x = x + block.attention.output(y)
        x = x + block.mlp(block.norm_2(x))
    return model.logits(model.norm(x))


keys: list[list[Tensor]] = [[] for _ in range(L)]
values: list[list[Tensor]] = [[] for _ in range(L)]
cache = KVCache.for_model(model, batch_size=1, capacity=T)
tokens = ids[:1]  # (1, T)
same: list[bool] = []
for t in range(T):
    full = model(tokens[:, : t + 1])[0, -1]  # all that is there, read again
    theirs = model(tokens[:, t : t + 1], cache=cache)[0, -1]
    ours = step_by_hand(int(tokens[0, t]), t, keys, values)
    same += [ours.allclose(full), theirs.allclose(full)]
show("steps", T, 39, digits=0)
hold("at each, the same logits by hand, by the program's cache and without one", true=all(same))
rows = cache.keys[1, 0, :, 5].flatten()  # layer 1, position 5, both heads
hold("the program's cache holds the rows that were kept by hand", true=rows.allclose(keys[1][5]))


title("What it saves")


def work(tokens: Tensor, cache: KVCache | None) -> float:
    """Multiply-adds for the logits that follow, as PyTorch counts them (it counts each as two)."""
    with FlopCounterMode(display=False) as counter:
        # A list for the weights of attention chooses the program's readable way, whose products
        # PyTorch counts; it does not see into the fast kernel.
        model(tokens, cache=cache, attention=[], last_only=True)
    return counter.get_total_flops() / 2


whole = [tokens[:, : t + 1] for t in range(T)]  # what each step reads without a cache
newest = [tokens[:, t : t + 1] for t in range(T)]  # and with one
show("positions computed without, T (T + 1) / 2", sum(r.size(1) for r in whole), 780, digits=0)
show("with the cache, T", sum(r.size(1) for r in newest), 39, digits=0)

cache = KVCache.for_model(model, batch_size=1, capacity=T)
work_whole = [work(read, None) for read in whole]
work_newest = [work(read, cache) for read in newest]
show("multiply-adds of the last step without", work_whole[-1], 1153728, digits=0)
show("with", work_newest[-1], 30144, digits=0)
show("all steps, times as many", sum(work_whole) / sum(work_newest), 20.19, digits=2)


title("What it costs")

GPT2 = ModelConfig(n_layer=12, n_head=12, n_embd=768, block_size=1024)


def formula(config: ModelConfig, B: int, T: int, number: torch.dtype) -> int:
    """The bytes of a key and a value: D numbers per layer, head, position and row of the batch."""
    D = config.n_embd // config.n_head
    return 2 * config.n_layer * config.n_head * D * T * B * number.itemsize


def held(config: ModelConfig, B: int, T: int, number: torch.dtype) -> int:
    """The bytes of the program's cache."""
    D = config.n_embd // config.n_head
    cache = KVCache(config.n_layer, B, config.n_head, T, D, dtype=number)
    return cache.keys.nbytes + cache.values.nbytes


shapes = (
    (CONFIG, 1, T, torch.float64),
    (CONFIG, 3, T, torch.float32),
    (GPT2, 1, 1024, torch.float16),
)
fits = all(formula(*shape) == held(*shape) for shape in shapes)
hold("a cache holds 2 n_layer n_head D T B numbers", true=fits)
show("GPT-2, 1024 positions, float32", held(GPT2, 1, 1024, torch.float32), 75_497_472, digits=0)
show("in float16", held(GPT2, 1, 1024, torch.float16), 37_748_736, digits=0)


title("Two ways to get it wrong")


def recited(text: str, *, advance: bool = True, position: bool = True) -> str:
    """What the model writes after the first three letters of a text, with the program's cache."""
    said = [LETTERS.index(letter) for letter in text[:3]]
    cache = KVCache.for_model(model, batch_size=1)
    for t in range(T - 1):
        if not advance:
            cache.length = 0  # the new row is written over the last one
        place = torch.tensor([t if position else 0])
        logits = model(torch.tensor([said[t : t + 1]]), cache=cache, positions=place)
        if len(said) == t + 1:
            said.append(int(logits[0, -1].argmax()))
    return "".join(LETTERS[i] for i in said)


for text in TEXTS:
    hold(f"it writes '{text}'", true=recited(text) == text)
    wrong = recited(text, advance=False)
    hold(f"where the cache is not advanced, '{wrong}', which is wrong", true=wrong != text)
    wrong = recited(text, position=False)
    hold(f"where the position is always the first, '{wrong}', wrong too", true=wrong != text)


figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for work_of, name in (
    (work_whole, "all positions again"),
    (work_newest, "the newest, with the cache"),
):
    left.plot(range(1, T + 1), [amount / 1e6 for amount in work_of], label=name)
left.set(
    xlabel="step", ylabel="million multiply-adds", title="Work of each step in the small model"
)
left.legend()
lengths = range(0, 1025, 64)
for number, name in ((torch.float32, "float32"), (torch.float16, "float16")):
    megabytes = [held(GPT2, 1, length, number) / 1e6 for length in lengths]
    right.plot(lengths, megabytes, label=name)
right.set(xlabel="positions kept", ylabel="megabytes", title="Memory of the cache in GPT-2")
right.legend()
keep(figure, __file__)
