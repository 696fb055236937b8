"""What a resumed run keeps, what it may be told anew, and what is refused."""

import pytest

from minigpt.config import ModelConfig, OptimConfig, TrainConfig, TrainerConfig, plain
from minigpt.errors import InputError
from minigpt.training.resume import merge

SAVED = plain(
    TrainConfig(
        run_dir="old",
        model=ModelConfig(n_layer=6),
        optim=OptimConfig(lr=1e-3, decay_steps=100),
        trainer=TrainerConfig(max_steps=100),
    )
)


def test_only_what_is_named_counts() -> None:
    asked = TrainConfig(resume="old", trainer=TrainerConfig(max_steps=200))
    merged, changes = merge(SAVED, asked, ["resume", "trainer.max_steps"])
    assert merged.model.n_layer == 6
    assert merged.trainer.max_steps == 200
    assert merged.optim.decay_steps == 100  # the schedule stays where it was
    assert merged.optim.lr == 1e-3
    assert merged.resume == "old"
    assert changes == ["trainer.max_steps: 100 -> 200"]


def test_naming_what_is_so_already_is_no_change() -> None:
    asked = TrainConfig(model=ModelConfig(n_layer=6))
    merged, changes = merge(SAVED, asked, ["model.n_layer"])
    assert (merged.model.n_layer, changes) == (6, [])


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        ("model.n_layer", TrainConfig(model=ModelConfig(n_layer=2))),
        ("seed", TrainConfig(seed=7)),
    ],
)
def test_what_makes_it_another_run_is_refused(key: str, asked: TrainConfig) -> None:
    with pytest.raises(InputError, match=f"{key}=.*keeps {key}=") as caught:
        merge(SAVED, asked, [key])
    assert "\n" not in str(caught.value)
