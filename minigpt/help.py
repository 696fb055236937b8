"""The text of `--help`: every preset and every setting, with meaning, range and default."""

import inspect
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from minigpt.composition import CONF, compose_presets, groups, presets
from minigpt.settings import Setting, range_text, settings, shown, value_of

#: Commands of a room whose name is that of a group of presets; `conf/` has them under this one.
ROOMS = {"look": "data"}

WIDTH = 100
INDENT = 28


def help_text(schema: type[Any], config_name: str) -> str:
    """What a command takes, in ASCII; defaults are those of the composed config."""
    return "\n".join(_lines(schema, config_name)) + "\n"


def _lines(schema: type[Any], config_name: str) -> Iterator[str]:
    script = f"{config_name}.py"  # a command without one is a room of the package
    if not (CONF.parent / script).is_file():
        script = f"-m minigpt.{ROOMS.get(config_name, config_name)}"
    yield f"python {script} [key=value ...]"
    yield ""
    yield inspect.getdoc(schema) or ""
    chosen = groups(config_name)
    if chosen:
        yield ""
        yield "Presets, chosen by group=name:"
        for group, default in chosen.items():
            names = [f"{name} (default)" if name == default else name for name in presets(group)]
            yield _entry(f"{group}=", ", ".join(names))
    if "run_dir" in {setting.key for setting in settings(schema)}:
        yield ""
        yield "-m runs every combination of values given as lists: -m optim.lr=1e-3,3e-3"
    config = compose_presets(schema, config_name, {})
    listed = (setting for setting in settings(schema) if setting.key not in chosen)
    for group, members in groupby(listed, key=lambda setting: setting.key.rpartition(".")[0]):
        yield ""
        yield f"Settings of {group}:" if group else "Settings:"
        for setting in members:
            yield _entry(f"{setting.key}={shown(value_of(config, setting.key))}", _about(setting))


def _entry(head: str, body: str) -> str:
    indent = " " * INDENT
    text = textwrap.fill(body, WIDTH, initial_indent=indent, subsequent_indent=indent)
    if len(head) + 4 <= INDENT:
        return f"  {head}".ljust(INDENT) + text[INDENT:]
    return f"  {head}\n{text}"


def _about(setting: Setting) -> str:
    return f"{setting.meaning} [{range_text(setting)}]".replace("…", "...")
