"""Rung 5. The block: attention, a feed-forward network, and what lets many of them be stacked.

Attention lets positions hear of each other; a small *feed-forward network* then works on each
position by itself. One of each, with two *residual connections* (what comes out is added to what
went in) and two *layer norms* (numbers are brought to a common scale), make a block, and a model is
a stack of blocks. Where the norms stand decides whether a deep stack learns: the Transformer of
2017 has them behind each sum (*Post-LN*), GPT-2 and most since inside each branch (*Pre-LN*).
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from matplotlib import pyplot as plt
from page import hold, keep, show, title
from torch import Tensor, nn

from minigpt.config import ModelConfig
from minigpt.data.corpora.stories import stories
from minigpt.model.block import Block

torch.manual_seed(0)
x = torch.randn(2, 5, 32)  # (B, T, C)
pre_ln = Block(ModelConfig(n_embd=32, n_head=4, norm_order="pre"), layer=0)
post_ln = Block(ModelConfig(n_embd=32, n_head=4, norm_order="post"), layer=0)


title("The feed-forward network")


# Two linear layers, four times as wide between them. There, GELU, a smooth form of max(0, z), bends
# each number: without something that bends, two linear layers would do no more than one.
def feed_forward(block: Block, x: Tensor) -> Tensor:
    """(B, T, C) to (B, T, C), through (B, T, 4C)."""
    return block.mlp.down(F.gelu(block.mlp.up(x), approximate="tanh"))


hold("by hand as in the program", true=torch.allclose(feed_forward(pre_ln, x), pre_ln.mlp(x)))
gpt2 = Block(ModelConfig(n_embd=768, n_head=12), layer=0)
# What is learned are the *parameters*: the numbers in the layers' tables.
of_block, of_mlp = (sum(p.numel() for p in part.parameters()) for part in (gpt2, gpt2.mlp))
show("parameters of a block of GPT-2's width", of_block, 7_087_872, digits=0)
show("share of them in the feed-forward network", of_mlp / of_block, 0.666, digits=3)


title("Layer norm")


# Each position by itself: take off the mean of its numbers, then divide by their spread. (The
# module also multiplies by parameters and adds some, which are 1 and 0 at first.)
def layer_norm(x: Tensor) -> Tensor:
    """(…, C) to mean 0 and variance (the square of the spread) 1 along C."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.pow(2).mean(dim=-1, keepdim=True)
    return centred / (variance + 1e-5).sqrt()  # 1e-5: where all are equal, 0 is not divided by 0


far = 3 + 10 * x[0, 0]
near = layer_norm(far)
show("mean and variance before", [far.mean(), far.var(correction=0)], [3.07, 101.24], digits=2)
show("and after", [near.mean(), near.var(correction=0)], [0.0, 1.0], digits=2)
hold("by hand as in torch", true=torch.allclose(layer_norm(x), nn.LayerNorm(32)(x), atol=1e-6))


title("The block, in both orders")

# Pre-LN: a straight way leads from x to the end; branches leave it, and come back as summands.
y = x + pre_ln.attention(layer_norm(x))
y = y + feed_forward(pre_ln, layer_norm(y))
hold("Pre-LN as in the program", true=torch.allclose(y, pre_ln(x), atol=1e-5))

# Post-LN: every sum is rescaled, and with it what came the straight way.
y = layer_norm(x + post_ln.attention(x))
y = layer_norm(y + feed_forward(post_ln, y))
hold("Post-LN as in the program", true=torch.allclose(y, post_ln(x), atol=1e-5))


title("A stack of blocks learns")

# The task: guess the next letter of a story. The *loss* says how wrong the guesses are (0: right
# and certain); the *gradient* says for each parameter how fast the loss changes with it. The length
# of a block's gradient is, as of an arrow, the root of the sum of squares. A step of learning moves
# every parameter against its gradient (rung 9): in the usual method, *Adam*, all by about the same
# amount, the *learning rate*. Parameters start as torch's linear layers draw them.
TEXT = " ".join(stories(seed=0, count=20))
LETTERS = sorted(set(TEXT))
letters = torch.tensor([LETTERS.index(letter) for letter in TEXT])


class Run(NamedTuple):
    """What was noted at each step: the loss, and a list with a number for each block or norm."""

    losses: list[float]
    gradients: list[list[float]]
    spreads: list[list[float]]


def learn(order: str, depth: int, *, steps: int = 11, warm_up: int = 1) -> Run:
    """Some steps of learning; in a warm-up the learning rate climbs to its full height.

    The 11th gradient is the one after ten steps.
    """
    torch.manual_seed(0)
    config = ModelConfig(n_embd=32, n_head=4, norm_order="post" if order == "post" else "pre")
    blocks = [Block(config, layer) for layer in range(depth)]
    bare = [nn.Sequential(b.norm_1, b.attention, b.norm_2, b.mlp) for b in blocks]  # no sums
    end = nn.Identity() if order == "post" else nn.LayerNorm(32)  # Post-LN ends in one anyway
    embedding, logits = nn.Embedding(len(LETTERS), 32), nn.Linear(32, len(LETTERS))
    # float64, numbers of 16 digits: rounding cannot lead one computer's run away from another's.
    parts = bare if order == "no residuals" else blocks
    model = nn.Sequential(embedding, *parts, end, logits).double()
    optimizer = torch.optim.Adam(model.parameters())
    run = Run([], [], [])

    def note(_norm: nn.Module, inputs: tuple[Tensor], _output: Tensor) -> None:
        run.spreads[-1].append(float(inputs[0].detach().std(dim=-1, correction=0).mean()))

    for norm in [norm for block in blocks for norm in (block.norm_1, block.norm_2)]:
        norm.register_forward_hook(note)  # torch calls `note` whenever the norm is used
    for step in range(steps):
        run.spreads.append([])
        optimizer.param_groups[0]["lr"] = 0.003 * min(1, (step + 1) / warm_up)
        read = letters[torch.randint(len(letters) - 16, (4, 1)) + torch.arange(17)]  # (B, T + 1)
        loss = F.cross_entropy(model(read[:, :-1]).mT, read[:, 1:])
        optimizer.zero_grad()
        loss.backward()  # computes the gradient, from the last block back to the first
        gradients = [[cast("Tensor", p.grad) for p in block.parameters()] for block in blocks]
        run.gradients.append([float(nn.utils.get_total_norm(block)) for block in gradients])
        run.losses.append(loss.item())
        optimizer.step()
    return run


def ratio(run: Run, step: int) -> float:
    """How many times as long the last block's gradient is as the first block's."""
    return run.gradients[step][-1] / run.gradients[step][0]


pre = [learn("pre", 2), learn("pre", 8), learn("pre", 24, steps=41)]
post = [learn("post", 2), learn("post", 8), learn("post", 24, steps=41)]
bare, warmed = learn("no residuals", 24), learn("post", 24, steps=41, warm_up=40)

print("The gradient of the last block over that of the first, before learning:")
show("Pre-LN, of 2, 8, 24 blocks", [ratio(run, 0) for run in pre], [1.1, 0.8, 0.7], digits=1)
show("Post-LN", [ratio(run, 0) for run in post], [1.1, 0.9, 1.2], digits=1)
show("24 blocks without residuals", ratio(bare, 0), 15.2, digits=1)
print("After ten steps:")
show("Pre-LN", [ratio(run, 10) for run in pre], [1.0, 0.7, 0.4], digits=1)
show("Post-LN", [ratio(run, 10) for run in post], [1.2, 1.8, 2.1e3], digits=1, scientific=True)
show("24 blocks without residuals", ratio(bare, 10), 2.2e10, digits=1, scientific=True)

# At first the branches are small beside x, and Post-LN is as even as Pre-LN. Learning makes them
# grow. Then each norm behind a sum divides by a spread above 1: the sum, the straight way in it,
# and on the way back the gradient: 46 times between the last block and the first. More arrives
# than the divisions leave, since a part of the gradient comes back through the branches. In Pre-LN
# nothing is divided on the straight way, however large the branches grow.
divisors = torch.tensor(post[-1].spreads[10])  # (48,)
show("Post-LN, after ten steps: a norm divides by", divisors.mean(), 1.24, digits=2)
show("and the 46 behind the first block by", divisors[2:].prod(), 2.8e4, digits=1, scientific=True)

# To guess by frequency is to give each letter the share that it has in the text. Pre-LN has begun
# to learn more than that, 24 blocks of Post-LN are where it is. A learning rate that climbs slowly,
# the usual remedy (Xiong et al. 2020), keeps the gradients more even; in these forty steps that
# alone does not yet lower the loss.
shares = letters.bincount() / len(letters)
show("the loss of guessing by frequency", -(shares * shares.log()).sum(), 3.10, digits=2)
late = [sum(run.losses[-10:]) / 10 for run in (pre[-1], post[-1], warmed)]
print("The loss after forty steps, the mean of the last ten:")
show("Pre-LN, Post-LN, Post-LN with a warm-up", late, [2.82, 3.14, 3.14], digits=2)
course = [[ratio(run, step) for step in range(41)] for run in (pre[-1], post[-1], warmed)]
show("the largest gradient ratio in forty steps, Pre-LN", max(course[0]), 1.0, digits=1)
show("Post-LN", max(course[1]), 9.8e4, digits=1, scientific=True)
show("Post-LN with a warm-up over all forty", max(course[2]), 32.5, digits=1)


figure, axes = plt.subplots(1, 3, figsize=(13, 4.6), layout="constrained")
stacks = [
    ("Pre-LN", pre, "tab:blue"),
    ("Post-LN", post, "tab:red"),
    ("no residuals", [bare], "tab:gray"),
]
for name, runs, colour in stacks:
    for run, style in zip(runs[::-1], ["-", "--", ":"], strict=False):
        blocks = len(run.gradients[0])
        place = [block / (blocks - 1) for block in range(blocks)]
        label = f"{name}, {blocks} blocks"
        for panel, step in enumerate([0, 10]):
            axes[panel].semilogy(place, run.gradients[step], style, color=colour, label=label)
for panel, when in enumerate(["before learning", "after ten steps"]):
    axes[panel].set(ylim=(1e-12, 1e2), ylabel="length of the block's gradient", title=when)
    axes[panel].set_xticks([0, 1], ["first block", "last block"])
axes[0].legend(fontsize=9, loc="lower center")
axes[2].semilogy(course[1], "-", color="tab:red", label="Post-LN")
axes[2].semilogy(course[2], "-.", color="tab:red", label="Post-LN with a warm-up")
axes[2].semilogy(course[0], "-", color="tab:blue", label="Pre-LN")
axes[2].set(title="24 blocks, step by step", xlabel="step", ylabel="last gradient / first gradient")
axes[2].set_ylim(0.03, 1e8)
axes[2].legend(fontsize=9, loc="upper left")
keep(figure, __file__)
