"""Rung 8. Two streams: one part of the model reads, another writes and looks over to what is read.

The first Transformer translated. Its *encoder* reads the whole source: each position hears of those
before and after it. Its *decoder* writes the target word by word: its own mask is causal, and in
*cross-attention* each of its positions asks the positions of the encoder: the queries come from one
stream, the keys and values from the other. So the two may have different lengths, T and S.

Here digits become words as in "four and twenty blackbirds": the ones come before the tens. The
decoder has to look at the source in another order than it stands there.
"""

import math

import torch
from matplotlib import pyplot as plt
from page import hold, keep, show, title
from torch import Tensor, nn

from minigpt.config import ModelConfig, OptimConfig
from minigpt.data.batches import IGNORED
from minigpt.model.attention import readable_attention
from minigpt.model.block import Block
from minigpt.training.loss import summed_loss
from minigpt.training.optimizer import build_optimizer
from minigpt.training.schedule import learning_rate

COUNTING = """zero one two three four five six seven eight nine ten eleven twelve thirteen
fourteen fifteen sixteen seventeen eighteen nineteen
twenty thirty forty fifty sixty seventy eighty ninety"""
NAMES = COUNTING.split()
NUMBERS = range(100, 10_000)
PAD, START, END = 0, 1, 2
TOKENS = ["<pad>", "<start>", "<end>", *"0123456789", "thousand", "hundred", "and", *NAMES[1:]]

torch.manual_seed(0)


def spell(number: int) -> list[str]:
    """The words of one of the numbers."""
    thousands, hundreds, tens, ones = (number // unit % 10 for unit in (1000, 100, 10, 1))
    words = [NAMES[thousands], "thousand"] if thousands else []
    words += [NAMES[hundreds], "hundred"] if hundreds else []
    if tens == 1:
        return [*words, NAMES[10 + ones]]
    words += [NAMES[ones]] if ones else []
    words += ["and"] if ones and tens else []
    return words + ([NAMES[18 + tens]] if tens else [])


def padded(rows: list[list[str]]) -> Tensor:
    """Token ids, a row each; shorter rows are filled up with padding at the end."""
    width = max(map(len, rows))
    return torch.tensor([[*map(TOKENS.index, row), *[PAD] * (width - len(row))] for row in rows])


class TwoStreams(nn.Module):
    """An encoder of two of the program's blocks; a decoder of one, and cross-attention."""

    def __init__(self, C: int = 64) -> None:
        super().__init__()
        config = ModelConfig(n_embd=C)
        self.embedding = nn.Embedding(len(TOKENS), C)
        self.position = nn.Parameter(torch.randn(8, C))
        self.encoder = nn.ModuleList(Block(config, layer) for layer in range(2))
        self.decoder = Block(config, layer=0)
        self.norm_source, self.norm_target = nn.LayerNorm(C), nn.LayerNorm(C)
        self.q, self.k, self.v, self.output = (nn.Linear(C, C) for _ in range(4))
        self.logits = nn.Linear(C, len(TOKENS))

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Source (B, S) and target (B, T) to logits (B, T, V) and cross-attention (B, T, S).

        Logits are scores, one for each of the V tokens; the softmax makes probabilities of them.
        """
        real = (source != PAD)[:, None, None]  # (B, 1, 1, S): what may be read
        x = self.embedding(source) + self.position[: source.size(1)]  # (B, S, C)
        for block in self.encoder:
            x = block(x, real)  # with this mask, which is not causal, a block is an encoder's
        y = self.embedding(target) + self.position[: target.size(1)]  # (B, T, C)
        y = self.decoder(y)  # without a mask, a block is causal
        x = self.norm_source(x)[:, None]  # (B, 1, S, C): one head
        q = self.q(self.norm_target(y))[:, None]  # (B, 1, T, C)
        read, weights = readable_attention(q, self.k(x), self.v(x), real)
        return self.logits(y + self.output(read[:, 0])), weights[:, 0]


def trained(steps: int, *data: Tensor) -> tuple[TwoStreams, list[float]]:
    """A model whose weights were changed a little at a time so that its loss falls (see rung 9)."""
    model = TwoStreams()
    losses: list[float] = []
    optim = OptimConfig(lr=3e-3, warmup_steps=50, decay_steps=steps)
    optimizer = build_optimizer(model, optim, fused=True)  # fused: a step in one kernel
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, optim)
        rows = torch.randint(len(data[0]), (64,))
        source, inputs, targets = (part[rows] for part in data)
        logits, _ = model(source, inputs)
        # The loss is the surprise, -ln of the probability given to the right word; the mean.
        loss = summed_loss(logits, targets) / (targets != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


title("The task")

digits = padded([list(str(number)) for number in NUMBERS])
spelled = padded([["<start>", *spell(number), "<end>"] for number in NUMBERS])
# The decoder reads the words from the start on, and has to say what follows each of them.
inputs = spelled[:, :-1].where(spelled[:, :-1] != END, PAD)
targets = spelled[:, 1:].where(spelled[:, 1:] != PAD, IGNORED)  # after the end nothing is said
said = "nine thousand three hundred seven and forty"
hold(f"9347 is said '{said}'", true=" ".join(spell(9347)) == said)
show("sources, (numbers, S)", digits.shape, [9900, 4], digits=0)
show("targets, (numbers, T)", targets.shape, [9900, 8], digits=0)


title("Trained until it is solved")

shuffled = torch.randperm(len(NUMBERS))
seen, held_out = shuffled[500:], shuffled[:500]  # training does not see the 500
translator, losses = trained(400, digits[seen], inputs[seen], targets[seen])
hold("its loss ends below 0.05", true=losses[-1] < 0.05)

# From the source alone, greedily: the likeliest word is said and read again, one at a time.
written = torch.full((500, 1), START)
with torch.no_grad():
    while written.size(1) < 9:
        logits, _ = translator(digits[held_out], written)
        written = torch.cat([written, logits[:, -1:].argmax(-1)], dim=1)
right = (written[:, 1:] == targets[held_out]) | (targets[held_out] == IGNORED)
show("numbers it had never seen, 500: share with every word right", right.all(1).sum() / 500, 1.0)

# Which digit does it look at, of 9347, as it says nine, three, seven and forty?
source, words = digits[9347 - 100 :][:1], inputs[9347 - 100 :][:1]  # a batch of one
weights = translator(source, words)[1][0].detach().numpy()  # (T, S)
show("digit looked at most", weights[[0, 2, 4, 6]].argmax(-1), [0, 1, 3, 2], digits=0)


title("One sequence on both sides: the future leaks")

# In a new model "forty" becomes "sixty". How much does that change what is said after each word?
model = TwoStreams()
other = words.where(words != TOKENS.index("forty"), TOKENS.index("sixty"))
change = (model(source, words)[0] - model(source, other)[0]).abs().amax((0, 2))
show("digits in the encoder", change, [0, 0, 0, 0, 0, 0, 0, 2.37], digits=2)
change = (model(words, words)[0] - model(other, other)[0]).abs().amax((0, 2))
show("words in the encoder", change, [0.04, 0.06, 0.08, 0.08, 0.05, 0.05, 0.06, 2.41], digits=2)

# The decoder's mask is as causal as before, but the encoder reads ahead and tells.
leaky, leaky_losses = trained(250, inputs[seen], inputs[seen], targets[seen])
# The surprises at a number's words add up to -ln of the product of their probabilities, which is
# the probability of the number. Training sees 9400, all equally likely: the best guess gives 1/9400
# to each, so the words of one cost together ln 9400 on average, or more.
floor = len(seen) * math.log(len(seen)) / int((targets[seen] != IGNORED).sum())
show("without the source, no honest loss is below", floor, 1.2953)
hold("the loss ends below 0.05, too good to be true", true=leaky_losses[-1] < 0.05)

# But when it writes, the encoder cannot have read what is not written yet.
surprise = 0.0
with torch.no_grad():
    for t in range(8):
        logits, _ = leaky(inputs[held_out, : t + 1], inputs[held_out, : t + 1])
        surprise += summed_loss(logits[:, -1:], targets[held_out, t : t + 1]).item()
writing, blind = surprise / int((targets[held_out] != IGNORED).sum()), math.log(len(TOKENS))
show("the loss of guessing among all 43 tokens", blind, 3.7612)
hold("the loss while it writes is worse than that", true=writing > blind)


figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
image = left.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
left.set_xticks(range(4), list("9347"))
left.set_yticks(range(8), [*said.split(), "<end>"])
left.set(xlabel="digit that is looked at", ylabel="word that is being said")
left.set_title("Where the decoder looks in the source")
figure.colorbar(image, label="weight")
right.semilogy(losses, label="digits in the encoder, words in the decoder")
right.semilogy(leaky_losses, label="words on both sides, trained")
right.axhline(writing, color="tab:orange", linestyle=":", label="words on both sides, writing")
right.axhline(floor, color="black", linestyle="--", label="least honest loss without the source")
right.set(xlabel="training step", ylabel="loss", ylim=(5e-6, 1e4))
right.set_title("Solved, and too good to be true")
right.legend(loc="upper right")
keep(figure, __file__)
