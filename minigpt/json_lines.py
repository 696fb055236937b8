"""JSON lines: one object a line, read and written."""

import json
from typing import Any, cast

#: Characters that JSON leaves as they are and that some readers take for the end of a line.
_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


def json_line(values: dict[str, Any]) -> str:
    """One JSON object as one line, by any reader's notion of a line."""
    return json.dumps(values, ensure_ascii=False).translate(_LINE_ENDS) + "\n"


def json_object(line: str) -> dict[str, object]:
    """The object that a line holds; `ValueError` says what is there instead."""
    try:
        value: object = json.loads(line)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        hint = "; one object a line is needed" if line.lstrip().startswith("[") else ""
        raise ValueError(f"not JSON: {what} at column {error.colno}{hint}") from error
    except RecursionError as error:
        raise ValueError("not JSON that can be read: nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, this is {json_kind(value)}")
    return cast("dict[str, object]", value)


def json_text(values: dict[str, object], field: str) -> str:
    """The text in a field; `ValueError` if there is none, or none that can be encoded."""
    if field not in values:
        raise ValueError(f"no field {field!r}; there are: {', '.join(values) or 'none'}")
    text = values[field]
    if not isinstance(text, str):
        raise ValueError(f"the field {field!r} must be a string, this is {json_kind(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the field {field!r} has half of a surrogate pair at character {error.start}"
        ) from error
    return text


def json_kind(value: object) -> str:
    """What JSON calls a value."""
    if value is None:
        return "null"
    names: dict[type, str] = {
        bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"
    }  # fmt: skip
    return names.get(type(value), "an object")
