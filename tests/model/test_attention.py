"""Attention against numbers worked out by hand and against plain loops in float64."""

import cmath
import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import ModelConfig
from minigpt.model.attention import (
    CausalSelfAttention,
    attention_mask,
    fast_attention,
    readable_attention,
)
from minigpt.model.positions import rotary_angles

Path = Callable[..., Tensor]


def readable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    return readable_attention(q, k, v, mask, causal=causal, dropout=dropout)[0]


both_paths = pytest.mark.parametrize("attend", [readable, fast_attention])


def heads(rows: list[list[float]]) -> Tensor:
    """Rows of one head of one sequence: (1, 1, n, width), float64."""
    return torch.tensor(rows, dtype=torch.float64)[None, None]


def weights_of(q: Tensor, k: Tensor, *, causal: bool = False) -> Tensor:
    return readable_attention(q, k, k, causal=causal)[1][0, 0]


def close(found: Tensor, expected: Sequence[Sequence[float]], tolerance: float = 6e-5) -> bool:
    """Equal to the four decimals that are printed."""
    return torch.allclose(found, found.new_tensor(expected), rtol=0, atol=tolerance)


def attention_by_loops(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The formula, number by number; `mask` (T, S) is True where a key may be read."""
    output = torch.zeros(*q.shape[:-1], v.size(-1), dtype=torch.float64)
    weights = torch.zeros(*q.shape[:-1], k.size(-2), dtype=torch.float64)
    for b in range(q.size(0)):
        for h in range(q.size(1)):
            for t in range(q.size(2)):
                exponentials = [0.0] * k.size(2)
                for s in range(k.size(2)):
                    score = sum(
                        q[b, h, t, d].item() * k[b, h, s, d].item() for d in range(q.size(3))
                    )
                    if mask is None or mask[t, s]:
                        exponentials[s] = math.exp(score / math.sqrt(q.size(3)))
                for s, exponential in enumerate(exponentials):
                    weights[b, h, t, s] = exponential / sum(exponentials)
                    output[b, h, t] += weights[b, h, t, s] * v[b, h, s].double()
    return output, weights


def random_heads(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# Numbers worked out by hand.


@both_paths
def test_one_query_of_two_keys(attend: Path) -> None:
    q, k, v = heads([[1, 0]]), heads([[1, 0], [0, 1]]), heads([[10], [20]])
    assert close(weights_of(q, k), [[0.6698, 0.3302]])
    assert close(attend(q, k, v)[0, 0], [[13.3024]])


@both_paths
@pytest.mark.parametrize(
    ("v", "output", "first_causal"),
    [
        ([[2, 0], [0, 4]], [[1.3395, 1.3210], [0.6605, 2.6790]], [2, 0]),
        ([[1, 1], [3, -1]], [[1.6605, 0.3395], [2.3395, -0.3395]], [1, 1]),
    ],
)
def test_identity_queries_and_keys(
    attend: Path, v: list[list[float]], output: list[list[float]], first_causal: list[float]
) -> None:
    identity = heads([[1, 0], [0, 1]])
    assert close(attend(identity, identity, heads(v))[0, 0], output)
    causal = attend(identity, identity, heads(v), causal=True)[0, 0]
    assert causal[0].tolist() == first_causal
    assert close(causal[1:], output[1:])


def test_scores_of_width_16_are_divided_by_4() -> None:
    assert close(weights_of(heads([[1]]), heads([[8], [0]])), [[0.9997, 0.0003]])
    q, k = heads([[1] * 16]), heads([[0.5] * 16, [0] * 16])  # the product is 8 again
    assert close(weights_of(q, k), [[0.8808, 0.1192]])


def test_a_constant_added_to_all_scores_changes_nothing() -> None:
    q, k = random_heads(1, 1, 1, 4), random_heads(1, 1, 5, 4, seed=1)
    moved = k + 37.0 * q / q.square().sum()  # every product with q grows by 37
    assert torch.allclose(weights_of(q, k), weights_of(q, moved), rtol=0, atol=1e-13)


@both_paths
def test_six_words_of_width_3(attend: Path) -> None:
    words = [
        *([0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64]),
        *([0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55]),
    ]
    x = heads(words)
    query = x[:, :, 1:2]
    assert close((query @ x.mT)[0, 0], [[0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865]])
    query = query * math.sqrt(3)  # the numbers are those of unscaled scores
    assert close(weights_of(query, x), [[0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581]])
    assert close(attend(query, x, x)[0, 0], [[0.4419, 0.6515, 0.5683]])


@both_paths
def test_zero_scores_average_what_may_be_read(attend: Path) -> None:
    zero = torch.zeros(1, 1, 3, 2, dtype=torch.float64)
    expected = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]
    identity = heads([[1, 0, 0], [0, 1, 0], [0, 0, 1]])  # as values it shows the weights
    assert close(weights_of(zero, zero, causal=True), expected, 1e-15)
    assert close(attend(zero, zero, identity, causal=True)[0, 0], expected, 1e-15)


def test_three_small_scores() -> None:
    found = weights_of(heads([[1]]), heads([[0.1], [0.2], [0.6]]))
    assert close(found, [[0.2664, 0.2944, 0.4392]])


@both_paths
def test_cross_attention(attend: Path) -> None:
    q, k = random_heads(2, 4, 3, 8), random_heads(2, 4, 5, 8, seed=1)
    v = random_heads(2, 4, 5, 8, seed=2)
    output, weights = attention_by_loops(q, k, v)
    found = attend(q, k, v)
    assert readable_attention(q, k, v)[1].shape == weights.shape == (2, 4, 3, 5)
    assert found.transpose(1, 2).flatten(2).shape == (2, 3, 32)
    assert torch.allclose(found, output, rtol=0, atol=1e-13)


@both_paths
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("T", [3, 5])
def test_six_values_for_five_keys_are_refused(attend: Path, T: int, causal: bool) -> None:
    q, k, v = (random_heads(2, 4, length, 8) for length in (T, 5, 6))
    with pytest.raises(ValueError, match="6 values for 5 keys"):
        attend(q, k, v, causal=causal)


# The two functions against the loops.


@both_paths
@pytest.mark.parametrize(("T", "S"), [(5, 5), (3, 5), (1, 5), (1, 1), (4, 9)])
def test_causality_is_aligned_bottom_right(attend: Path, T: int, S: int) -> None:
    """Queries are the last T positions: the last query reads every key, never only the first."""
    q, k, v = random_heads(2, 2, T, 4), random_heads(2, 2, S, 4), random_heads(2, 2, S, 3, seed=2)
    mask = torch.tensor([[s <= S - T + t for s in range(S)] for t in range(T)])
    output, weights = attention_by_loops(q, k, v, mask)
    assert torch.allclose(attend(q, k, v, causal=True), output, rtol=0, atol=1e-13)
    found = readable_attention(q, k, v, causal=True)[1]
    assert torch.allclose(found, weights, rtol=0, atol=1e-14)


@both_paths
def test_true_in_a_mask_means_may_be_read(attend: Path) -> None:
    mask = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0, 1]], dtype=torch.bool)
    q, k, v = (random_heads(2, 2, n, 4, seed=n) for n in (3, 4, 4))
    output, _ = attention_by_loops(q, k, v, mask)
    assert torch.allclose(attend(q, k, v, mask), output, rtol=0, atol=1e-13)


@both_paths
def test_a_mask_and_causal_together_are_refused(attend: Path) -> None:
    q = random_heads(1, 1, 3, 2)
    for T in (1, 3):
        with pytest.raises(ValueError, match="put causality into the mask"):
            attend(q[:, :, :T], q, q, torch.ones(T, 3, dtype=torch.bool), causal=True)


@both_paths
def test_float64_stays_float64(attend: Path) -> None:
    """A softmax in float32 would be off by 1e-8."""
    q, k, v = (random_heads(1, 2, n, 4, seed=n) for n in (3, 6, 6))
    output, weights = attention_by_loops(q, k, v)
    found = attend(q, k, v)
    assert found.dtype == torch.float64
    assert (found - output).abs().max() < 1e-14
    assert (readable_attention(q, k, v)[1] - weights).abs().max() < 1e-15


@both_paths
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.float16, 4e-3), (torch.bfloat16, 4e-2)],
)
def test_smaller_floats_keep_their_type(attend: Path, dtype: torch.dtype, tolerance: float) -> None:
    q, k, v = (random_heads(1, 2, n, 4, seed=n) for n in (3, 6, 6))
    found = attend(q.to(dtype), k.to(dtype), v.to(dtype), causal=True)
    assert found.dtype == dtype
    assert (found.double() - attend(q, k, v, causal=True)).abs().max() < tolerance


@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_ten_thousand(attend: Path, dtype: torch.dtype) -> None:
    one, k = torch.ones(1, 1, 1, 1, dtype=dtype), heads([[1e4], [-1e4], [0]]).to(dtype)
    v = heads([[1], [2], [4]]).to(dtype)
    assert attend(one, k, v).item() == 1
    assert attend(-one, k, v).item() == 2
    assert attend(one, k - 1e4, v).item() == 1


@both_paths
def test_the_mask_hides_a_score_however_low_the_others_are(attend: Path) -> None:
    """A large negative number in place of -inf would be the largest score here."""
    q, k = heads([[1.0]]).requires_grad_(), heads([[-1e12], [-1e12], [0.0]])
    mask = torch.tensor([[True, True, False]])
    output = attend(q, k, heads([[1], [3], [100]]), mask)
    assert output.item() == 2
    output.backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


def test_readable_scores_stay_in_the_range_of_float16() -> None:
    q = torch.full((1, 1, 1, 64), 40.0, dtype=torch.float16)  # q·q = 102,400 > 65,504; /8 fits
    assert readable_attention(q, q, q)[1].item() == 1


def test_weights_are_returned_before_dropout() -> None:
    torch.manual_seed(0)
    q, k, v = (random_heads(2, 2, 6, 4, seed=n) for n in range(3))
    output, weights = readable_attention(q, k, v, dropout=0.5)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 2, 6, dtype=torch.float64))
    assert not torch.allclose(output, weights @ v)


@both_paths
def test_dropout_keeps_the_mean(attend: Path) -> None:
    torch.manual_seed(0)
    q, v = torch.zeros(1, 1, 2000, 1), torch.ones(1, 1, 50, 1)
    output = attend(q, v, v, dropout=0.25)
    assert output.std() > 0.01
    assert abs(output.mean().item() - 1) < 0.01


# The mask.


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_mask_by_loops(data: st.DataObject) -> None:
    S = data.draw(st.integers(1, 7), label="S")
    T = data.draw(st.integers(1, S), label="T")
    B = data.draw(st.integers(1, 3), label="B")
    row = st.lists(st.booleans(), min_size=S, max_size=S)
    real = data.draw(st.none() | st.lists(row, min_size=B, max_size=B), label="real")
    row = st.lists(st.integers(0, 2), min_size=S, max_size=S)
    documents = data.draw(st.none() | st.lists(row, min_size=B, max_size=B), label="documents")

    def may_read(b: int, t: int, s: int) -> bool:
        own = S - T + t
        same = documents is None or documents[b][s] == documents[b][own]
        return s == own or (s < own and same and (real is None or real[b][s]))

    mask = attention_mask(
        T,
        S,
        real=None if real is None else torch.tensor(real),
        documents=None if documents is None else torch.tensor(documents),
    )
    if real is None and documents is None:
        assert mask is None or mask.shape == (T, S)
        if mask is None:
            assert T in (1, S)
            return
    else:
        assert mask is not None
        assert mask.shape == (B, 1, T, S)
    assert mask.dtype == torch.bool
    expected = [[[may_read(b, t, s) for s in range(S)] for t in range(T)] for b in range(B)]
    assert mask.expand(B, 1, T, S)[:, 0].tolist() == expected
    assert mask.any(-1).all()


def test_no_mask_is_built_where_kernels_need_none() -> None:
    assert attention_mask(1, 1) is attention_mask(1, 9) is attention_mask(8, 8) is None


def test_more_queries_than_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="4 queries are more than the 3 keys"):
        attention_mask(4, 3)


def test_padding_hides_keys_not_only_queries() -> None:
    real = torch.tensor([[False, True, False, True]])
    mask = attention_mask(4, 4, real=real)
    assert mask is not None
    assert mask[0, 0].int().tolist() == [
        *([1, 0, 0, 0], [0, 1, 0, 0]),  # padding and real, left
        *([0, 1, 1, 0], [0, 1, 0, 1]),
    ]


@both_paths
def test_a_row_of_nothing_but_padding_is_finite(attend: Path) -> None:
    mask = attention_mask(4, 4, real=torch.zeros(1, 4, dtype=torch.bool))
    q, k, v = (random_heads(1, 1, 4, 2, seed=n).requires_grad_() for n in range(3))
    output = attend(q, k, v, mask)
    assert torch.allclose(output, v)  # each position reads itself
    output.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


# The module.


def small_attention(**changes: float) -> CausalSelfAttention:
    torch.manual_seed(1)
    config = ModelConfig(n_head=3, n_embd=12, **changes)  # pyright: ignore[reportArgumentType]
    return CausalSelfAttention(config, layer=0).double()


def multi_head_by_loops(module: CausalSelfAttention, x: Tensor, fault: str = "") -> Tensor:
    """Causal multi-head attention of (B, T, C), head by head; or with one of the known faults."""
    B, T, C = x.shape
    H, D = 3, C // 3
    projected = x @ module.qkv.weight.T + module.qkv.bias
    q, k, v = projected[..., :C], projected[..., C : 2 * C], projected[..., 2 * C :]
    if fault == "scaled twice":
        q = q / math.sqrt(D)
    if fault == "scaled by the full width":
        q = q * math.sqrt(D) / math.sqrt(C)
    if fault == "split without a transpose":
        q, k, v = (part.reshape(B, H, T, D) for part in (q, k, v))
    else:
        q, k, v = (
            torch.stack([part[..., h * D : (h + 1) * D] for h in range(H)], 1) for part in (q, k, v)
        )
    y, _ = attention_by_loops(q, k, v, torch.ones(T, T).tril() == 1)
    if fault == "merged without a transpose":
        merged = y.reshape(B, T, C)
    else:
        merged = torch.cat([y[:, h] for h in range(H)], -1)
    if fault == "output projection left out":
        return merged
    return merged @ module.output.weight.T + module.output.bias


@pytest.mark.parametrize("path", ["readable", "fast"])
def test_module_by_loops(path: str) -> None:
    module, x = small_attention(), random_heads(2, 5, 12)
    weights: list[Tensor] | None = [] if path == "readable" else None
    found = module(x, attention=weights)
    assert torch.allclose(found, multi_head_by_loops(module, x), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "fault",
    [
        "scaled twice",
        "scaled by the full width",
        "split without a transpose",
        "merged without a transpose",
        "output projection left out",
    ],
)
def test_loops_with_a_known_fault_are_far_from_the_module(fault: str) -> None:
    """So `test_module_by_loops` cannot pass with that fault in the module."""
    module, x = small_attention(), random_heads(2, 5, 12)
    assert (module(x) - multi_head_by_loops(module, x, fault)).abs().max() > 1e-3


@pytest.mark.parametrize("path", ["readable", "fast"])
def test_dropout_only_in_training(path: str) -> None:
    module, x = small_attention(dropout=0.5), random_heads(2, 5, 12)
    plain = small_attention()

    def run(attend: CausalSelfAttention) -> Tensor:
        return attend(x, attention=[] if path == "readable" else None)

    assert not torch.allclose(run(module), run(plain))
    assert torch.equal(run(module.eval()), run(plain))


def test_asking_for_weights_gets_one_tensor_a_call() -> None:
    module, x = small_attention(), random_heads(2, 5, 12)
    weights: list[Tensor] = []
    module(x, attention=weights)
    module(x, attention=weights)
    assert [w.shape for w in weights] == [(2, 3, 5, 5)] * 2
    assert torch.allclose(weights[0].sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))
    assert torch.equal(weights[0], weights[0].tril())


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="n_embd=10 is not a multiple of n_head=3"):
        CausalSelfAttention(ModelConfig(n_embd=10, n_head=3), layer=0)


@pytest.mark.parametrize("path", ["readable", "fast"])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_heads_are_normed_then_turned(rotary: bool, qk_norm: bool, path: str) -> None:
    module, x = small_attention(qk_norm=qk_norm), random_heads(2, 5, 12)
    q, k, v = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in module.qkv(x).split(12, -1))
    if qk_norm:
        q, k = (z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    if rotary:
        q, k = (each.clone() for each in (q, k))
        for z in (q, k):
            for t, pair in itertools.product(range(5), range(2)):
                turn = cmath.exp(1j * t / 100**pair)  # 10000^(2 · pair / 4)
                a, b = z[:, :, t, 2 * pair], z[:, :, t, 2 * pair + 1]
                both = torch.complex(a.clone(), b.clone()) * turn
                z[:, :, t, 2 * pair], z[:, :, t, 2 * pair + 1] = both.real, both.imag
    y, _ = attention_by_loops(q, k, v, torch.ones(5, 5).tril() == 1)
    expected = y.transpose(1, 2).flatten(2) @ module.output.weight.T + module.output.bias
    angles = rotary_angles(torch.arange(5), 4, torch.float64) if rotary else None
    found = module(x, attention=[] if path == "readable" else None, angles=angles)
    assert torch.allclose(found, expected, rtol=0, atol=1e-13)
