import pytest

from minigpt.composition import groups, presets
from minigpt.config import TrainConfig
from minigpt.generation.config import GenerateConfig
from minigpt.help import WIDTH, help_text
from minigpt.settings import settings


@pytest.mark.parametrize(("schema", "name"), [(TrainConfig, "train"), (GenerateConfig, "generate")])
def test_help_lists_every_setting_with_meaning_range_and_default(schema: type, name: str) -> None:
    text = help_text(schema, name)
    flowing = " ".join(text.split())
    for setting in settings(schema):
        assert f" {setting.key}=" in flowing
        if setting.key not in groups(name):
            assert setting.meaning.replace("…", "...") in flowing
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.isascii()


def test_help_lists_every_preset_and_marks_the_default() -> None:
    flowing = " ".join(help_text(TrainConfig, "train").split())
    for group, default in groups("train").items():
        names = (f"{name} (default)" if name == default else name for name in presets(group))
        assert f" {group}= {', '.join(names)}" in flowing


def test_defaults_are_those_of_the_composed_config() -> None:
    flowing = " ".join(help_text(TrainConfig, "train").split())
    assert " data.layout=padded rows:" in flowing  # by data=stories; the schema says packed
    assert " model.bias=true " in flowing
    assert " optim.lr=null peak learning rate [float or null, above 0]" in flowing
    assert " model.n_layer=4 Transformer blocks [int, at least 1]" in flowing
    assert " data.path= file, " in flowing
