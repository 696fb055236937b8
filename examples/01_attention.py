"""Rung 1. Attention without anything to learn: every word becomes a mixture of all words.

A sentence of six words, each word three numbers (an *embedding*; made up here, learned later on).
Words that mean similar things have similar numbers. Attention gives each word a new vector that
has heard of the others: a weighted mean of all six, with the larger weights on the similar ones.

How similar two words are is their *dot product*: multiply the numbers pairwise and add up. (It
grows with the size of the vectors, too: "journey" and "starts" have the largest numbers on the
whole, so "one" reads both more than itself.)
"""

import math

import torch
from matplotlib import pyplot as plt
from page import hold, keep, show, title

from minigpt.model.attention import readable_attention

WORDS = ["Your", "journey", "starts", "with", "one", "step"]
x = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)  # (T, C): six positions, three numbers each


title("One word, with loops")

# How similar is "journey" (word 1, counting from 0) to each word? Three products, added up.
scores = [sum(float(a) * float(b) for a, b in zip(x[1], word, strict=True)) for word in x]
show("scores of 'journey'", scores, [0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865])

# Softmax makes shares of them: positive, larger for larger scores, 1 in all.
exponentials = [math.exp(score) for score in scores]
weights_of_journey = [e / sum(exponentials) for e in exponentials]
show("its weights", weights_of_journey, [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581])
show("which add up to", sum(weights_of_journey), 1.0)

# The new vector of "journey": each word times its weight, added up.
context = [
    sum(w * float(word[i]) for w, word in zip(weights_of_journey, x, strict=True)) for i in range(3)
]
show("the new vector of 'journey'", context, [0.4419, 0.6515, 0.5683])


title("All words at once, with matrices")

# `a @ b` is the dot product of each row of a with each column of b, and `x.T` is x with rows and
# columns exchanged: x @ x.T has every word's dot product with every word; row t is word t's.
weights = (x @ x.T).softmax(dim=-1)
y = weights @ x
show(
    "the weights, a row a word",
    weights,
    [
        [0.2098, 0.2006, 0.1981, 0.1242, 0.1220, 0.1452],
        [0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581],
        [0.1390, 0.2369, 0.2326, 0.1242, 0.1108, 0.1565],
        [0.1435, 0.2074, 0.2046, 0.1462, 0.1263, 0.1720],
        [0.1526, 0.1958, 0.1975, 0.1367, 0.1879, 0.1295],
        [0.1385, 0.2184, 0.2128, 0.1420, 0.0988, 0.1896],
    ],
)
show(
    "the new vectors",
    y,
    [
        [0.4421, 0.5931, 0.5790],
        [0.4419, 0.6515, 0.5683],
        [0.4431, 0.6496, 0.5671],
        [0.4304, 0.6298, 0.5510],
        [0.4671, 0.5910, 0.5266],
        [0.4177, 0.6503, 0.5645],
    ],
)
hold("the loops gave the same for 'journey'", true=torch.allclose(y[1], torch.tensor(context)))


title("The program's own")

# The same as the model uses it, which divides the scores by the root of the width (see rung 2);
# multiplying by it first undoes that. `view` gives x two more axes, of one sentence and one head
# (an attention beside others: rung 4).
q = (x * math.sqrt(3)).view(1, 1, 6, 3)
theirs, their_weights = readable_attention(q, x.view(1, 1, 6, 3), x.view(1, 1, 6, 3))
hold("the same weights", true=torch.allclose(their_weights[0, 0], weights))
hold("the same vectors", true=torch.allclose(theirs[0, 0], y))


figure, axes = plt.subplots(figsize=(5, 4.2), layout="constrained")
image = axes.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=0.4)
axes.set_xticks(range(6), WORDS)
axes.set_yticks(range(6), WORDS)
axes.set(xlabel="word that is read", ylabel="word that reads", title="who listens to whom")
for t in range(6):
    for s in range(6):
        axes.text(s, t, f"{weights[t, s]:.2f}", ha="center", va="center", fontsize=8)
figure.colorbar(image, label="weight")
keep(figure, __file__)
