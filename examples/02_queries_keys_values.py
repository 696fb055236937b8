"""Rung 2. Queries, keys and values: attention with something to learn.

In rung 1 a word was looked for, found and read by the same three numbers. Now each word makes three
vectors of its own: a *query* (what it looks for), a *key* (what it can be found by) and a *value*
(what it tells whoever reads it). A score is the dot product of the reader's query with the other's
key, and what is mixed are the values. Queries, keys and values come from tables of numbers that
start at random; *learning* means changing these, little by little.

The scores are divided by √D, where D is how many numbers a query has. The second half shows why.
"""

import math

import torch
from matplotlib import pyplot as plt
from page import hold, keep, show, title
from torch import Tensor, nn

from minigpt.model.attention import readable_attention

title("From tokens to queries, keys and values")

# A *token* is a word, or a piece of one, and stands in the program as a number. An *embedding* is
# a table with a row of numbers for each token: here ten tokens, four numbers each, random at first.
# (With a *seed*, here 42, random numbers are the same in every run.)
torch.manual_seed(42)
embedding = nn.Embedding(10, 4)
x = embedding(torch.tensor([0, 2, 4]))  # (T, C): rows 0, 2 and 4 of the table
show(
    "three tokens, a row each",
    x,
    [
        [1.9269, 1.4873, 0.9007, -2.1055],
        [-0.7521, 1.6487, -0.3925, -1.4036],
        [1.6423, -0.1596, -0.4974, 0.4396],
    ],
)

# A *linear* layer makes new vectors: each new number is the dot product of the old vector with a
# row of the layer's table. (A *bias*, a number added at the end, is left out here.)
make_query = nn.Linear(4, 4, bias=False)
make_key = nn.Linear(4, 4, bias=False)
make_value = nn.Linear(4, 4, bias=False)
q, k, v = make_query(x), make_key(x), make_value(x)  # (T, D) each
hold("a layer is a product with its table", true=torch.allclose(q, x @ make_query.weight.T))

scores = q @ k.T / math.sqrt(4)  # (T, T): row t has what token t thinks of every token
weights = scores.softmax(dim=-1)
show(
    "the weights, a row a reader",
    weights,
    [[0.2454, 0.2811, 0.4735], [0.2757, 0.3338, 0.3905], [0.2493, 0.3921, 0.3586]],
)
show(
    "the new vectors, mixed from the values",
    weights @ v,
    [
        [-0.0709, 0.7985, 0.7110, 0.0600],
        [0.0081, 0.8420, 0.7085, 0.1718],
        [0.0566, 0.8411, 0.6556, 0.2383],
    ],
)

# *Causal*: a word may only read what came before it, and itself. A model that is to guess the next
# word must not see it. Later ones get the score minus infinity, which the softmax makes 0 (rung 3).
later = torch.ones(3, 3, dtype=torch.bool).triu(1)  # True to the right of the diagonal
causal_weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
show(
    "the causal weights",
    causal_weights,
    [[1.0, 0.0, 0.0], [0.4524, 0.5476, 0.0], [0.2493, 0.3921, 0.3586]],
)

# The program's own wants two more axes: (B, H, T, D), here one sequence and one head (rung 4).
q4, k4, v4 = q.view(1, 1, 3, 4), k.view(1, 1, 3, 4), v.view(1, 1, 3, 4)
y, their_weights = readable_attention(q4, k4, v4)
hold("the program has the same weights", true=torch.allclose(their_weights[0, 0], weights))
hold("and the same vectors", true=torch.allclose(y[0, 0], weights @ v))
_, their_weights = readable_attention(q4, k4, v4, causal=True)
hold("and causal ones", true=torch.allclose(their_weights[0, 0], causal_weights))


title("Why divide by √D: wider vectors have larger scores")

# A dot product adds up D products, some positive, some negative. The *spread* (standard deviation)
# says how far numbers typically lie from their mean. Of the product of two independent random
# numbers, each of mean 0 and spread 1, it is 1; for sums the squares of the spreads add up, so of D
# such products it is √D.
WIDTHS = [4, 16, 64, 256]


def random_scores(D: int) -> Tensor:
    """q·k of 5,000 random queries with 8 random keys each, (5000, 8)."""
    queries, keys = torch.randn(5_000, D, 1), torch.randn(5_000, 8, D)
    return (keys @ queries).squeeze(-1)


torch.manual_seed(0)
drawn = {D: random_scores(D) for D in WIDTHS}
show("√D at D = 4, 16, 64, 256", [math.sqrt(D) for D in WIDTHS], [2, 4, 8, 16], digits=0)
spread = [float(drawn[D].std()) for D in WIDTHS]
show("the spread of q·k", spread, [2.0, 4.0, 8.0, 16.0], digits=1)
spread = [float((drawn[D] / math.sqrt(D)).std()) for D in WIDTHS]
show("the spread of q·k / √D", spread, [1.0, 1.0, 1.0, 1.0], digits=1)


title("What large scores do to the softmax")

# Softmax turns differences of scores into ratios of weights, so large scores leave one key nearly
# everything: the mixture of eight is hardly a mixture any more. Ranked: the largest weight first.
undivided = {D: drawn[D].softmax(-1).sort(descending=True).values for D in WIDTHS}
divided = {D: (drawn[D] / math.sqrt(D)).softmax(-1).sort(descending=True).values for D in WIDTHS}
show(
    "the largest of 8 weights on average, undivided",
    [float(undivided[D][:, 0].mean()) for D in WIDTHS],
    [0.53, 0.75, 0.87, 0.94],
    digits=2,
)
show(
    "the largest of 8 weights on average, divided",
    [float(divided[D][:, 0].mean()) for D in WIDTHS],
    [0.35, 0.35, 0.36, 0.36],
    digits=2,
)


# It learns badly, too. Learning asks what a small change of a score would do to the weights. A
# weight w moves by w (1 - w) times the change of its own score, as the softmax gets it: almost
# nothing when w is near 1. For half of the queries the largest weight moves less with its score
# than is printed here: undivided, at D = 256, hardly at all.
def moves(ranked: Tensor) -> float:
    """How much the largest weight moves with its score: the median over the queries."""
    return float((ranked[:, 0] * (1 - ranked[:, 0])).median())


show(
    "how much it moves, the median, undivided",
    [moves(undivided[D]) for D in WIDTHS],
    [0.2265, 0.1734, 0.0359, 0.0007],
)
show(
    "how much it moves, the median, divided",
    [moves(divided[D]) for D in WIDTHS],
    [0.2112, 0.2178, 0.2205, 0.2218],
)


figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
edges = [-40 + i for i in range(81)]
for D in WIDTHS:
    left.hist(drawn[D].flatten().numpy(), edges, density=True, histtype="step", label=f"D = {D}")
    middle.plot(range(1, 9), undivided[D].mean(0).numpy(), "o-", label=f"D = {D}")
    right.plot(range(1, 9), divided[D].mean(0).numpy(), "o-", label=f"D = {D}")
left.set(xlabel="score q·k", ylabel="how often", title="wider vectors, larger scores")
middle.set(title="undivided: the best key takes all")
right.set(title="divided by √D: still a mixture")
for axes in (middle, right):
    axes.set(xlabel="key, the best first", ylabel="weight on average", ylim=(0, 1))
for axes in (left, middle, right):
    axes.legend()
keep(figure, __file__)
