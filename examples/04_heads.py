"""Rung 4. Several heads: each looks for something else, and a word hears from all of them.

One attention gives a word one mixture of the others. But a word may want several things at once:
the word before it, the one it belongs to. So the width C is shared by H *heads*, each an attention
of its own with D = C / H numbers in a vector; their outputs are put side by side. The page does
that with separate heads and, as programs do, with one wide layer; shows five ways to get it wrong;
and counts what heads cost.

A *projection* is a linear layer (rung 2) used to make vectors of another kind or width.
"""

import math

import torch
from matplotlib import pyplot as plt
from page import hold, keep, show, title
from torch import Tensor, nn

from minigpt.config import ModelConfig
from minigpt.model.attention import CausalSelfAttention, readable_attention

WORDS = ["Your", "journey", "starts", "with", "one", "step"]
sentence = torch.tensor([
    [0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64],
    [0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55],
])  # fmt: skip
x = torch.stack([sentence, sentence])  # (B, T, C): the six words of rung 1, twice


title("Separate heads")


def projections(C: int, width: int) -> list[nn.Linear]:
    """Three layers, for queries, keys and values."""
    return [nn.Linear(C, width, bias=False) for _ in "qkv"]


def one_head(x: Tensor, head: list[nn.Linear]) -> Tensor:
    """Causal attention with one head's projections, (B, T, C) to (B, T, D)."""
    q, k, v = (project(x) for project in head)
    scores = q @ k.mT / math.sqrt(q.size(-1))  # (B, T, T); .mT exchanges the last two axes
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(dim=-1) @ v


torch.manual_seed(123)
show("the input's shape", x.shape, [2, 6, 3], digits=0)
heads = [projections(3, 2), projections(3, 2)]
apart = torch.cat([one_head(x, head) for head in heads], dim=-1)  # side by side
show("two heads of width 2", apart.shape, [2, 6, 4], digits=0)
heads = [projections(3, 1), projections(3, 1)]
apart = torch.cat([one_head(x, head) for head in heads], dim=-1)
show("two heads of width 1", apart.shape, [2, 6, 2], digits=0)


title("One wide projection is several narrow ones")


# `view` and `reshape` break the numbers as they stand into other rows; `transpose` swaps axes.
table = torch.arange(6).view(2, 3)
show("six numbers as two rows of three", table, [[0, 1, 2], [3, 4, 5]], digits=0)
show("reshaped to three rows of two", table.reshape(3, 2), [[0, 1], [2, 3], [4, 5]], digits=0)
show("transposed instead", table.transpose(0, 1), [[0, 3], [1, 4], [2, 5]], digits=0)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each head's causal attention by itself, all of them at once; every shape (B, H, T, D)."""
    return readable_attention(q, k, v, causal=True)[0]


def split(x: Tensor, H: int) -> Tensor:
    """Cut the width into heads, (B, T, C) to (B, H, T, D)."""
    return x.view(*x.shape[:2], H, -1).transpose(1, 2)  # -1: as many as there are, D


def merge(y: Tensor) -> Tensor:
    """Put the heads side by side again, (B, H, T, D) to (B, T, C)."""
    return y.transpose(1, 2).flatten(2)  # the last two axes made one


# A layer's table has a row for each number it makes. Those of the first head, then those of the
# second: one table, one product for all heads. `split` makes the heads an axis of their own.
wide = projections(3, 2)
for project, *narrow in zip(wide, *heads, strict=True):
    project.weight.data = torch.cat([layer.weight.data for layer in narrow])
q, k, v = (split(project(x), 2) for project in wide)  # (B, H, T, D)
together = merge(attention(q, k, v))
show("two heads in one module", together.shape, [2, 6, 2], digits=0)
hold("equal to the separate ones", true=torch.allclose(together, apart))


title("The program's own")

# It goes one step further: one layer makes queries, keys and values of all heads, in this order.
# After the heads comes an *output projection*, which lets every number hear from every head.
C, H, D = 8, 2, 4
x = torch.randn(2, 6, C)
module = CausalSelfAttention(ModelConfig(n_embd=C, n_head=H, bias=False), layer=0)
heads = [projections(C, D), projections(C, D)]
tables = module.qkv.weight.data.view(3, H, D, C)  # q, k or v; head; row; column
for h, head in enumerate(heads):
    for project, table in zip(head, tables[:, h], strict=True):
        project.weight.data = table
apart = torch.cat([one_head(x, head) for head in heads], dim=-1)
right = module(x)  # (B, T, C)
hold("equal to separate heads", true=torch.allclose(module.output(apart), right, atol=1e-6))


title("Five ways to get it wrong")

# Each gives a result of the right shape, which is just not the right one.
q, k, v = module.qkv(x).split(C, dim=-1)  # (B, T, C) each
y = attention(split(q, H), split(k, H), split(v, H))  # (B, H, T, D)


def distance(wrong: Tensor) -> Tensor:
    """The largest difference from the right output."""
    return (wrong - right).abs().max()


show("done right: off by", distance(module.output(merge(y))), 0.0)
show("the largest number in it, without its sign", right.abs().max(), 1.3642)

# 1. Splitting without the transpose. Straight to (B, H, T, D), a "head" gets three whole words of
# the six, and merged again the first word has heard of the fourth.
shuffled = attention(*(part.reshape(2, H, 6, D) for part in (q, k, v)))
show("split without a transpose: off by", distance(module.output(merge(shuffled))), 0.8715)

# 2. Left as (B, T, H, D), the heads of a word attend to each other, and the words not at all.
unturned = (part.reshape(2, 6, H, D) for part in (q, k, v))
lonely, weights = readable_attention(*unturned)
show("left as (B, T, H, D): scores", weights.shape, [2, 6, 2, 2], digits=0)
show("left as (B, T, H, D): off by", distance(module.output(lonely.reshape(2, 6, C))), 1.2777)

# 3. Merging without the transpose: parts of different words end up side by side.
show("merge without a transpose: off by", distance(module.output(y.reshape(2, 6, C))), 1.0652)

# 4. Dividing by √C: but a score adds up D products, not C (rung 2).
small = split(q, H) * math.sqrt(D) / math.sqrt(C)  # what readable_attention divides by √D
wrong = module.output(merge(attention(small, split(k, H), split(v, H))))
show("scores divided by √C: off by", distance(wrong), 0.1374)

# 5. No output projection: the heads stay side by side and never meet.
show("no output projection: off by", distance(merge(y)), 1.6041)


title("What heads cost")

# An attention of GPT-2's width, 768, with its 12 heads, but its q, k, v without biases. (A
# *parameter* is a number that is learned.)
qkv, output = projections(768, 768), nn.Linear(768, 768)  # the last one with a bias
q, k, v = (split(project(torch.randn(2, 8, 768)), 12) for project in qkv)
y = output(merge(attention(q, k, v)))  # (B, T, C)
show("at GPT-2's width, the output's shape", y.shape, [2, 8, 768], digits=0)
tables = [*nn.ModuleList([*qkv, output]).parameters()]
show("the tables of q, k, v and the output, and the output's bias", len(tables), 5, digits=0)

# More heads are narrower heads: the tables stay as they are. But each has a score for every pair.
# (The program's module has biases for q, k and v as well.)
x = torch.randn(1, 6, 128)
print("the program's: heads, numbers in each, parameters, scores of six words:")
for n_head, *expected in [(1, 128, 66048, 36), (4, 32, 66048, 144), (8, 16, 66048, 288)]:
    module = CausalSelfAttention(ModelConfig(n_embd=128, n_head=n_head), layer=0)
    collected: list[Tensor] = []
    module(x, attention=collected)  # puts its weights in the list, (B, H, T, T)
    parameters = sum(p.numel() for p in module.parameters())
    seen = [split(x, n_head).size(-1), parameters, collected[0].numel()]
    show(f"    {n_head}", seen, expected, digits=0)
show("which are four tables and four biases", 4 * 128 * 128 + 4 * 128, 66048, digits=0)


title("Three heads, three places")

# Learning finds such queries and keys; these are set by hand. A query finds the keys it is like,
# and the factor 20 makes its scores so large that the best key gets nearly everything (rung 2).
# Head 3 has the words' own numbers: large vectors have large scores (rung 1).
position = torch.eye(6)  # row t has a 1 at t: "I stand at t"
meaning = torch.cat([sentence, torch.zeros(6, 3)], dim=-1)
before = torch.cat([position[:1], position[:5]])  # row t: "who stands at t - 1?"
first = position[:1].expand(6, 6)  # "who stands at 0?"
q = 20 * torch.stack([before, first, meaning]).view(1, 3, 6, 6)  # (B, H, T, D)
k = torch.stack([position, position, meaning]).view(1, 3, 6, 6)
places = readable_attention(q, k, k, causal=True)[1][0]  # (H, T, T)
show("head 1: 'step' reads 'one' with weight", places[0, 5, 4], 0.9986)
show("head 2: 'step' reads 'Your' with weight", places[1, 5, 0], 0.9986)
show("head 3: 'step' reads 'journey' with weight", places[2, 5, 1], 0.4589)


figure, panels = plt.subplots(1, 3, figsize=(12, 4.7), layout="constrained")
names = [
    "head 1: the word before",
    "head 2: the first word",
    "head 3: similar words,\nlarge vectors first",
]
for axes, name, shares in zip(panels, names, places, strict=True):
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1.6)
    for t, s in (shares > 0.005).nonzero():
        axes.text(int(s), int(t), f"{shares[t, s]:.2f}", ha="center", va="center", fontsize=9)
    axes.set_xticks(range(6), WORDS, rotation=45)
    axes.set_yticks(range(6), WORDS)
    axes.set(title=name, xlabel="word that is read", ylabel="word that reads")
keep(figure, __file__)
