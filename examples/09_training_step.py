"""Rung 9. One step of training: how a model gets better at saying what comes next.

The *loss* says how wrong the model is: for each token that it has to predict (a *target*), how
surprised it is by the right one, -ln of the probability that it gave to it; the mean over all. The
*gradient* says of each weight how fast the loss would grow if the weight grew. A *step* moves all
weights a little the other way. Here loss and step are made by hand, the gradient by PyTorch, and
compared with the program's own; then a small model learns two rows by heart.
"""

import copy
import math
from contextlib import suppress
from typing import cast

import numpy as np
import torch
from matplotlib import pyplot as plt
from page import hold, keep, show, title
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters
from torch.nn.utils.rnn import pad_sequence

from minigpt.config import ModelConfig, OptimConfig
from minigpt.data.batches import IGNORED, Batch, make_batch, spans
from minigpt.data.token_store import TokenStore
from minigpt.model.gpt import GPT
from minigpt.training.loss import summed_loss
from minigpt.training.optimizer import build_optimizer

WORDS = ["<end>", "cats", "sleep", "all", "day", "dogs", "run", "in", "circles"]
V = len(WORDS)  # how many tokens there are
LR = 0.01  # the learning rate: how far a weight moves in one step
OPTIM = OptimConfig(lr=LR)
torch.manual_seed(0)


def ids(text: str) -> list[int]:
    """The number of each word."""
    return [WORDS.index(word) for word in text.split()]


def stream_of(*documents: str) -> TokenStore:
    """The program's stream of tokens: <end>, document, <end>, document, ..., <end>."""
    tokens = np.array(ids(f"<end> {' <end> '.join(documents)} <end>"))
    return TokenStore(tokens, np.flatnonzero(tokens == 0), n_bytes=len("".join(documents)))


def new_model() -> GPT:
    """In double precision, so that rounding does not hide whether two ways are the same."""
    return GPT(ModelConfig(n_layer=2, n_head=2, n_embd=16, block_size=8), V).double()


title("Shift by one, mask the padding")

# The target of each token is the one that follows it. The shorter row is filled up: what is read
# there does not matter (0), and what follows there is not counted (-100).
documents = "cats sleep all day", "dogs run"
rows = [torch.tensor(ids(f"<end> {document} <end>")) for document in documents]
inputs = pad_sequence([row[:-1] for row in rows], batch_first=True)  # (B, T)
targets = pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=IGNORED)
real = targets != IGNORED
show("inputs", inputs, [[0, 1, 2, 3, 4], [0, 5, 6, 0, 0]], digits=0)
show("targets", targets, [[1, 2, 3, 4, 0], [5, 6, 0, -100, -100]], digits=0)

stream = stream_of(*documents)
batch = make_batch(stream, spans(stream, block_size=8, layout="padded"))
hold("the program's batch has the same inputs", true=inputs.equal(batch.inputs))
hold("and the same targets", true=targets.equal(batch.targets))


title("The loss")


def loss_by_hand(model: GPT) -> Tensor:
    """The surprises at all targets, added up and divided by their number."""
    chances = model(inputs, real=real).softmax(-1)  # (B, T, V)
    # gather picks each target's chance; -100 is no index, so clamp makes it 0, and [real] leaves it
    # out. [..., None] adds the axis that gather wants, [..., 0] takes it off.
    right = chances.gather(-1, targets.clamp(min=0)[..., None])[..., 0]  # (B, T), of the targets
    return -right[real].log().sum() / real.sum()


model = new_model()
# A new model knows nothing: it gives each of the V tokens about 1/V, and -ln(1/V) is ln V.
show("ln V, of 9 tokens", math.log(V), 2.2, digits=1)
show("the loss of a new model", loss_by_hand(model), 2.2, digits=1)


title("The step")


def gradient(model: GPT) -> Tensor:
    """Of all weights as one long list; `backward` left it with each weight."""
    return torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])


def step_of_program(model: GPT, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """The program's own loss, clipping and step; the loss before it."""
    optimizer.zero_grad()
    logits = model(batch.inputs, real=batch.real)
    loss = summed_loss(logits, batch.targets) / batch.step_targets
    loss.backward()
    clip_grad_norm_(model.parameters(), OPTIM.grad_clip, error_if_nonfinite=True)
    optimizer.step()
    return loss.item()


theirs = copy.deepcopy(model)
optimizer = build_optimizer(theirs, OPTIM, fused=True)
w = parameters_to_vector(model.parameters()).detach()  # all weights as one long list
mean, square = torch.zeros_like(w), torch.zeros_like(w)
# The matrices of the linear maps are also pulled a little towards 0, which is weight decay.
linear = [name.startswith("blocks") and p.dim() == 2 for name, p in model.named_parameters()]
sizes = [p.numel() for p in model.parameters()]
decay = OPTIM.weight_decay * torch.tensor(linear).repeat_interleave(torch.tensor(sizes))

for t, expected in enumerate(([2.239, 2.092], [2.071, 1.175], [1.951, 1.447]), start=1):
    model.zero_grad()
    loss = loss_by_hand(model)
    loss.backward()  # PyTorch works out the gradient
    # A steep place must not throw the weights far away: a gradient longer than 1 (its length, as of
    # an arrow, is the root of the sum of squares) is shortened to that, which is *clipping*.
    length = clip_grad_norm_(model.parameters(), OPTIM.grad_clip, error_if_nonfinite=True)
    seen = [loss.item(), length.item()]  # the length before that
    show(f"step {t}: loss, length of the gradient", seen, expected, digits=3)
    # AdamW: the running mean of the gradients says where to; their running size is divided out, so
    # that each weight moves by about LR. Both begin at 0, which 1 - beta^t makes up for.
    g = gradient(model)
    mean = OPTIM.beta1 * mean + (1 - OPTIM.beta1) * g
    square = OPTIM.beta2 * square + (1 - OPTIM.beta2) * g**2
    size = (square / (1 - OPTIM.beta2**t)).sqrt() + 1e-8
    w = w * (1 - LR * decay) - LR * mean / (1 - OPTIM.beta1**t) / size
    vector_to_parameters(w, model.parameters())
    same = [math.isclose(step_of_program(theirs, optimizer, batch), loss.item())]
    same += [g.allclose(gradient(theirs)), w.allclose(parameters_to_vector(theirs.parameters()))]
    hold("the program has the same loss, gradient and new weights", true=all(same))


title("Two rows by heart")


def learn(batch: Batch) -> tuple[GPT, list[float]]:
    """A new model after 200 steps on one batch, and the loss at each."""
    model = new_model()
    optimizer = build_optimizer(model, OPTIM, fused=True)
    return model, [step_of_program(model, optimizer, batch) for _ in range(200)]


stream = stream_of("cats sleep all day", "dogs run in circles")
batch = make_batch(stream, np.array([[1, 4], [6, 4]]))  # rows: where it begins, how many targets
show("two rows of four tokens", batch.inputs, [[1, 2, 3, 4], [5, 6, 7, 8]], digits=0)
model, losses = learn(batch)
hold("the loss ends below 0.001", true=losses[-1] < 0.001)
# If its likeliest token is right everywhere, it recites the row: what it says is what it would have
# been given next.
likeliest = model(batch.inputs).argmax(-1)  # (B, T)
hold("it recites both rows", true=likeliest.equal(batch.targets))

# Two rows that begin with the same token cannot be told apart there: at best each of the two words
# that may follow gets 1/2, a surprise of ln 2. That is one target of each four.
batch = make_batch(stream, np.array([[0, 4], [5, 4]]))
show("two that begin alike", batch.inputs, [[0, 1, 2, 3], [0, 5, 6, 7]], digits=0)
model, losses_alike = learn(batch)
floor = math.log(2) / 4
show("no loss can be below", floor, 0.1733)
hold("it ends there, less than 0.001 above", true=floor < losses_alike[-1] < floor + 0.001)
after_end = model(torch.tensor([[0]])).softmax(-1)[0, 0]
show("chances of 'cats' and 'dogs'", after_end[[1, 5]], [0.5, 0.5], digits=1)
likeliest = model(batch.inputs).argmax(-1)
hold("after 'cats' or 'dogs' it knows", true=likeliest[:, 1:].equal(batch.targets[:, 1:]))


title("A gradient that is not a number")

# NaN, "not a number", is what torch makes of 0/0 (Python refuses it). It spoils whatever it is
# added to or multiplied with.
ruined = new_model()
loss_by_hand(ruined).backward()
cast("Tensor", ruined.embedding.weight.grad)[0, 0] = math.nan
refused = True
with suppress(RuntimeError):
    clip_grad_norm_(ruined.parameters(), OPTIM.grad_clip, error_if_nonfinite=True)
    refused = False
hold("with error_if_nonfinite=True there is an error, before the step", true=refused)
clip_grad_norm_(ruined.parameters(), OPTIM.grad_clip)  # divides everything by a length of NaN
build_optimizer(ruined, OPTIM, fused=True).step()
w = parameters_to_vector(ruined.parameters())
show("weights", len(w), 6864, digits=0)
show("without it, the share of them that one NaN turns into NaN", w.isnan().double().mean(), 1.0)


figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
axes[0].plot(losses, label="rows that begin differently")
axes[0].plot(losses_alike, label="rows that begin alike")
axes[0].axhline(math.log(V), color="gray", linestyle="--", label="ln V: all tokens alike")
axes[0].axhline(floor, color="black", linestyle=":", label="ln 2 / 4: the first word unknown")
axes[0].set(xlabel="step", ylabel="loss", ylim=(0, 2.4), title="Two rows by heart")
axes[0].legend(loc="center right", fontsize=8)
for part, when, read in ((axes[1], "before", new_model()), (axes[2], "after", model)):
    chances = read(batch.inputs[:1]).softmax(-1)[0].detach().numpy()  # (T, V)
    part.imshow(chances, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    part.set_xticks(range(V), WORDS, rotation=60)
    part.set_yticks(range(4), ["<end>", "cats", "sleep", "all"])
    part.set(xlabel="what comes next", ylabel="last word read", title=f"What it expects {when}")
figure.colorbar(axes[2].images[0], label="probability")
keep(figure, __file__)
