"""Rung 3. The causal mask: a word may read itself and what came before it, nothing later.

A *mask* is a table of yes and no: row t says which words may be read by word t. The page makes the
causal mask in two ways, shows what goes wrong when it is off by one in either direction, and how
to find out: change a word and see which outputs move. Last, *dropout*, which hides at random.
"""

import math
from collections.abc import Callable

import torch
from matplotlib import pyplot as plt
from page import hold, keep, show, title
from torch import Tensor, nn

from minigpt.model.attention import attention_mask, fast_attention

WORDS = ["Your", "journey", "starts", "with", "one", "step"]
# (T, C): the six words of rung 1, once more their own queries, keys and values
x = torch.tensor([
    [0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64],
    [0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55],
])  # fmt: skip


title("The mask, before the softmax and after it")

scores = x @ x.T / math.sqrt(3)  # (T, T)
# `tril` keeps the lower left triangle of a table: row t is True up to column t.
mask = torch.ones(6, 6, dtype=torch.bool).tril()

# Before: a forbidden score becomes minus infinity, of which the exponential is 0. (`~` exchanges
# yes and no: True is now where reading is forbidden.)
before = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
show(
    "minus infinity before the softmax",
    before,
    [
        [1.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.4226, 0.5774, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.2698, 0.3670, 0.3632, 0.0000, 0.0000, 0.0000],
        [0.2235, 0.2764, 0.2742, 0.2259, 0.0000, 0.0000],
        [0.1858, 0.2146, 0.2157, 0.1744, 0.2095, 0.0000],
        [0.1511, 0.1965, 0.1936, 0.1533, 0.1243, 0.1811],
    ],
)

# After: forbidden weights become 0. What is left of a row is less than 1 and is divided by its sum.
zeroed = scores.softmax(dim=-1) * mask
show(
    "zeroed after it, the rows add up to",
    zeroed.sum(dim=-1),
    [0.1916, 0.3585, 0.5623, 0.6869, 0.8554, 1.0],
)
after = zeroed / zeroed.sum(dim=-1, keepdim=True)
hold("divided by these sums, it is the same", true=torch.allclose(before, after))


title("One too few: tril(-1), and a row with nothing to read")


def attend(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mix the words as the mask allows: the new vectors (T, C) and the weights (T, T)."""
    scores = x @ x.T / math.sqrt(x.size(-1))
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    return weights @ x, weights


# The first word may not even read itself. All its scores are minus infinity, its shares are 0 / 0.
# torch makes *NaN*, "not a number", of that (Python refuses it). Whatever a NaN is added to or
# multiplied with, even 0, is NaN again.
blind_mask = mask.tril(-1)
y, blind_weights = attend(x, blind_mask)
show("weights of the first word", blind_weights[0], [math.nan] * 6)
show("words whose new vector is NaN", y.isnan().any(dim=-1).sum(), 1, digits=0)

# A second layer, with the right mask: every word reads the first one, so now all of them are lost,
# and with them the mean that is taken of all outputs when a model learns.
second, _ = attend(y, mask)
show("and after one more layer", second.isnan().any(dim=-1).sum(), 6, digits=0)
show("the mean of its output", second.mean(), math.nan)


title("One too many: tril(1), and a look at the next word")


def first_moved(attention: Callable[[Tensor], Tensor]) -> list[int]:
    """For each word: the first output that moves when this word is changed."""
    first: list[int] = []
    for s in range(6):
        changed = x.clone()
        changed[s] += 1
        moved = (attention(changed) != attention(x)).any(dim=-1)  # (T,), exactly
        first.append(int(moved.nonzero()[0]))
    return first


# Nothing fails here and the numbers look well. But output t has heard of word t + 1, the one that
# it is to guess: the model learns to copy it, seems brilliant, and is lost where there is none yet.
leaky_mask = torch.ones(6, 6, dtype=torch.bool).tril(1)
_, leaky_weights = attend(x, leaky_mask)
show("the first word now reads the second", leaky_weights[0], [0.5065, 0.4935, 0, 0, 0, 0])
hold(
    "hiding triu(2), not triu(1), is the same mistake",
    true=torch.equal(leaky_mask, ~torch.ones(6, 6, dtype=torch.bool).triu(2)),
)
show(
    "tril(1): change word 0, 1, … 5, and the first output that moves is",
    first_moved(lambda x: attend(x, leaky_mask)[0]),
    [0, 0, 1, 2, 3, 4],
    digits=0,
)
show(
    "tril(): and the first output that moves is",
    first_moved(lambda x: attend(x, mask)[0]),
    [0, 1, 2, 3, 4, 5],
    digits=0,
)


title("The program's own")


def program(x: Tensor) -> Tensor:
    """What the model uses, on one sequence with one head."""
    x = x.view(1, 1, 6, 3)  # (B, H, T, D)
    return fast_attention(x, x, x, causal=True)[0, 0]


hold("its output is the same", true=torch.allclose(program(x), attend(x, mask)[0]))
show("the first output that moves is", first_moved(program), [0, 1, 2, 3, 4, 5], digits=0)

# Plain causality needs no table: None stands for it in a block, and PyTorch's kernel (the routine
# that does the computing) knows the triangle. A table is made where it says more, as for the last
# two of six words, the others being read already.
hold("its mask of six words is None", true=attention_mask(6, 6) is None)
last_two = attention_mask(2, 6)
assert last_two is not None
hold("its mask of the last two is the last two rows of ours", true=torch.equal(last_two, mask[4:]))


title("Dropout")

# While a model learns, *dropout* sets a random share of the numbers to 0, of attention weights say,
# so that the model relies on no single one. The others are made larger to keep the mean.
torch.manual_seed(0)
dropout = nn.Dropout(0.5)
dropped = dropout(torch.ones(1000, 1000))
show("with half of them dropped, a one becomes", dropped.unique(), [0.0, 2.0])
show("their mean", dropped.mean(), 1.0, digits=2)
dropout.eval()  # the model is used, not trained
hold("in eval() nothing is dropped", true=torch.equal(dropout(before), before))


figure, panels = plt.subplots(1, 3, figsize=(12, 4.4), layout="constrained")
pictures = [
    ("right: tril()", before),
    ("one too few, tril(-1):\nthe first word reads nothing", blind_weights),
    ("one too many, tril(1):\nwords read the next one", leaky_weights),
]
for axes, (name, weights) in zip(panels, pictures, strict=True):
    axes.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1.6)
    for t, s in weights.nonzero():  # NaN is not zero either
        color = "black" if s <= t and weights[t, s] >= 0 else "crimson"
        text = f"{weights[t, s]:.2f}".replace("nan", "NaN")
        axes.text(int(s), int(t), text, ha="center", va="center", fontsize=9, color=color)
        if color == "crimson":
            axes.plot(int(s), int(t), "s", color=color, markersize=34, fillstyle="none")
    axes.set_xticks(range(6), WORDS, rotation=45)
    axes.set_yticks(range(6), WORDS)
    axes.set(title=name, xlabel="word that is read", ylabel="word that reads")
keep(figure, __file__)
