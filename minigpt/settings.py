"""What a setting is: a field of a dataclass with its type, default, meaning and range.

`minigpt.config` writes the settings down with `setting`; `settings` lists them, `check_ranges`
holds values against them, `nearest` finds the one that a misspelt name means.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from types import UnionType
from typing import Any, cast, get_args, get_origin

from minigpt.errors import InputError

BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def setting(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    form: tuple[str, str] | None = None,
    free_text: bool = False,
) -> Any:
    """A dataclass field with its meaning and range.

    `low` and `high` are included in the range, `above` is not. `form` is a pattern that the text
    must match and the words for it. `free_text` values (prompts, paths) are taken literally from
    the command line; an empty one means "not given" for a path.
    """
    metadata = {
        "meaning": meaning,
        "low": low,
        "high": high,
        "above": above,
        "choices": choices,
        "form": form,
        "free_text": free_text,
    }
    if default == []:
        return field(default_factory=list[str], metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of a schema: its dotted key, what it may be, and what it is for."""

    key: str
    type: type
    optional: bool
    repeatable: bool
    default: Any
    meaning: str
    choices: tuple[str, ...]
    form: tuple[str, str] | None
    low: float | None
    high: float | None
    above: float | None
    free_text: bool


def settings(schema: type, prefix: str = "") -> Iterator[Setting]:
    """All settings of a schema, nested ones by dotted key, in the order they are written."""
    for part in dataclasses.fields(schema):
        annotation: Any = part.type
        if dataclasses.is_dataclass(annotation):
            yield from settings(annotation, f"{prefix}{part.name}.")  # type: ignore[arg-type]
            continue
        repeatable = get_origin(annotation) is list
        optional = get_origin(annotation) is UnionType
        yield Setting(
            key=prefix + part.name,
            type=get_args(annotation)[0] if repeatable or optional else annotation,
            optional=optional,
            repeatable=repeatable,
            default=[] if repeatable else part.default,
            **part.metadata,
        )


def range_text(setting: Setting) -> str:
    """What a setting may be, in words: `int or null, at least 1`."""
    names = {int: "int", float: "float", bool: "true or false", str: "text"}
    kind = "one of " + ", ".join(setting.choices) if setting.choices else names[setting.type]
    bounds = [
        "" if setting.low is None else f"at least {setting.low:g}",
        "" if setting.above is None else f"above {setting.above:g}",
        "" if setting.high is None else f"at most {setting.high:.10g}",
        "" if setting.form is None else setting.form[1],
    ]
    kind += " or null" if setting.optional else ""
    return ", ".join([kind, " and ".join(bound for bound in bounds if bound)]).removesuffix(", ")


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, with a mark where it was cut."""
    return text if len(text) <= most else f"{text[:most]}…"


def must_be(setting: Setting, value: object) -> InputError:
    """The error for a value that a setting cannot have."""
    text = shortened(shown(value), 80)
    return InputError(f"{setting.key}={text}: must be {range_text(setting)} ({setting.meaning})")


def read_value(setting: Setting, text: str) -> Any:
    """A plain value by its setting's type; its range is checked with the whole config.

    Raises `InputError` if it is no value of that type.
    """
    if setting.optional and text == "null":
        return None
    try:
        if setting.type is bool:
            return BOOLS[text.lower()]
        return setting.type(text)
    except (ValueError, KeyError) as error:
        raise must_be(setting, text) from error


def shown(value: object) -> str:
    """A value as it would be typed; the items of a list with commas between."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(shown, cast("list[object]", value)))
    return str(value)


def value_of(config: Any, key: str) -> Any:
    """The value of a dotted key."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def set_value(config: Any, key: str, value: Any) -> None:
    """Set the value of a dotted key."""
    *groups, name = key.split(".")
    setattr(value_of(config, ".".join(groups)) if groups else config, name, value)


def nearest(name: str, schema: type) -> str:
    """The setting or group of `schema` that a misspelt name most resembles.

    A setting's last part counts as its name too (`n_layers` is near `model.n_layer`), and so does
    its meaning (`learning_rate` is near `optim.lr`).
    """
    words = _words(name)
    meanings = {setting.key: setting.meaning for setting in settings(schema)}
    group_names = dict.fromkeys(key.partition(".")[0] for key in meanings)

    def likeness(key: str) -> float:
        whole = SequenceMatcher(None, name, key).ratio()
        last = SequenceMatcher(None, words, _words(key)).ratio()
        begins = len(words) >= 4 and _words(key).startswith(words)
        meant = " " in words and words in meanings.get(key, "")
        return max(whole, 0.9 * last + 0.1 * whole, 0.85 * (begins or meant))

    return max((*meanings, *group_names), key=likeness)


def _words(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def check_ranges(config: object) -> None:
    """Hold every value against its type and range.

    Raises `InputError` that names the key, the value and what would be right.
    """
    for setting in settings(type(config)):
        value = value_of(config, setting.key)
        if isinstance(value, list) != setting.repeatable:
            raise must_be(setting, value)
        for item in cast("list[object]", value) if setting.repeatable else [value]:
            if not _accepts(setting, item):
                raise must_be(setting, item)


def _accepts(setting: Setting, value: object) -> bool:
    """Whether one value has the setting's type (an int is a float, a bool no int) and range."""
    if value is None:
        return setting.optional
    if isinstance(value, str):
        form = setting.form
        return setting.type is str and (
            (not setting.choices or value in setting.choices)
            and (form is None or re.fullmatch(form[0], value, re.DOTALL) is not None)
        )
    if isinstance(value, bool):
        return setting.type is bool
    if isinstance(value, int):
        return setting.type in (int, float) and _in_range(setting, value)
    return isinstance(value, float) and setting.type is float and _in_range(setting, value)


def _in_range(setting: Setting, value: float) -> bool:
    return (
        -math.inf < value < math.inf  # false for NaN
        and (setting.low is None or value >= setting.low)
        and (setting.high is None or value <= setting.high)
        and (setting.above is None or value > setting.above)
    )


def flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, by dotted key."""
    values: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            values |= flat(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            values[f"{prefix}{key}"] = value
    return values
