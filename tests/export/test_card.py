"""The model card says what the record says, and nothing where there is no record."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from minigpt.checkpoint import LoadedModel, load_model
from minigpt.export.card import FRONT, card
from tests.conftest import Train
from tests.export.conftest import Make


@pytest.fixture(scope="module")
def trained(train: Train, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    run = tmp_path_factory.mktemp("private") / "run"
    assert train(f"run_dir={run}", "trainer.max_steps=3", "optim.lr=0.004") == 0
    return load_model(run / "checkpoints" / "best.ckpt")


def written(loaded: LoadedModel, form: str = "huggingface") -> str:
    return card(loaded, ("a note",), format_name=form, dtype="float16", name="my-model")


def test_the_front_matter_is_what_the_hub_reads() -> None:
    _, front, rest = FRONT.split("---\n")
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["gpt2", "minigpt"],
    }
    assert not rest.strip()


def test_a_run_tells_its_data_training_and_losses(trained: LoadedModel) -> None:
    text, record = written(trained), trained.record
    assert trained.model.shape() in text
    assert f"{trained.model.parameter_count():,} parameters" in text
    assert "- a note" in text
    assert "Corpus `text` (`lines.txt`): 72 documents in training" in text
    assert f"- 3 steps of 6 rows of 16 tokens (packed): {record['tokens']} tokens" in text
    assert "peak learning rate 0.004" in text
    assert f"validation loss {record['val_loss']:.4f}" in text
    assert 'from_pretrained("my-model")' in text


def test_every_setting_is_there_and_no_path_of_the_machine(trained: LoadedModel) -> None:
    text = written(trained)
    _, _, block = text.partition("```yaml\n")
    settings: dict[str, Any] = yaml.safe_load(block.partition("```")[0])
    config = trained.record["config"]
    assert settings.keys() == config.keys()
    assert settings["optim"] == config["optim"]
    assert settings["run_dir"] == "run"
    assert settings["data"]["path"] == ["lines.txt"]
    assert str(Path(config["run_dir"]).parent) not in text


@pytest.mark.parametrize(
    "record",
    [
        {"documents": 5, "config": "x"},
        {"documents": 5, "config": {}},
        {"documents": 5, "config": {"data": {"path": 3}}, "val_loss": 2.0},
        {"documents": 5, "config": {"optim": {"lr": None}}, "tokens": "many"},
    ],
)
def test_what_an_older_record_does_not_say_is_left_out(make: Make, record: dict[str, Any]) -> None:
    loaded = make("bytes")
    text = written(LoadedModel(loaded.model, loaded.tokenizer, record))
    assert "## Use" in text
    assert "## Training" not in text


def test_what_a_run_began_with_is_named(trained: LoadedModel) -> None:
    config = trained.record["config"]
    for place, name in (
        ("/home/me/gpt2_folder", "gpt2_folder"),
        ("/home/me/runs/a/checkpoints/best.ckpt", "a"),
        ("openai-community/gpt2", "openai-community/gpt2"),
    ):
        record = trained.record | {"config": config | {"init_from": place}}
        text = written(LoadedModel(trained.model, trained.tokenizer, record))
        assert f"- began with the weights of `{name}`" in text
        assert "/home" not in text
    older = {key: value for key, value in config.items() if key != "init_from"}
    record = trained.record | {"config": older}
    text = written(LoadedModel(trained.model, trained.tokenizer, record))
    assert "## Training" in text
    assert "began with" not in text


def test_a_model_without_a_record_has_no_such_parts(make: Make) -> None:
    text = written(make("char"), "gguf")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == ["# minigpt 0.0M", "## Use"]
    assert "other characters have none" in text
    assert "64 tokens at most" in text
    assert "llama-completion -m my-model" in text
