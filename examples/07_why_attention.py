"""Rung 7. Why attention: a way of one step from every position to every other.

Before attention, sequences were read by *recurrent networks* (RNN): a memory of a few numbers walks
along the sequence and is renewed at each position from itself and what stands there. What the last
position knows of the first has come through every renewal between; with attention it is looked up
directly. Here both make their last output from 80 positions, neither has learned anything yet, and
we ask how much each position matters to it.

How much it matters is what the *gradient* says: how fast a number at the end, the *loss*, changes
with the numbers put in at a position. Learning goes by it: from what hardly matters to the loss,
hardly anything is learned.
"""

import torch
from matplotlib import pyplot as plt
from page import hold, keep, show, title
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minigpt.config import ModelConfig
from minigpt.model.attention import CausalSelfAttention

POSITIONS = 80


def to_each_position(loss: Tensor, x: Tensor) -> Tensor:
    """The length of the gradient at each position of x, as of an arrow: (T,)."""
    (gradient,) = torch.autograd.grad(loss, x)  # (1, T, C): as many numbers as x has
    return gradient[0].pow(2).sum(dim=-1).sqrt()  # the root of the sum of squares


def share_of_first_half(gradient: Tensor) -> float:
    """Per cent of the whole that the first half of the positions gets."""
    return 100 * float(gradient[: len(gradient) // 2].sum() / gradient.sum())


title("Through a recurrent network")


def through_rnn(T: int) -> tuple[Tensor, Tensor]:
    """The loss, and the gradient from the last of T positions back to each."""
    torch.manual_seed(42)
    rnn = nn.RNN(4, 8, batch_first=True)  # four numbers a position, a memory of eight
    x = torch.randn(1, T, 4, requires_grad=True)  # (B, T, C)
    # tanh squeezes every number into the range from -1 to 1.
    memories, _ = rnn(x)  # (1, T, 8): memory[t] = tanh(x[t] @ W.T + memory[t - 1] @ U.T + biases)
    loss = memories[:, -1].pow(2).mean()  # made from the last position only
    return loss, to_each_position(loss, x)


loss, rnn_gradient = through_rnn(POSITIONS)
show("the loss", loss, 0.116176, digits=6)
show("per cent of the gradient for the first half", share_of_first_half(rnn_gradient), 0, digits=3)

# A step back multiplies the gradient by the table U and by the slope of tanh, which is at most 1.
# Together they make it smaller, for this U, and again at every step: twice as far is not half, but
# roughly the square. (Where U is large and tanh does not flatten, it can grow instead: it
# explodes.)
by_length = [through_rnn(T)[1] for T in (10, 20, 40, 80)]
ratios = [gradient[-1] / gradient[0] for gradient in by_length]
print("the gradient at the last position over that at the first:")
show("of 10, 20, 40, 80", ratios, [3.02e2, 7.81e5, 3.59e9, 3.57e17], digits=2, scientific=True)
factor = (rnn_gradient[0] / rnn_gradient[-1]) ** (1 / (POSITIONS - 1))
show("what a step back leaves of it, on average", factor, 0.60, digits=2)


title("Through attention")

torch.manual_seed(42)
attention = nn.MultiheadAttention(8, 2, batch_first=True)  # eight numbers a position, two heads
x = torch.randn(1, POSITIONS, 8, requires_grad=True)
later = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)  # here True may NOT be read
y, weights = attention(x, x, x, attn_mask=later)  # (1, T, 8), and (1, T, T): the heads' mean
loss = y[:, -1].pow(2).mean()
attention_gradient = to_each_position(loss, x)
show("the loss", loss, 0.004143, digits=6)
share = share_of_first_half(attention_gradient)
show("per cent of the gradient for the first half", share, 42.973, digits=3)
ratio = attention_gradient[-1] / attention_gradient[0]
show("last position over first", ratio, 12.2, digits=1)
# The last position also looks (as the query), which is most of its 12. Without that part (`detach`:
# taken as fixed) the first matters as much: all are one step away, however far they lie.
y_of_fixed, _ = attention(x.detach(), x, x, attn_mask=later)
as_read = to_each_position(y_of_fixed[:, -1].pow(2).mean(), x)
show("last over first, only as positions that are read", as_read[-1] / as_read[0], 0.96, digits=2)
# Its price: attention keeps all positions and looks at each, where a memory keeps eight numbers.
last_weights = weights[0, -1].detach()  # (T,)
extremes = [last_weights.min(), last_weights.max()]
show("the last token's smallest and largest weight", extremes, [0.007, 0.032], digits=3)


title("The program's own")

own = CausalSelfAttention(ModelConfig(n_embd=8, n_head=2), layer=0)
# The same parameters, which both hold in the same order.
vector_to_parameters(parameters_to_vector(attention.parameters()), own.parameters())
own_gradient = to_each_position(own(x)[:, -1].pow(2).mean(), x)
hold("the same gradient", true=torch.allclose(own_gradient, attention_gradient, rtol=1e-4))


figure, axes = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
(both, lengths), (read, cumulative) = axes
positions = range(1, POSITIONS + 1)
for name, gradient, colour in [
    ("attention", attention_gradient, "tab:blue"),
    ("RNN", rnn_gradient, "tab:red"),
]:
    both.semilogy(positions, gradient.numpy(), color=colour, label=name)
    share_so_far = 100 * gradient.cumsum(0) / gradient.sum()
    cumulative.plot(positions, share_so_far.numpy(), color=colour, label=name)
both.set(title="how much a position matters to the last output", xlabel="position")
both.set(ylabel="length of the gradient")
for gradient in by_length:
    lengths.semilogy(positions[: len(gradient)], gradient.numpy(), label=f"{len(gradient)} long")
lengths.set(title="the RNN, read to the end at four lengths", xlabel="position")
lengths.set(ylabel="length of the gradient")
read.bar(positions, last_weights.numpy(), color="tab:blue", width=0.8)
read.axhline(1 / POSITIONS, color="black", linestyle="--", label="if all were alike")
read.set(title="where the last token looks", xlabel="position", ylabel="weight, mean of both heads")
cumulative.axvline(POSITIONS / 2, color="gray", linestyle="--", label="half of the positions")
cumulative.set(title="how the gradient is shared out", xlabel="the first so many positions")
cumulative.set(ylabel="their share, per cent")
for panel in axes.flat:
    panel.legend()
keep(figure, __file__)
