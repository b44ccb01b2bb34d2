"""Reads and validates the parameters of a request.

An error names the parameter by its path, `input[3].content[0].image_url`, in its message and as the attribute
`param`, because OpenAI's error object has a field for it. JSON's null always means "not given".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from ...domain.ids import MAX_NAME, unstorable
from ...errors import BadInput

T = TypeVar("T", bound=msgspec.Struct)

MAX_PAIRS = 16
MAX_KEY = 64
MAX_VALUE = 512


class BadParameter(BadInput):
    """An invalid parameter of a request; `param` is its path."""

    def __init__(self, param: str, sentence: str) -> None:
        super().__init__(f"{param} {sentence}")
        self.param = param


def kind(value: object) -> str:
    """The JSON type of a value, for error messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
    return type(value).__name__


A_TIME = "a time such as 2026-03-01T00:00:00Z"


def a_time(param: str, text: str) -> datetime:
    """A time by ISO 8601; without an offset it is UTC."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadParameter(param, f"must be {A_TIME}, not {text!r:.60}") from None


def given_text(value: object, param: str) -> str:
    """A required string; it may be empty, but must be storable."""
    if not isinstance(value, str):
        raise BadParameter(param, f"must be text, not {kind(value)}")
    fault = unstorable(value)
    if fault:
        raise BadParameter(param, fault)
    return value


def given_name(value: object, param: str) -> str:
    """A required string that is not empty."""
    if not given_text(value, param):
        raise BadParameter(param, "must not be empty")
    return str(value)


def given_model(value: object) -> str | None:
    """The name of a model; None: the default one. It is stored with each turn and shown in lists, so it is no
    longer than other names."""
    if value is None or value == "":
        return None
    name = given_name(value, "model")
    if len(name) > MAX_NAME:
        raise BadParameter("model", f"is {len(name)} characters long; at most {MAX_NAME} are allowed")
    return name


def given_object(value: object, param: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadParameter(param, f"must be an object, not {kind(value)}")
    return value


def given_list(value: object, param: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadParameter(param, f"must be a list, not {kind(value)}")
    return value


def text(body: Mapping[str, Any], name: str, param: str = "") -> str | None:
    value = body.get(name)
    return None if value is None else given_text(value, param or name)


def flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadParameter(name, f"must be true or false, not {kind(value)}")
    return value


def number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise BadParameter(name, f"must be a number, not {kind(value)}")
    return value


def whole_number(body: Mapping[str, Any], name: str, least: int) -> int | None:
    value = number(body, name)
    if value is not None and (not isinstance(value, int) or value < least):
        raise BadParameter(name, f"must be a whole number, {least} or more; it is {value}")
    return value


def object_of(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    return {} if value is None else given_object(value, name)


def list_of(body: Mapping[str, Any], name: str) -> list[Any]:
    value = body.get(name)
    return [] if value is None else given_list(value, name)


def one_of(body: Mapping[str, Any], name: str, choices: tuple[str, ...], param: str = "") -> str | None:
    value = text(body, name, param)
    if value is not None and value not in choices:
        raise BadParameter(param or name, f"must be one of {', '.join(choices)}; it is {value!r:.80}")
    return value


def metadata_of(value: object) -> dict[str, str]:
    """Up to 16 pairs of strings, like OpenAI's metadata; empty if not given."""
    if value is None:
        return {}
    pairs = given_object(value, "metadata")
    if len(pairs) > MAX_PAIRS:
        raise BadParameter("metadata", f"may have {MAX_PAIRS} pairs at most; it has {len(pairs)}")
    for key, said in pairs.items():
        given_text(key, "a key of metadata")
        if len(key) > MAX_KEY:
            raise BadParameter(
                "metadata", f"may have keys of {MAX_KEY} characters at most; {key!r:.80} is longer"
            )
        where = f"metadata.{key}"
        if len(given_text(said, where)) > MAX_VALUE:
            raise BadParameter(where, f"may be {MAX_VALUE} characters long at most; it is {len(said)}")
    return dict(pairs)


# --- bodies as Structs -----------------------------------------------------------------------------------


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the bodies of holdfast's own routes. Itself: a body without fields."""


def must_be(text: str, **schema: Any) -> msgspec.Meta:
    """Describes a field of a body: its errors read "NAME must be TEXT". `schema`: additions to its schema."""
    return msgspec.Meta(
        description=f"{text[0].upper()}{text[1:]}", extra_json_schema=schema, extra={"is": text}
    )


def body_from(fields: Mapping[str, Any], kind_of_body: type[T]) -> T:
    """The fields that are not null, as this Struct. Raises BadParameter for an unknown field, which is never
    ignored, and for an invalid or missing one."""
    known = kind_of_body.__struct_fields__
    for name in fields:
        if name not in known:
            valid = f"; there are {', '.join(known)}" if known else "; this takes none"
            raise BadParameter(f"{name:.80}", f"is not a field of this request{valid}")
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(given, kind_of_body)
    except msgspec.ValidationError as error:
        name = next((name for name in known if f"`$.{name}" in str(error) or f"`{name}`" in str(error)), "")
        value = given.get(name)
        raise BadParameter(name, f"must be {_expected(kind_of_body)[name]}, not {_shown(value)}") from None


def _shown(value: object) -> str:
    """A short value as it is, any other by its kind. Python refuses to print very large numbers."""
    short = isinstance(value, str | float) or (type(value) is int and abs(value) < 2**63)
    return f"{value!r:.40}" if short else "an empty list" if value == [] else kind(value)


@cache
def _expected(kind_of_body: type[msgspec.Struct]) -> dict[str, str]:
    """What each field must be, by its name."""
    hints = get_type_hints(kind_of_body, include_extras=True)
    return {
        name: each.extra["is"]
        for name, hint in hints.items()
        for each in getattr(hint, "__metadata__", ())
        if isinstance(each, msgspec.Meta) and each.extra
    }
