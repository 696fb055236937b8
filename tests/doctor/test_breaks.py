"""A program broken on purpose: the first check to fail is the one that names what was done.

A break is a change of the program's source, in the place where a person would make it.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType

import pytest

from minigpt.data import batches
from minigpt.doctor.examination import examine
from minigpt.doctor.finding import Subject
from minigpt.model import attention, block, gpt, kv_cache, positions, query_key_norm, token_step
from minigpt.training import loss

ATTENTION, BLOCK = attention.CausalSelfAttention, block.Block
TOKEN_STEP = token_step.TokenStep
GPT, CACHE = gpt.GPT, kv_cache.KVCache


@dataclass(frozen=True)
class Edit:
    """In a function of a module or class, other text in place of some."""

    where: ModuleType | type
    function: str
    old: str
    new: str

    def make(self, patch: pytest.MonkeyPatch) -> None:
        function = getattr(self.where, self.function)
        assert isinstance(function, FunctionType)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self.function} has no {self.old!r}, or several"
        found: dict[str, object] = {}
        exec(source.replace(self.old, self.new), function.__globals__, found)  # noqa: S102
        patch.setattr(self.where, self.function, found[self.function])
        for name, module in list(sys.modules.items()):  # whoever has imported it
            if name.startswith("minigpt.") and getattr(module, self.function, None) is function:
                patch.setattr(module, self.function, found[self.function])


def readable(old: str, new: str) -> tuple[Edit, ...]:
    """A change of the readable attention, which then is the fast one too."""
    fast = (
        "return readable_attention(q, k, v, mask, causal=causal, dropout=dropout)[0]\n    if causal"
    )
    return (
        Edit(attention, "readable_attention", old, new),
        Edit(attention, "fast_attention", "if causal", fast),
    )


def triangle(new: str) -> tuple[Edit, ...]:
    """Another triangle in all places."""
    return (
        Edit(attention, "_checked_mask", "tril(S - T)", new),
        Edit(attention, "fast_attention", "if causal", "if not causal"),
    )


#: By what was done: the edits, the check that has to fail first, and a part of what it then says.
BREAKS: dict[str, tuple[tuple[Edit, ...], str, str]] = {
    "mask flipped": (triangle("triu(S - T)"), "rows", "upside down"),
    "mask off by one: blind": (triangle("tril(S - T - 1)"), "rows", "off by one"),
    "mask off by one: sees ahead": (triangle("tril(S - T + 1)"), "rows", "off by one"),
    "boolean mask inverted": (readable("~mask", "mask"), "rows", "inverted"),
    "key not transposed": (readable("@ k.mT", "@ k"), "formula", "not transposed"),
    "scaled twice": (
        readable("math.sqrt(q.size(-1))", "q.size(-1)"), "formula", "scaled twice",
    ),
    "scaled by √C": (
        readable("q.size(-1)", "q.size(1) * q.size(-1)"), "formula", "divided by √C",
    ),
    "softmax over the wrong axis": (
        readable("softmax(-1)", "softmax(-2)"), "formula", "softmax runs over the queries",
    ),
    "padding keys readable": (
        (Edit(attention, "attention_mask", "mask & real[:, None, :]", "mask[None]"),),
        "padding", "padding keys are readable",
    ),
    "only padding queries masked": (
        (Edit(attention, "attention_mask", "real[:, None, :]", "real[:, S - T :, None]"),),
        "padding", "only the padding queries are masked",
    ),
    "dropout left on": (
        (Edit(ATTENTION, "forward", "self.dropout if self.training else 0.0", "self.dropout"),),
        "repeat", "",
    ),
    "head untied": (
        (
            Edit(GPT, "_initialise", "residual =",
                 "self.head = nn.Linear(self.config.n_embd, self.vocab_size, bias=False)\n"
                 "    residual ="),
            Edit(GPT, "logits", "self.embedding.weight", "self.head.weight"),
        ),
        "parameters", "the head is not the embedding",
    ),
    "no positions": (
        (Edit(GPT, "hidden", " + self.position(positions)", ""),),
        "order", "no positions reach the model",
    ),
    "output projection missing": (
        (Edit(ATTENTION, "forward", "self.output(y.transpose(1, 2).reshape(B, T, C))",
              "y.transpose(1, 2).reshape(B, T, C)"),),
        "formula", "output projection is missing",
    ),
    "heads viewed without a transpose": (
        (Edit(ATTENTION, "_heads", "part.view(B, T, self.n_head, -1)",
              "part.reshape(B, self.n_head, T, -1).transpose(1, 2)"),),
        "formula", "heads are viewed",
    ),
    "heads merged without a transpose": (
        (Edit(ATTENTION, "forward", "y.transpose(1, 2).reshape", "y.reshape"),),
        "formula", "heads are merged",
    ),
    "dropout of the residual left on": (
        (Edit(BLOCK, "forward", "self.dropout(self.mlp(self.norm_2(x)))",
              "F.dropout(self.mlp(self.norm_2(x)), 0.1)"),),
        "repeat", "",
    ),
    "fast path: mask flipped": (
        (
            Edit(attention, "fast_attention", "is_causal=True", "attn_mask=torch.ones("
                 "q.size(-2), q.size(-2), dtype=torch.bool).triu()"),
        ),
        "causality", "only with the fast attention",
    ),
    "fast path: not scaled": (
        (Edit(attention, "fast_attention", "is_causal=True", "is_causal=True, scale=1.0"),),
        "paths", "",
    ),
    "mask off by one where positions are padded": (
        (Edit(attention, "attention_mask", "keys <= queries", "keys <= queries + 1"),),
        "causality", "only where positions are padded",
    ),
    "mask put on after the softmax": (
        (Edit(attention, "readable_attention",
              "scores = scores.masked_fill(~mask, -math.inf)\n    weights = scores.softmax(-1)",
              "pass\n    weights = scores.softmax(-1) * mask"),),
        "formula", "after the softmax",
    ),
    "hidden scores of 0": (readable("-math.inf", "0.0"), "formula", "scores to 0"),
    "rows of a batch mixed": (
        (Edit(ATTENTION, "forward", "self.output(y", "self.output(y.flip(0)"),),
        "padding", "the rows of a batch are mixed",
    ),
    "dropout left on in the readable attention": (
        (Edit(attention, "readable_attention", "F.dropout(weights, dropout)",
              "F.dropout(weights, 0.1)"),),
        "repeat", "only with the readable attention",
    ),
    "documents not kept apart": (
        (Edit(attention, "attention_mask", "if documents is not None", "if False"),),
        "causality", "only where documents are kept apart",
    ),
    "residual sum missing": (
        (Edit(BLOCK, "forward", "return x + self.dropout(self.mlp(self.norm_2(x)))",
              "return self.dropout(self.mlp(self.norm_2(x)))"),),
        "composition", "the residual sum around the MLP is missing",
    ),
    "no activation": (
        (Edit(block, "activated", 'F.gelu(x, approximate="tanh")', "x"),),
        "composition", "no activation",
    ),
    "embeddings scaled": (
        (Edit(GPT, "hidden", "self.embedding(tokens)", "4 * self.embedding(tokens)"),),
        "composition", "not the sum of token embedding and position",
    ),
    "final norm not used": (
        (Edit(GPT, "hidden", "self.norm(x)", "x"),), "composition", "after the final norm",
    ),
    "head a copy of the embedding": (
        (
            Edit(GPT, "_initialise", "std=residual if adds else 0.02)",
                 "std=residual if adds else 0.02)\n"
                 "            self.copy = self.embedding.weight.detach().clone()"),
            Edit(GPT, "logits", "self.embedding.weight", "self.copy.to(hidden.dtype)"),
        ),
        "parameters", "the head is not the embedding",
    ),
    "logits scaled": (
        (Edit(GPT, "logits", "F.linear(hidden, self.embedding.weight)",
              "F.linear(hidden, self.embedding.weight) / 4"),),
        "parameters", "the embedding's times 0.25",
    ),
    "a part without gradient": (
        (Edit(BLOCK, "forward", "self.mlp(self.norm_2(x))", "self.mlp(self.norm_2(x)).detach()"),),
        "parameters", "no gradient reaches blocks.0.norm_2.weight",
    ),
    "loss shifted once more": (
        (Edit(loss, "summed_loss", "logits = logits.flatten(0, 1)",
              "targets = targets.roll(-1, 1)\n    logits = logits.flatten(0, 1)"),),
        "overfit", "the program's loss is",
    ),
    "targets miscounted": (
        (Edit(batches, "make_batch", "n_targets = int(lengths.sum())", "n_targets = inputs.size"),),
        "targets", "the batch counts",
    ),
    "new tokens masked as the first": (
        (Edit(attention, "_checked_mask", "tril(S - T)", "tril()"),),
        "cache", "does not read all that is cached",
    ),
    "positions not restarted": (
        (Edit(batches, "make_batch", "positions = steps[:-1] - opened",
              "positions = np.broadcast_to(steps[:-1], inputs.shape).copy()"),),
        "targets", "documents and positions",
    ),
    "queries without gradient": (
        (Edit(attention, "fast_attention", "if causal", "q = q.detach()\n    if causal"),),
        "parameters", "qkv.weight (q)",
    ),
    "cached pieces masked from the top left": (
        (Edit(attention, "attention_mask", "keys[S - T :, None]", "keys[:T, None]"),),
        "cache", "",
    ),
    "a step of another activation": (
        (Edit(TOKEN_STEP, "_mlp", "self._config.activation", '"relu"'),),
        "step", "",
    ),
    "queries and keys swapped": (
        (Edit(ATTENTION, "_heads", "q, k, v = (part", "k, q, v = (part"),),
        "formula", "taken apart as k, q, v",
    ),
    "scores three times as large": (
        readable("q / math.sqrt(q.size(-1))", "3 * q / math.sqrt(q.size(-1))"),
        "formula", "multiplied by 1.061, not by 1/√D = 0.3536",
    ),
    "a norm that is not used": (
        (Edit(BLOCK, "forward", "self.mlp(self.norm_2(x))", "self.mlp(x)"),),
        "composition", "the norm of the MLP (norm_2) is not used",
    ),
    "shapes that do not fit": (
        (Edit(BLOCK, "forward", "self.mlp(self.norm_2(x))", "self.mlp(x[:1, :, 1:])"),),
        "repeat", "block.py, line",
    ),
    "cache not advanced": (
        (Edit(CACHE, "advance", "self.length += T", "pass"),), "cache", "not advanced",
    ),
    "positions offset by one in the cache": (
        (Edit(GPT, "hidden", "torch.arange(past, S",
              "torch.arange(past + bool(past), S + bool(past)"),),
        "cache", "positions",
    ),
    "targets not shifted": (
        (Edit(batches, "make_batch", "block[:, 1:].copy()", "block[:, :-1].copy()"),),
        "targets", "not shifted",
    ),
    "rotary: nothing turned": (
        (Edit(ATTENTION, "_heads", "if angles is not None", "if False"),),
        "formula", "queries and keys are not turned by their positions",
    ),
    "rotary: keys not turned": (
        (Edit(ATTENTION, "_heads", "turned(q, angles), turned(k, angles)",
              "turned(q, angles), k"),),
        "formula", "only the queries are turned",
    ),
    "rotary: halves of a head turned together": (
        (Edit(ATTENTION, "_heads", "turned(q, angles), turned(k, angles)",
              "(turned(z.unflatten(-1, (2, -1)).mT.flatten(-2), angles).unflatten(-1, (-1, 2))"
              ".mT.flatten(-2) for z in (q, k))"),),
        "formula", "the one half a head further",
    ),
    "rotary: another base": (
        (Edit(positions, "rotary_angles", "10000 **", "500 **"),), "formula", "",
    ),
    "rotary: positions of the batch not read": (
        (Edit(GPT, "hidden", "angles = rotary_angles(positions",
              "angles = rotary_angles(torch.arange(T)"),),
        "order", "",
    ),
    "rotary: angles not handed on": (
        (Edit(BLOCK, "forward", "self.norm_1(x), mask, cache, attention, angles",
              "self.norm_1(x), mask, cache, attention"),),
        "order", "queries and keys are not turned",
    ),
    "rotary: a table besides": (
        (Edit(GPT, "hidden", "angles = rotary_angles(", "x = x + 1; angles = rotary_angles("),),
        "composition", "not the token embedding alone",
    ),
    "norm of the keys missing": (
        (Edit(ATTENTION, "_heads", "rms_normed(q), rms_normed(k)", "rms_normed(q), k"),),
        "formula", "only the queries are divided",
    ),
    "fast path: not normed": (
        (Edit(query_key_norm.NormedHeads, "forward", "y = x * scale", "y = x * 1"),), "paths", "",
    ),
    "another activation": (
        (Edit(block, "activated", 'cast("Tensor", SquaredReLU.apply(x))', "F.relu(x)"),),
        "composition", "the MLP's activation is relu",
    ),
    "a norm that is not used before zeros": (
        (Edit(BLOCK, "forward", "self.mlp(self.norm_2(x))", "self.mlp(x)"),),
        "composition", "the norm of the MLP (norm_2) is not used",
    ),
}  # fmt: skip


#: The model and batch that a break shows in, where it is not the usual one.
SUBJECTS: dict[str, dict[str, object]] = {
    "positions not restarted": {"layout": "packed", "document_mask": True},
    **{name: {"position": "rotary"} for name in BREAKS if name.startswith("rotary")},
    "norm of the keys missing": {"qk_norm": True},
    "fast path: not normed": {"qk_norm": True, "position": "rotary"},
    "another activation": {"activation": "relu2"},
    "a norm that is not used before zeros": {"residual_init": "zero"},
}


@pytest.mark.parametrize("broken", BREAKS)
def test_the_first_check_to_fail_names_the_cause(
    broken: str, monkeypatch: pytest.MonkeyPatch, make_subject: Callable[..., Subject]
) -> None:
    edits, check, words = BREAKS[broken]
    for edit in edits:
        edit.make(monkeypatch)
    failed = (
        (check, found)
        for check, found in examine(make_subject(**SUBJECTS.get(broken, {})))
        if found.status == "failed"
    )
    first, found = next(failed)
    assert first.name == check
    assert words in found.cause
