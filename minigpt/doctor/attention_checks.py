"""What has to hold of the model's attention: the laws, on one model, with what breaks them named.

All in float64 on the CPU, so that what should be equal is equal to many digits.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from minigpt.doctor.finding import (
    EXACT,
    Finding,
    Subject,
    blocks,
    difference,
    hooked,
    judged,
    skipped,
)
from minigpt.model.gpt import GPT

#: Both ways to attention: the argument that chooses them.
NewAttention = Callable[[], list[Tensor] | None]
_PATHS: dict[str, NewAttention] = {"fast": lambda: None, "readable": list}

#: What single precision may differ by between two orders of the same sums.
_SINGLE = 1e-4


@torch.no_grad()
def look_at_repeat(subject: Subject) -> Finding:
    """Two passes over the same tokens, in evaluation mode."""
    tokens = subject.tokens()

    def change(attention: NewAttention) -> float:
        passes = [subject.exact(tokens, attention=attention()) for _ in range(2)]
        return difference(*passes)

    return _on_both_paths("largest difference of two passes", change, 0.0)


@torch.no_grad()
def look_at_rows(subject: Subject) -> Finding:
    """Rows of weights are shares of what may be read: they sum to one, and the rest is zero."""
    tokens = subject.tokens()
    weights: list[Tensor] = []
    subject.exact(tokens, attention=weights)
    allowed = torch.ones(tokens.size(1), tokens.size(1), dtype=torch.bool).tril()
    sums = max(difference(each.sum(-1), torch.ones(())) for each in weights)
    hidden = max(each.masked_fill(allowed, 0.0).nan_to_num(1.0).max().item() for each in weights)
    return judged(
        "largest distance of a row's sum from one, or of a masked weight from zero",
        max(sums, hidden),
        EXACT,
        lambda: _pattern((weights[0] > 0).all(0).all(0)),
    )


def _pattern(reads: Tensor) -> str:
    """What is wrong with a causal mask, from the keys (T, T) that each query really reads."""
    full = torch.ones_like(reads)
    shapes = {
        "every position reads the whole row: there is no mask": full,
        "the mask is upside down: a position reads itself and what comes after it": full.triu(),
        "the mask is inverted: what may be read is what is hidden (True means 'may be read')":
            full.triu(1),
        "the triangle is off by one: a position does not read itself, and the first reads nothing":
            full.tril(-1),
        "the triangle is off by one: a position reads the next one": full.tril(1),
    }  # fmt: skip
    return next((cause for cause, shape in shapes.items() if torch.equal(reads, shape)), "")


@torch.no_grad()
def look_at_causality(subject: Subject) -> Finding:
    """Change the tokens after a position; the logits up to it have to stay, bit for bit.

    With padding and with documents too, whose masks are built in another way; and what is changed
    in one document must change nothing in the next.
    """
    tokens = subject.tokens()
    T = tokens.size(1)
    if T < 2:
        return skipped("the context is one token: nothing comes later")
    columns = torch.arange(T).expand(2, T)
    masks: dict[str, dict[str, Tensor]] = {
        "": {},
        "only where positions are padded": {"real": columns > 0},
        "only where documents are kept apart": {"documents": (columns >= T // 2).long()},
    }
    other = subject.other_tokens(tokens)
    found: set[str] = set()

    def change(attention: NewAttention) -> float:
        worst = 0.0
        for where, mask in masks.items():
            before = subject.exact(tokens, **mask, attention=attention())
            changes = [(columns > t, columns <= t) for t in {0, T // 2, T - 2}]
            if "documents" in mask:
                changes.append((columns < T // 2, columns >= T // 2))
            for changed, stays in changes:
                after = subject.exact(
                    torch.where(changed, other, tokens), **mask, attention=attention()
                )
                off = difference(before[stays], after[stays])
                worst = max(worst, off)
                if off:
                    found.add(where)
        return worst

    return _on_both_paths(
        "largest change of an earlier logit", change, 0.0,
        lambda: next(where for where in masks if where in found),
    )  # fmt: skip


def _on_both_paths(
    what: str,
    measure: Callable[[NewAttention], float],
    bound: float,
    cause: Callable[[], str] = str,
) -> Finding:
    """Measure with either way to attention; where one of them is right, the other is named."""
    values = {path: measure(attention) for path, attention in _PATHS.items()}
    wrong = [path for path, value in values.items() if not value <= bound]
    if len(wrong) == 1:
        return judged(what, values[wrong[0]], bound, lambda: f"only with the {wrong[0]} attention")
    return judged(what, max(values.values()), bound, cause)


@torch.no_grad()
def look_at_padding(subject: Subject) -> Finding:
    """Pad a row on either side, beside another; its logits have to be those of the row alone."""
    tokens = subject.tokens()
    T = tokens.size(1) * 3 // 4
    padding = tokens.size(1) - T
    if not padding or not T:
        return skipped(f"a context of {tokens.size(1)} leaves no room for padding")
    rows = tokens[:, :T]
    filler = rows[:, :1].expand(2, padding)
    alone = subject.exact(rows[:1])
    if difference(alone, subject.exact(rows[:1], attention=[])) > EXACT:
        return skipped("readable and fast attention differ without padding too")
    beside = difference(alone, subject.exact(rows)[:1])
    if beside > EXACT:
        return judged(
            "largest change of a logit by another row in the batch", beside, EXACT,
            lambda: "the rows of a batch are mixed, without any padding",
        )  # fmt: skip

    def change(attention: NewAttention) -> float:
        return max(
            difference(alone, _padded(subject.exact, rows, filling, attention(), left=left)[:1])
            for filling in (filler, subject.other_tokens(filler))
            for left in (True, False)
        )

    return _on_both_paths(
        f"largest change of a real logit by {padding} padded positions",
        change,
        EXACT,
        lambda: _who_reads_padding(subject.exact, rows, filler),
    )


def _padded(
    model: GPT, rows: Tensor, filling: Tensor, attention: list[Tensor] | None, *, left: bool
) -> Tensor:
    """The real logits of rows with padding on their left (as in generation) or their right."""
    T, padding = rows.size(1), filling.size(1)
    columns = torch.arange(T + padding)
    real = columns >= padding if left else columns < T
    logits = model(
        torch.cat([filling, rows] if left else [rows, filling], dim=1),
        positions=(columns - padding).clamp(min=0) if left else columns,
        real=real.expand(len(rows), -1),
        attention=attention,
    )
    return logits[:, real]


def _who_reads_padding(model: GPT, rows: Tensor, filling: Tensor) -> str:
    padding = filling.size(1)
    weights: list[Tensor] = []
    _padded(model, rows, filling, weights, left=True)
    reads = (weights[0][0] > 0).any(0)
    if not reads[padding:, :padding].any():
        return ""
    others = reads[:padding] & ~torch.eye(len(reads), dtype=torch.bool)[:padding]
    if others.any():
        return "the padding keys are readable: nothing hides them"
    return "only the padding queries are masked; it is the keys that have to be hidden"


@torch.no_grad()
def look_at_order(subject: Subject) -> Finding:
    """Turn the input round by one: only without positions and mask may the output just follow."""
    T = subject.tokens().size(1)
    if T < 2:
        return skipped("the context is one token: there is no order")
    if subject.model.config.n_embd < 3:
        return skipped("a norm of one or two numbers leaves no more than their order of size")
    tokens = torch.arange(T)[None] % subject.model.vocab_size
    turned = tokens.roll(1, dims=1)
    here, nowhere = torch.arange(T), torch.zeros(T, dtype=torch.int64)

    def follows(positions: Tensor) -> float:
        before = subject.exact(tokens, positions=positions)
        return difference(before.roll(1, dims=1), subject.exact(turned, positions=positions))

    with_mask = follows(nowhere)
    with hooked(
        block.attention.register_forward_pre_hook(_without_mask) for block in blocks(subject.exact)
    ):
        with_neither, with_positions = follows(nowhere), follows(here)
    figures = (
        f"differs by {with_neither:.2g} without positions and mask (at most {EXACT:.0e}), by"
        f" {with_positions:.2g} with positions and by {with_mask:.2g} with the mask (more)"
    )
    if not subject.exact(tokens).isfinite().all():
        cause = "the logits are not finite"
    elif max(with_neither, with_positions, with_mask) <= EXACT:
        cause = "the logits do not depend on the tokens"
    elif with_neither > EXACT:
        cause = (
            "something besides positions and mask depends on the order: look at the heads' split"
        )
    elif with_positions <= EXACT:
        rotary = subject.model.config.position == "rotary"
        cause = "no positions reach the model: " + (
            "queries and keys are not turned by theirs"
            if rotary
            else "the table is not added to the embeddings"
        )
    elif with_mask <= EXACT:
        cause = "the mask has no effect"
    else:
        return Finding(status="ok", figure=figures)
    return Finding(status="failed", figure=figures, cause=cause)


def _without_mask(_module: object, arguments: tuple[object, ...]) -> tuple[object, ...]:
    x, _, *rest = arguments
    return (x, torch.ones(1, 1, dtype=torch.bool), *rest)


@torch.no_grad()
def look_at_paths(subject: Subject) -> Finding:
    """The readable attention and the fast one: in float64, and on the model's device as it is."""
    tokens = subject.tokens()
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, : tokens.size(1) // 2] = False
    exact = max(
        difference(subject.exact(tokens, real=each), subject.exact(tokens, real=each, attention=[]))
        for each in (None, real)
    )
    if not exact <= EXACT:
        return judged("largest difference in float64", exact, EXACT)
    here = tokens.to(subject.model.device)
    single = difference(subject.model(here).float(), subject.model(here, attention=[]).float())
    return judged(f"{exact:.2g} in float64; as the model is", single, _SINGLE)
