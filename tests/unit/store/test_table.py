"""The store's table of methods: each line names a function whose docstring is the promise."""

import inspect

from holdfast.store.engine import Engine
from holdfast.store.store import Store

PUBLIC = {
    name: value for part in (Store, Engine) for name, value in vars(part).items() if not name.startswith("_")
}


def test_every_method_has_a_promise() -> None:
    assert [name for name, value in PUBLIC.items() if not value.__doc__] == []


def test_a_method_of_the_table_shows_the_arguments_of_its_function() -> None:
    assert str(inspect.signature(Store.deliver_notice)) == (
        "(tx: 'Transaction', owner: 'str | None', notice_id: 'str') -> 'Notice'"
    )


def test_a_function_is_in_the_table_once() -> None:
    functions = [value.__wrapped__ for value in PUBLIC.values() if hasattr(value, "__wrapped__")]
    assert len(functions) > 100
    assert len({id(function) for function in functions}) == len(functions)
