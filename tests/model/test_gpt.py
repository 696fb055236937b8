"""The model as a whole."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from minigpt.config import ModelConfig, from_plain, plain
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.model.positions import rotary_angles, sinusoidal_table

V = 23

#: Models that differ in what a forward pass runs.
KINDS: list[dict[str, object]] = [
    {},
    {"position": "sinusoidal"},
    {"position": "rotary"},
    {"position": "rotary", "qk_norm": True, "activation": "relu2"},
]


def small_gpt(**changes: object) -> GPT:
    torch.manual_seed(0)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 12}
    return GPT(ModelConfig(**shape | changes), V)  # pyright: ignore[reportArgumentType]


def some_tokens(B: int = 2, T: int = 9, vocab_size: int = V) -> Tensor:
    return torch.randint(0, vocab_size, (B, T), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("n_layer", "n_head", "n_embd", "parameters"),
    [(12, 12, 768, 124_439_808), (48, 25, 1600, 1_557_611_200)],
    ids=["gpt2", "gpt2_xl"],
)
def test_gpt2_parameters(n_layer: int, n_head: int, n_embd: int, parameters: int) -> None:
    config = ModelConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=1024)
    with torch.device("meta"):
        model = GPT(config, 50257)
    assert model.parameter_count() == parameters
    assert model.parameter_count(embeddings=False) == parameters - (50257 + 1024) * n_embd


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("vocab_size", [65, 1000])
def test_initial_loss_is_that_of_guessing(position: str, norm_order: str, vocab_size: int) -> None:
    torch.manual_seed(0)
    config = ModelConfig(block_size=64, position=position, norm_order=norm_order)
    model = GPT(config, vocab_size)
    tokens = some_tokens(16, 65, vocab_size)
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    # the token just read is likely again, as the head is the embedding: a table hides that in part
    tolerance = 0.04 if position == "rotary" else 0.03
    assert loss.item() == pytest.approx(math.log(vocab_size), rel=tolerance)


def test_initialisation_is_gpt2s() -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=8, n_embd=128, block_size=256), 500)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
            expected = 0.02 / 4 if residual else 0.02  # √(2 · 8 layers) = 4
            assert parameter.std().item() == pytest.approx(expected, rel=0.03), name
            assert abs(parameter.mean().item()) < 0.05 * expected, name


def test_zero_initialisation_lets_the_embedding_through_and_learns() -> None:
    """All else is drawn as it is without; the zeros are the first to learn, then the rest."""
    model, scaled = small_gpt(residual_init="zero"), small_gpt()
    for (name, a), (_, b) in zip(model.named_parameters(), scaled.named_parameters(), strict=True):
        adds = name.endswith(("attention.output.weight", "mlp.down.weight"))
        assert torch.equal(a, torch.zeros_like(b) if adds else b), name
    tokens = some_tokens()
    embedded = model.embedding.weight[tokens] + model.get_parameter("position.weight")[:9]
    assert torch.equal(model.hidden(tokens), F.layer_norm(embedded, (8,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), some_tokens().roll(1).flatten()).backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_a_config_without_the_newer_settings_is_the_model_of_before() -> None:
    old = plain(ModelConfig())
    for name in ("qk_norm", "residual_init"):
        del old[name]
    assert from_plain(ModelConfig, old) == ModelConfig()
    config = ModelConfig()
    chosen = (config.position, config.qk_norm, config.activation, config.residual_init)
    assert chosen == ("learned", False, "gelu", "scaled")


def test_the_same_seed_makes_the_same_model() -> None:
    a, b = small_gpt().state_dict(), small_gpt().state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_forward_by_its_parts(position: str, norm_order: str) -> None:
    model, tokens = small_gpt(position=position, norm_order=norm_order).double(), some_tokens()
    if position == "learned":
        table = model.get_parameter("position.weight")
    else:
        table = (0.02 * math.sqrt(2) * sinusoidal_table(12, 8)).float().double()
    x = model.embedding.weight[tokens] + table[:9]
    for block in model.blocks:
        x = block(x)
    if norm_order == "pre":
        x = F.layer_norm(x, (8,))
    hidden = model.hidden(tokens)
    assert torch.allclose(hidden, x, rtol=0, atol=1e-13)
    logits = model(tokens)
    assert logits.shape == (2, 9, V)
    assert torch.allclose(logits, x @ model.embedding.weight.T, rtol=0, atol=1e-13)
    assert torch.equal(logits, model.logits(hidden))


def test_a_rotary_model_by_its_parts() -> None:
    """Nothing is added to the embeddings; each block turns by the positions that were given."""
    model, tokens = small_gpt(position="rotary").double(), some_tokens()
    assert "position.weight" not in model.state_dict()
    for positions in (torch.arange(9), torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5], [3] * 9])):
        x = model.embedding.weight[tokens]
        for block in model.blocks:
            x = block(x, angles=rotary_angles(positions, 4, torch.float64))
        expected = F.layer_norm(x, (8,))
        found = model.hidden(tokens, positions=positions)
        assert torch.allclose(found, expected, rtol=0, atol=1e-13)


def test_only_distances_matter_to_rotary_positions() -> None:
    model, tokens = small_gpt(position="rotary").double(), some_tokens()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    moved = model(tokens, positions=torch.arange(3, 12))
    assert torch.allclose(moved, model(tokens), rtol=0, atol=1e-11)
    stretched = model(tokens, positions=torch.arange(9) * 2 % 12)
    assert not torch.allclose(stretched, model(tokens), atol=1e-2)


def test_a_post_norm_model_ends_in_its_last_blocks_norm() -> None:
    model = small_gpt(norm_order="post")
    assert not list(model.norm.parameters())
    hidden = model.hidden(some_tokens())
    assert torch.allclose(hidden.mean(-1), torch.zeros(2, 9), atol=1e-6)
    assert torch.allclose(hidden.var(-1, correction=0), torch.ones(2, 9), atol=1e-3)


def test_only_the_last_position_when_that_is_asked() -> None:
    model, tokens = small_gpt().double(), some_tokens()
    last = model(tokens, last_only=True)
    assert last.shape == (2, 1, V)
    assert torch.allclose(last, model(tokens)[:, -1:], rtol=0, atol=1e-14)


def test_positions_are_counted_from_zero_unless_given() -> None:
    model, tokens = small_gpt().double(), some_tokens()
    counted = model(tokens)
    assert torch.equal(model(tokens, positions=torch.arange(9)), counted)
    assert torch.equal(model(tokens, positions=torch.arange(9).expand(2, 9)), counted)
    moved = model(tokens, positions=torch.arange(3, 12))
    assert not torch.allclose(moved, counted, atol=1e-4)


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_position_tells_equal_tokens_apart(position: str) -> None:
    """Without it every position of a constant sequence would have the same logits."""
    logits = small_gpt(position=position)(torch.zeros(1, 6, dtype=torch.int64))
    assert not torch.allclose(logits[0, 1:], logits[0, :-1], atol=1e-4)


@pytest.mark.parametrize("made_of", [{}, {"position": "rotary", "qk_norm": True}])
def test_documents_in_one_row_are_read_as_alone(made_of: dict[str, object]) -> None:
    model, tokens = small_gpt(**made_of).double(), some_tokens(1, 9)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2]])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2]])
    logits = model(tokens, documents=documents, positions=positions)
    alone = [model(part) for part in tokens.split([4, 2, 3], dim=1)]
    assert torch.allclose(logits, torch.cat(alone, 1), rtol=0, atol=1e-12)
    assert not torch.allclose(logits, model(tokens, positions=positions), atol=1e-3)


def test_context_is_the_limit() -> None:
    model = small_gpt()
    assert model(some_tokens(1, 12)).shape == (1, 12, V)
    with pytest.raises(ValueError, match="13 positions are beyond block_size=12"):
        model(some_tokens(1, 13))


def test_weights_are_collected_block_by_block() -> None:
    model = small_gpt().eval()
    weights: list[Tensor] = []
    with torch.no_grad():
        cache = KVCache.for_model(model, 2)
        model(some_tokens(), attention=weights, cache=cache)
        model(some_tokens(2, 1), attention=weights, cache=cache)
    assert [w.shape for w in weights] == [(2, 2, 9, 9)] * 2 + [(2, 2, 1, 10)] * 2
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("made_of", KINDS)
def test_every_float_type(made_of: dict[str, object], dtype: torch.dtype) -> None:
    model = small_gpt(**made_of).eval()
    reference = model(some_tokens())
    model.to(dtype)
    real = torch.ones(2, 9, dtype=torch.bool)
    for mask in (None, real):
        logits = model(some_tokens(), real=mask)
        assert logits.dtype == dtype
        assert torch.allclose(logits.float(), reference, atol=0.05)
    logits.sum().backward()
    cache = KVCache.for_model(model, 2)
    with torch.no_grad():
        assert model(some_tokens(), cache=cache).dtype == dtype


def test_dropout_on_the_embedding_and_only_in_training() -> None:
    model, plain, tokens = small_gpt(dropout=0.5), small_gpt(), some_tokens()
    assert torch.equal(model.eval()(tokens), plain(tokens))
    model.train()
    for block in model.blocks:
        block.eval()
    assert not torch.allclose(model(tokens), plain(tokens))


def test_state_dict_names_and_a_strict_load() -> None:
    model = small_gpt(n_layer=1, bias=False)
    assert list(model.state_dict()) == [
        "embedding.weight",
        "position.weight",
        *("blocks.0.norm_1.weight", "blocks.0.attention.qkv.weight"),
        *("blocks.0.attention.output.weight", "blocks.0.norm_2.weight"),
        *("blocks.0.mlp.up.weight", "blocks.0.mlp.down.weight"),
        "norm.weight",
    ]
    torch.manual_seed(1)
    other = GPT(model.config, V)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(some_tokens()), model(some_tokens()))


@pytest.mark.parametrize("made_of", KINDS)
def test_under_mixed_precision(made_of: dict[str, object]) -> None:
    model = small_gpt(**made_of).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    exact = model(some_tokens())
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        fast = model(some_tokens())
        readable = model(some_tokens(), attention=[])
    for logits in (fast, readable):
        assert (logits - exact).abs().max() < 0.05 * exact.abs().max()
    fast.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("made_of", KINDS)
def test_one_graph_without_breaks(made_of: dict[str, object]) -> None:
    """Tracing alone is what breaks; the compiler behind it is not ours to test."""
    torch.compiler.reset()
    model = small_gpt(dropout=0.1, **made_of)
    plain = copy.deepcopy(model).eval()
    names = list(model.state_dict())
    model.compile(fullgraph=True, backend="eager")
    assert list(model.state_dict()) == names
    tokens, real = some_tokens(), torch.ones(2, 9, dtype=torch.bool)
    real[1, 6:] = False
    documents = torch.arange(9).expand(2, 9) // 4
    model(tokens, real=real, documents=documents).sum().backward()
    model.eval()
    for masks in ({}, {"real": real}, {"documents": documents}):
        assert torch.allclose(model(tokens, **masks), plain(tokens, **masks), atol=1e-6)
    weights: list[Tensor] = []
    assert torch.allclose(model(tokens, attention=weights), plain(tokens), atol=1e-6)
    assert len(weights) == 2


def test_decoding_is_compiled_once_for_all_lengths() -> None:
    torch.compiler.reset()
    model = small_gpt(block_size=40).eval()
    plain = copy.deepcopy(model)
    graphs: list[object] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(inputs)
        return graph

    model.compile(fullgraph=True, backend=count)
    cache, reference = KVCache.for_model(model, 2), KVCache.for_model(plain, 2)
    tokens = some_tokens(2, 39)
    with torch.no_grad():
        for chunk in tokens.split([5, *[1] * 34], dim=1):
            logits = model(chunk, cache=cache, last_only=True)
            assert torch.allclose(logits, plain(chunk, cache=reference, last_only=True), atol=1e-6)
    assert len(graphs) <= 4
