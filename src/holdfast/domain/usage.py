"""Usage: token figures as models report them, checked, summed and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_TOKENS = 10**12
"""Upper limit for a reported figure. Above it the figure is a mistake, and sums must fit in 64 bits."""


def usable_usage(usage: object) -> tuple[dict[str, int], list[str]]:
    """Split reported usage into figures that can be stored and the names of those that cannot.

    Takes a mapping, or an SDK's object (anything with `model_dump`, or with attributes). Whole numbers from 0
    to MOST_TOKENS are kept; None and nested details are silently ignored. Bad figures never raise: the answer
    that they belong to already exists.
    """
    figures, dropped = {}, []
    for name, value in _reported(usage).items():
        if value is None or isinstance(value, Mapping | list | tuple) or hasattr(value, "model_dump"):
            continue
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_TOKENS:
            dropped.append(str(name))
        else:
            figures[str(name)] = number
    return figures, dropped


_SAME = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}


def added_usage(before: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Sum of the figures of several calls. Where calls name the same figure differently (Chat Completions,
    Responses), the first name is used."""
    total = dict(before)
    other_names = {**_SAME, **{ours: theirs for theirs, ours in _SAME.items()}}
    for name, figure in more.items():
        other = other_names.get(name)
        if other is not None and other in total and name not in total:
            name = other
        total[name] = total.get(name, 0) + figure
    return total


def tokens(usage: Any) -> dict[str, int]:
    """The model's reported usage under the names we store; empty if its format is unknown."""
    if not isinstance(usage, Mapping):
        return {}
    return {
        ours: int(usage[theirs])
        for ours, theirs in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))
        if isinstance(usage.get(theirs), int)
    }


def input_tokens(usage: Mapping[str, int]) -> int:
    """Tokens that the model read, whichever API named them."""
    return usage.get("input_tokens", usage.get("prompt_tokens", 0))


def output_tokens(usage: Mapping[str, int]) -> int:
    """Tokens that the model wrote, whichever API named them."""
    return usage.get("output_tokens", usage.get("completion_tokens", 0))


def tokens_in(usage: Mapping[str, int]) -> int:
    """Input and output tokens of these figures."""
    return input_tokens(usage) + output_tokens(usage)


def _reported(usage: object) -> Mapping[Any, Any]:
    if usage is None or isinstance(usage, Mapping):
        return usage or {}
    try:
        dump = getattr(usage, "model_dump", None)
        found = dump() if callable(dump) else vars(usage)
    except Exception:  # user-defined object: may raise anything
        found = None
    return found if isinstance(found, Mapping) else {"usage": type(usage).__name__}
