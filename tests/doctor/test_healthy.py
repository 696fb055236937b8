"""A model that is as it should be is found so, whatever its shape, and is left as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.data.batches import IGNORED
from minigpt.doctor.examination import CHECKS, OBSERVATIONS, QUICK, examine
from minigpt.doctor.finding import Subject
from minigpt.doctor.report import first_failure
from minigpt.model.block import MLP
from minigpt.model.gpt import GPT

MakeSubject = Callable[..., Subject]


@given(
    n_layer=st.integers(1, 3),
    heads=st.sampled_from([(1, 4), (2, 8), (3, 12), (4, 16), (5, 5), (2, 32)]),
    block_size=st.integers(1, 20),
    layout=st.sampled_from(["packed", "padded"]),
    document_mask=st.booleans(),
    position=st.sampled_from(["learned", "sinusoidal", "rotary"]),
    qk_norm=st.booleans(),
    norm_order=st.sampled_from(["pre", "post"]),
    activation=st.sampled_from(["gelu", "relu", "relu2"]),
    residual_init=st.sampled_from(["scaled", "zero"]),
    bias=st.booleans(),
    dropout=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=40)
def test_no_quick_check_fails(
    make_subject: MakeSubject,
    heads: tuple[int, int],
    layout: str,
    document_mask: bool,
    **shape: object,
) -> None:
    assume(shape["position"] != "rotary" or heads[1] // heads[0] % 2 == 0)
    subject = make_subject(
        layout, document_mask=document_mask, n_head=heads[0], n_embd=heads[1], **shape
    )
    assert first_failure(list(examine(subject, QUICK))) is None


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("width", [64, 512])
def test_the_first_loss_of_a_wide_model_is_in_order(
    make_subject: MakeSubject, norm_order: str, width: int
) -> None:
    subject = make_subject(n_embd=width, n_layer=6, norm_order=norm_order)
    checks = [check for check in QUICK if check.name == "first_loss"]
    assert first_failure(list(examine(subject, checks))) is None


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("document_mask", [False, True])
def test_no_check_fails(make_subject: MakeSubject, layout: str, document_mask: bool) -> None:
    found = list(examine(make_subject(layout, document_mask=document_mask), CHECKS))
    assert first_failure(found) is None
    timed = "length"  # a busy machine may make it warn
    statuses = {finding.status for check, finding in found if check.name != timed}
    assert statuses <= {"ok", "skipped"}


def state(model: GPT) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_the_model_and_the_random_state_are_left_alone(make_subject: MakeSubject) -> None:
    subject = make_subject()
    model = GPT(subject.model.config, subject.model.vocab_size).train()
    before, drawn = state(model), torch.get_rng_state()
    list(examine(Subject.of(model, subject.batch, fresh=True, store=subject.store), CHECKS))
    assert model.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_weights_that_are_not_finite_are_named(make_subject: MakeSubject) -> None:
    subject = make_subject()
    with torch.no_grad():
        subject.model.state_dict()["blocks.1.mlp.up.weight"][0, 0] = torch.nan
    broken = Subject.of(subject.model, subject.batch, fresh=True)
    failure = first_failure(list(examine(broken, QUICK)))
    assert failure is not None
    assert "blocks.1.mlp.up.weight" in failure[1].cause


def test_a_check_that_is_broken_off_leaves_no_hooks(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = make_subject()
    tokens = subject.tokens()
    before = subject.exact(tokens)
    with monkeypatch.context() as patch:
        patch.setattr(MLP, "forward", lambda *_: 1 / 0)
        (order,) = [check for check in QUICK if check.name == "order"]
        right = subject.exact.forward
        without_hooks = iter((before, before))

        def forward(*arguments: Any, **named: Any) -> Tensor:
            found = next(without_hooks, None)
            return right(*arguments, **named) if found is None else found

        patch.setattr(subject.exact, "forward", forward)
        ((_, finding),) = examine(subject, [order])
        assert "ZeroDivisionError" in finding.figure
    assert torch.equal(subject.exact(tokens), before)


def test_observations_never_fail(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = make_subject()

    def refuse(_self: GPT, *_: object, **__: object) -> Tensor:
        raise RuntimeError("out of order")

    monkeypatch.setattr(GPT, "hidden", refuse)
    found = list(examine(subject, OBSERVATIONS))
    assert "failed" not in {finding.status for _, finding in found}
    assert any("out of order" in finding.figure for _, finding in found)


def test_a_target_in_the_padding_is_seen(make_subject: MakeSubject) -> None:
    subject = make_subject("padded")
    assert subject.batch.real is not None
    subject.batch.targets[~subject.batch.real] = 1
    (check, finding), *_ = examine(subject, QUICK)
    assert (check.name, finding.status) == ("targets", "failed")
    assert "padded positions have targets" in finding.cause
    subject.batch.targets[~subject.batch.real] = IGNORED
    assert next(examine(subject, QUICK))[1].status == "ok"
