"""Law 8: what is saved is what is loaded; compiling changes no key."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.checkpoint import MODEL_PREFIX, RECORD, load_model, read_checkpoint, write_checkpoint
from minigpt.config import ModelConfig, TokenizerConfig, from_plain, plain
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.model.gpt import GPT
from minigpt.run_folder import BEST, LAST
from tests.conftest import Train
from tests.laws.choices import choices

configs = st.builds(
    lambda made_of, **shape: ModelConfig(**shape, **made_of),
    made_of=choices,
    n_layer=st.integers(1, 3),
    n_head=st.just(2),
    n_embd=st.sampled_from([4, 12, 16]),
    block_size=st.integers(1, 9),
    residual_init=st.sampled_from(["scaled", "zero"]),
)


@settings(deadline=None, max_examples=25)
@given(config=configs, text=st.text(min_size=1, max_size=20), seed=st.integers(0, 99))
def test_a_checkpoint_gives_the_same_logits_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, config: ModelConfig, text: str, seed: int
) -> None:
    path = tmp_path_factory.mktemp("law8") / "a.ckpt"
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), [text])
    model = GPT(config, tokenizer.vocab_size).eval()
    record = {
        "model_config": plain(config),
        "vocab_size": model.vocab_size,
        "tokenizer": tokenizer.to_json(),
        "documents": 1,
    }
    weights = {MODEL_PREFIX + name: tensor for name, tensor in model.state_dict().items()}
    write_checkpoint(path, {"state_dict": weights, RECORD: record})
    loaded = load_model(path)
    ids = torch.tensor([(tokenizer.encode(text) * 9)[: config.block_size]])
    assert torch.equal(loaded.model(ids), model(ids))
    assert loaded.tokenizer.encode(text) == tokenizer.encode(text)
    assert loaded.model.config == config


def test_a_run_leaves_checkpoints_that_are_enough_by_themselves(
    train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(f"run_dir={run}", "trainer.max_steps=3", "saving.every_n_steps=1") == 0
    for name in (BEST, LAST):
        alone = tmp_path / "alone" / name.name
        alone.parent.mkdir(exist_ok=True)
        alone.write_bytes((run / name).read_bytes())
        loaded = load_model(alone)
        contents = read_checkpoint(alone)
        record = contents[RECORD]
        # the loss that is written beside the weights is that of these weights
        assert record["val_step"] == record["step"] == contents["global_step"]
        assert from_plain(ModelConfig, record["model_config"]) == loaded.model.config
        assert {"state_dict", "optimizer_states", "lr_schedulers", "global_step"} <= contents.keys()


def test_saved_numbered_checkpoints_are_the_newest(train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("trainer.max_steps=7", "saving.every_n_steps=2", "saving.keep=2")
    assert train(f"run_dir={run}", *settings) == 0
    numbered = sorted(path.name for path in (run / "checkpoints").glob("step_*"))
    assert numbered == ["step_00000006.ckpt", "step_00000007.ckpt"]


def test_compiling_in_place_changes_no_key() -> None:
    config = ModelConfig(n_layer=1, n_head=1, n_embd=4, block_size=4)
    plain_model, compiled = GPT(config, 5), GPT(config, 5)
    compiled.compile()
    assert compiled.state_dict().keys() == plain_model.state_dict().keys()
    plain_model.load_state_dict(compiled.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_run_goes_on_compiled_or_not(
    train: Train, tmp_path: Path, before: bool, after: bool
) -> None:
    run = tmp_path / "run"
    common = ("optim.decay_steps=4", "data.layout=padded")
    first = f"compile={str(before).lower()}"
    assert train(*common, f"run_dir={run}", "trainer.max_steps=2", first) == 0
    second = f"compile={str(after).lower()}"
    assert train(*common, f"resume={run}", "trainer.max_steps=4", second) == 0
    assert read_checkpoint(run / LAST)["global_step"] == 4
    losses = train.losses(run)
    plain_run = tmp_path / "plain"
    assert train(*common, f"run_dir={plain_run}", "trainer.max_steps=4") == 0
    assert losses == pytest.approx(train.losses(plain_run), rel=1e-4)
