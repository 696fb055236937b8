"""Rung 6. The library's attention: what torch's two ready-made ones promise, tried out.

torch has a function, `F.scaled_dot_product_attention` (here SDPA), which mixes values by weights,
and a module, `nn.MultiheadAttention` (here MHA), with the projections around it. Both are fast, and
each has ways of its own with masks. What is shown was found on torch 2.13 on a CPU; where another
version does otherwise, the page stops and says so.

To see what is read, all scores here are equal, and the values are the rows of the identity matrix:
then the output *is* the weights, and a query that may read n keys has 1/n at each of them.
"""

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from matplotlib import pyplot as plt
from page import hold, keep, show, title
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minigpt.config import ModelConfig
from minigpt.model.attention import CausalSelfAttention, attention_mask, fast_attention

Attend = Callable[..., Tensor]
same = partial(torch.allclose, atol=1e-6)  # equal but for rounding

torch.manual_seed(0)
MHA = nn.MultiheadAttention(4, 2, batch_first=True)  # batch_first: (B, T, C), else it is (T, B, C)
with torch.no_grad():  # queries and keys 0, values as they are
    MHA.in_proj_weight.copy_(torch.cat([torch.zeros(8, 4), torch.eye(4)]))
    MHA.out_proj.weight.copy_(torch.eye(4))


def sdpa(mask: Tensor | None = None, T: int = 4, S: int = 4, **options: Any) -> Tensor:
    """The weights by which SDPA's T queries read S keys, (T, S)."""
    q, k, v = torch.zeros(1, 1, T, S), torch.zeros(1, 1, S, S), torch.eye(S).view(1, 1, S, S)
    return F.scaled_dot_product_attention(q, k, v, mask, **options)[0, 0]


def mha(mask: Tensor | None = None, *, learning: bool = True, **options: Any) -> Tensor:
    """The same of MHA's four positions; a model in use is not `learning`, and keeps no gradient."""
    x = torch.eye(4).view(1, 4, 4)
    MHA.train(learning)  # train(False) is eval()
    with torch.set_grad_enabled(learning):
        return MHA(x, x, x, attn_mask=mask, **options)[0][0].detach()


def even(may_read: Tensor) -> Tensor:
    """The weights to expect, from the table of who may read whom."""
    return may_read / may_read.sum(dim=-1, keepdim=True)


title("The scale")

q, k, v = torch.randn(3, 1, 2, 5, 8).unbind()  # (B, H, T, D) each
plain = F.scaled_dot_product_attention(q, k, v)
hold("SDPA divides by √D", true=same(plain, (q @ k.mT / math.sqrt(8)).softmax(dim=-1) @ v))
unscaled = F.scaled_dot_product_attention(q, k, v, scale=1.0)
hold("with scale=1 it does not", true=same(unscaled, (q @ k.mT).softmax(dim=-1) @ v))


title("What True means in a mask")

mask = torch.tensor([True, False, True, True]).expand(4, 4)  # False at the second key
show("given one mask, SDPA's weights", sdpa(mask)[0], [0.33, 0, 0.33, 0.33], digits=2)
show("and MHA's", mha(mask)[0], [0, 1, 0, 0], digits=2)
hold("SDPA's mask: True may be read", true=same(sdpa(mask), even(mask)))
hold("MHA's attn_mask: True may NOT be read", true=same(mha(mask), even(~mask)))
# Short sequences of a batch are filled up, with *padding*, which nobody is to read.
padded = mha(key_padding_mask=mask[:1])  # (B, S): one row for each sequence
hold("MHA's key_padding_mask: True may NOT be read either", true=same(padded, even(~mask)))


title("Causality with fewer queries than keys")

# A text is written token by token. Keys and values of the earlier ones are kept (a *KV cache*), and
# only new positions ask: T queries, the last of S positions. But SDPA's is_causal takes them for
# the first (it is aligned to the top left). A cache needs the bottom right: a mask says that.
of_causal = [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0]]
show("2 queries, 5 keys, is_causal", sdpa(T=2, S=5, is_causal=True), of_causal, digits=2)
last_rows = torch.ones(2, 5, dtype=torch.bool).tril(5 - 2)
needed = [[0.25, 0.25, 0.25, 0.25, 0], [0.2, 0.2, 0.2, 0.2, 0.2]]
show("what the last 2 of 5 need", sdpa(last_rows, T=2, S=5), needed, digits=2)


title("A mask and is_causal together")

causal = torch.ones(4, 4, dtype=torch.bool).tril()  # True: the position itself, or an earlier one


def attempt(who: str, becomes: str, attend: Attend, given: Tensor | None, **options: Any) -> None:
    """Hold what becomes of it; a warning would stop the page, but there is none."""
    rules = {"both": mask & causal, "the mask": mask, "causality": causal, "nothing": mask | True}
    try:
        with warnings.catch_warnings(action="error"):
            weights = attend(given, is_causal=True, **options)
        seen = next(f"obeys {what}" for what, rule in rules.items() if same(weights, even(rule)))
    except RuntimeError:
        seen = "refuses"
    hold(f"{who} {becomes}", true=seen == becomes)


# SDPA has several programs for its one formula, the *backends*; a CPU has these two.
with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    attempt("SDPA's FLASH_ATTENTION", "obeys both", sdpa, mask)
with sdpa_kernel(SDPBackend.MATH):
    attempt("SDPA's MATH", "refuses", sdpa, mask)
attempt("SDPA as it chooses", "obeys both", sdpa, mask)

# MHA takes is_causal for a promise that the mask is the causal one, and obeys one of them at most:
# which depends on whether it is to return its weights as well (it is unless told otherwise), on
# whether there is a mask for padding, and on whether it is in use: in eval() and without gradients
# (no_grad).
unpadded = {"key_padding_mask": torch.zeros(1, 4, dtype=torch.bool)}  # (B, S): nothing is padding
fast = {"need_weights": False}
attempt("MHA", "obeys the mask", mha, ~mask)
attempt("MHA with need_weights=False", "obeys causality", mha, ~mask, **fast)
with_padding = "MHA with need_weights=False and a key_padding_mask"
attempt(with_padding, "obeys the mask", mha, ~mask, **fast, **unpadded)
in_use = "MHA with need_weights=False, in use,"
attempt(in_use, "obeys the mask", mha, ~mask, **fast, learning=False)
attempt("MHA without a mask", "refuses", mha, None)
# In use it then reads the future.
attempt("MHA without a mask, in use,", "obeys nothing", mha, None, learning=False)
refused = True
with suppress(ValueError):
    fast_attention(q, k, v, last_rows, causal=True)
    refused = False
hold("the program's own attention refuses both together", true=refused)


title("A query that may read nothing")

# The softmax of nothing: every score minus infinity, and 0 / 0, which is NaN (not a number).
nothing = mask & False
nan = [math.nan] * 4
show("plain softmax", torch.full((4,), -math.inf).softmax(dim=-1), nan, digits=2)
for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
    with sdpa_kernel(backend):
        show(f"SDPA's {backend.name}", sdpa(nothing)[0], [0, 0, 0, 0], digits=2)
show("MHA", mha(~nothing)[0], nan, digits=2)
show("MHA with need_weights=False", mha(~nothing, **fast)[0], [0, 0, 0, 0], digits=2)
used = mha(~nothing, **fast, learning=False)
show("MHA with need_weights=False, in use", used[0], nan, digits=2)
padding = attention_mask(4, 4, real=torch.zeros(1, 4, dtype=torch.bool))  # nothing is real
hold("in the program each may read itself", true=same(sdpa(padding), torch.eye(4)))


title("Dropout")

# *Dropout*: while a model learns, a share of the weights is made 0 by lot, and the others larger in
# proportion. Modules leave it off after eval(). SDPA is no module: it does what it is told.
hold("SDPA, told 0.5, drops", true=not same(sdpa(dropout_p=0.5), sdpa()))
MHA.dropout = 0.5
hold("MHA drops while it learns", true=not same(mha(), sdpa()))
hold("and not in use", true=same(mha(learning=False), sdpa()))
MHA.dropout = 0.0


title("The program's own")

x = torch.randn(2, 5, 8)  # (B, T, C)
lower = torch.ones(5, 5, dtype=torch.bool).tril()
last = q[:, :, -2:]  # as behind a cache
theirs = F.scaled_dot_product_attention(last, k, v, last_rows)
hold(
    "fast_attention is SDPA, with the mask needed",
    true=same(fast_attention(last, k, v, causal=True), theirs),
)
own = CausalSelfAttention(ModelConfig(n_embd=8, n_head=2, dropout=0.5), layer=0).eval()
module = nn.MultiheadAttention(8, 2, batch_first=True)
# The same parameters, which both hold in the same order.
vector_to_parameters(parameters_to_vector(own.parameters()), module.parameters())
hold("CausalSelfAttention is MHA", true=same(own(x), module(x, x, x, attn_mask=~lower)[0]))


panels = {
    "SDPA, mask\n(True: may be read)": sdpa(mask),
    "MHA, the same mask\n(True: may not)": mha(mask),
    "SDPA, is_causal,\n2 queries for 5 keys": sdpa(T=2, S=5, is_causal=True),
    "what the last 2\nof 5 positions need": sdpa(last_rows, T=2, S=5),
    "SDPA, mask and is_causal:\nboth": sdpa(mask, is_causal=True),
    "MHA, mask and is_causal:\nthe mask": mha(~mask, is_causal=True),
    "MHA, need_weights=False:\ncausality": mha(~mask, is_causal=True, **fast),
    "MHA in use, is_causal alone:\nnothing": mha(learning=False, is_causal=True),
}
figure, axes = plt.subplots(2, 4, figsize=(11.5, 6), layout="constrained")
for axis, (what, weights) in zip(axes.flat, panels.items(), strict=True):
    axis.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1.4)
    axis.set_title(what, fontsize=11)
    T, S = weights.shape
    axis.set(xticks=range(S), yticks=range(T), xlabel="key", ylabel="query")
    for (t, s), weight in np.ndenumerate(weights.numpy()):
        axis.text(s, t, f"{weight:.2f}", ha="center", va="center", fontsize=9)
keep(figure, __file__)
