"""A model and its batch, as the doctor gets them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from minigpt.config import ModelConfig, from_plain
from minigpt.data.batches import TrainingBatches
from minigpt.data.token_store import TokenStore
from minigpt.doctor.finding import Subject
from minigpt.model.gpt import GPT

V = 29


def store() -> TokenStore:
    """Forty documents of 3 to 20 tokens; token 0 ends them."""
    draw = np.random.default_rng(1)
    starts = np.concatenate([[0], draw.integers(4, 21, size=40).cumsum()])
    tokens = draw.integers(1, V, size=starts[-1] + 1).astype(np.uint16)
    tokens[starts] = 0
    return TokenStore(tokens, starts, n_bytes=len(tokens))


def subject(layout: str = "padded", *, document_mask: bool = False, **shape: object) -> Subject:
    """A fresh model of a small shape."""
    small: dict[str, object] = {
        "n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16, "dropout": 0.1,
    }  # fmt: skip
    config = from_plain(ModelConfig, small | shape)
    torch.manual_seed(1)
    batches = TrainingBatches(
        store(),
        block_size=config.block_size,
        layout=layout,
        batch_size=4,
        seed=1,
        document_mask=document_mask,
    )
    return Subject.of(GPT(config, V), batches[0], fresh=True, store=store())


@pytest.fixture(scope="session")
def make_subject() -> Callable[..., Subject]:
    return subject
