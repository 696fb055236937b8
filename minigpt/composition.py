"""From presets to settings: Hydra composes the files under `conf/` against the schema.

Only group choices (`model=small`) go through Hydra. Values given on the command line are put over
what it composed by `minigpt.arguments`, which knows the schema and needs no quoting.
"""

import re
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from minigpt.config import check
from minigpt.errors import InputError
from minigpt.settings import flat, nearest, range_text, settings

CONF = Path(__file__).resolve().parent.parent / "conf"

_Schema = TypeVar("_Schema")


def groups(config_name: str, conf: Path = CONF) -> dict[str, str | None]:
    """The groups a command has and the preset of each that it uses unless told otherwise."""
    chosen: dict[str, str | None] = {}
    for entry in _read(conf / f"{config_name}.yaml").get("defaults", []):
        if isinstance(entry, dict):
            chosen |= cast("dict[str, str | None]", entry)
    return chosen


def presets(group: str, conf: Path = CONF) -> list[str]:
    """The names of a group's presets."""
    return sorted(path.stem for path in (conf / group).glob("*.yaml"))


def keys_of_preset(group: str, preset: str, conf: Path = CONF) -> set[str]:
    """The settings that a preset gives a value, those of the presets it draws in included."""
    path = conf / group / f"{preset}.yaml"
    values = _read(path)
    prefix = "" if "@package _global_" in path.read_text(encoding="utf-8") else f"{group}."
    keys: set[str] = set()
    for entry in values.pop("defaults", []):
        if isinstance(entry, dict):  # override /model: small
            for name, choice in cast("dict[str, str]", entry).items():
                keys |= keys_of_preset(name.removeprefix("override ").lstrip("/"), choice, conf)
        elif entry != "_self_":  # another preset of the same group
            keys |= keys_of_preset(group, entry, conf)
    return keys | {prefix + key for key in flat(values)}


def _read(path: Path) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.load(path)) or {})
    except MarkedYAMLError as error:
        raise _not_yaml(error, path) from error


def compose_presets(
    schema: type[_Schema], config_name: str, choices: dict[str, str], conf: Path = CONF
) -> _Schema:
    """The settings of `conf/<config_name>.yaml` with other presets chosen: `{"model": "small"}`.

    Raises `InputError` for a file under `conf` that does not fit the schema.
    """
    ConfigStore.instance().store(f"{config_name}_schema", schema)
    overrides = [f"{group}={preset}" for group, preset in choices.items()]
    try:
        with initialize_config_dir(str(conf), version_base="1.3"):
            composed = compose(config_name, overrides=overrides)
        config = OmegaConf.to_object(composed)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise _explained(error, schema, conf) from error
    assert isinstance(config, schema)
    try:
        check(config)
    except InputError as error:
        chosen = ", ".join(overrides) or config_name
        raise InputError(f"{conf.name}/ ({chosen}): {error}") from error
    return config


def _not_yaml(error: MarkedYAMLError, place: Path) -> InputError:
    mark = error.problem_mark
    where = f"{mark.name}: line {mark.line + 1}" if mark else str(place)
    return InputError(f"{where}: not YAML: {error.problem}")


def _explained(error: Exception, schema: type, conf: Path) -> InputError:
    """Hydra's many lines about a file under `conf` as one: which file, which key, what is right."""
    if isinstance(error, MarkedYAMLError):
        return _not_yaml(error, conf)
    text = str(error)
    file = re.match(r"In '(.+?)': ", text)
    key = re.search(r"full_key: (\S+)", text)
    where = f"{conf.name}/{file[1]}.yaml" if file else f"{conf.name}/"
    complaint = re.sub(r"^In '.+?': |\w+ raised while composing config:\n", "", text)
    complaint = complaint.partition("\n")[0]
    known = {setting.key: setting for setting in settings(schema)}
    if key is None:
        return InputError(f"{where}: {complaint}")
    if key[1] in known:
        allowed = range_text(known[key[1]])
        return InputError(f"{where}: {key[1]}: must be {allowed}; {complaint}")
    return InputError(
        f"{where}: unknown setting {key[1]}; the nearest is {nearest(key[1], schema)}"
    )
