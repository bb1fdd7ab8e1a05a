"""What could not be protected is refused when it is declared, with the option and the remedy."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from semel import AsyncEngine, Engine, Permit, Policy
from semel.errors import ConfigurationError, PolicyError
from semel.functions import AsyncOnce, Caller, Codec, Once, command, single_caller, this_permit
from semel.functions.declare import permit_names

ENGINE = Engine.connect("memory://")
LOOP = AsyncEngine.connect("memory://")


class Declined(Exception):
    pass


class Plain:
    pass


def charge(order: dict[str, Any], note: str = "") -> str:
    return note


async def charge_later(order: dict[str, Any], note: str = "") -> str:
    return note


def numbers(order: str) -> Iterator[int]:
    yield 1


async def numbers_later(order: str) -> AsyncIterator[int]:
    yield 1


def iterates(order: str) -> Iterator[int]:
    return iter(())


def promises(order: str) -> Awaitable[int]:
    raise NotImplementedError


def returns_plain(order: str) -> Plain:
    return Plain()


GIVEN: dict[str, Any] = {"key": "order.id", "caller": single_caller}


def declare(function: Any, engine: Any = ENGINE, name: str = "refused", **settings: Any) -> Any:
    return command(engine, name, **{**GIVEN, **settings})(function)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (numbers, "numbers is a generator, which runs after its call has returned, .* collect its items"),
        (numbers_later, "numbers_later is an async generator"),
        (iterates, "iterates returns an Iterator: its work continues after it returns"),
        (promises, "promises returns an Awaitable: .* declare an `async def`"),
        (Plain, "Plain is a class: declare its method instead"),
        (functools.partial(charge, {}), "is not a function: write `def`"),
        ("charge", "is not a function"),
        (charge_later, "charge_later is an async function and needs an AsyncEngine; it was given Engine"),
        (
            returns_plain,
            "the return annotation of returns_plain: .*Plain has no safe form, and nothing is ever pickled",
        ),
    ],
    ids=lambda each: each[:20] if isinstance(each, str) else "",
)
def test_an_invalid_call_is_refused(function: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        declare(function, key="order")


def test_a_plain_function_needs_a_plain_engine() -> None:
    with pytest.raises(
        ConfigurationError, match="charge is a plain function and needs an Engine; it was given AsyncEngi"
    ):
        declare(charge, LOOP)
    late = declare(charge, lambda: LOOP)
    with pytest.raises(ConfigurationError, match="needs an Engine"):
        late({"id": "1"})
    with pytest.raises(ConfigurationError, match="it was given NoneType"):
        declare(charge, lambda: None)({"id": "1"})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"key": "ordr.id"}, r"key='ordr.id': the function has no parameter 'ordr'; did you mean 'order'\?"),
        ({"key": "x"}, "the parameters are order, note"),
        ({"key": "order..id"}, "is not a path; write a parameter and its parts: 'order.id'"),
        ({"key": ("order.id", 1)}, "key=1 is not a path"),
        ({"key": 7}, "key=7 is not a key; give a path such as 'order.id'"),
        ({"key": ()}, r"key=\(\) is not a key"),
        (
            {"caller": None},
            "caller= is missing: a key means something only for its caller; say in whose name .*single_call",
        ),
        ({"caller": "customer"}, "caller='customer': the function has no parameter"),
        ({"caller": ("order", "x")}, "caller='x'"),
        ({"caller": 7}, "caller=7 is not a caller; say in whose name"),
        ({"caller": Caller}, "is not a caller"),
        (
            {"exclude": ("nota",)},
            r"exclude= names 'nota', which is not a parameter of the function; did you mean 'note'\?",
        ),
        ({"exclude": "note"}, "exclude= takes a tuple of parameters, such as"),
        ({"include": "note"}, "include= takes a tuple of paths"),
        ({"include": ("nope",)}, "include='nope'"),
        ({"include": ("note",), "exclude": ("note",)}, "give either include= or exclude=, not both"),
        ({"replays": Declined}, "replays= takes a tuple of exception types"),
        ({"replays": (Plain,)}, "replays= takes exception types"),
        ({"replays": (Exception,)}, "replays= must not hold Exception: a refusal needs its own type"),
        ({"replays": (KeyboardInterrupt,)}, "replays= must not hold KeyboardInterrupt"),
        ({"replays": (ExceptionGroup,)}, "a group holds other exceptions"),
        (
            {"replays": (Declined,), "nothing_happened": (Declined,)},
            "Declined cannot be both in replays= and in nothing_h",
        ),
        ({"codecs": (Plain,)}, "codecs= takes a tuple of Codec"),
        ({"codecs": (Codec(Plain, encode=str, decode=str),) * 2}, "codecs= has two of one class"),
        ({"effects": "atomic"}, "effects='atomic' needs a store in the same database"),
    ],
    ids=lambda each: each[:24] if isinstance(each, str) else "",
)
def test_a_wrong_option_is_refused_with_its_remedy(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        declare(charge, **settings)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_error": "replay"}, r"on_error is for HTTP operations; declare the exceptions that are answers: replays="),
        ({"replay": "2xx"}, "replay is for HTTP"),
        ({"definite_5xx": frozenset({503})}, "definite_5xx is for HTTP"),
        ({"replay_headers": frozenset({"x"})}, "a function has no headers"),
        ({"on_unprotected": "mark"}, r"a function runs protected or not at all; call .unprotected\(...\) to run it"),
        ({"lease_second": 1}, "did you mean 'lease_seconds'"),
        ({"policy": Policy(), "effects": "external"}, "give either a policy or its options"),
        ({"policy": {}}, "policy must be a Policy; it is dict"),
    ],
)
def test_a_wrong_policy_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        declare(charge, **options)


def test_a_declaration_needs_an_engine_and_a_name() -> None:
    with pytest.raises(ConfigurationError, match="a command needs a name"):
        command(ENGINE, "", **GIVEN)
    with pytest.raises(
        ConfigurationError, match="pay: the engine comes first, or a function that returns it; it is str"
    ):
        command("memory://", "pay", **GIVEN)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        command(ENGINE)  # type: ignore[call-overload]


def test_one_name_belongs_to_one_function_of_an_engine() -> None:
    declare(charge, name="taken")
    declare(charge, name="taken")  # the same one again, as a reload does

    def other(order: dict[str, Any]) -> str:
        return ""

    with pytest.raises(
        ConfigurationError, match=r"two functions are named 'taken', .*charge and .*other: their keys would"
    ):
        declare(other, name="taken")
    declare(other, Engine.connect("memory://"), name="taken")


def test_a_command_is_not_declared_twice() -> None:
    with pytest.raises(ConfigurationError, match="charge is a command already"):
        declare(declare(charge, name="twice"), name="thrice")


def test_a_declared_key_excludes_with_key() -> None:
    with pytest.raises(
        ConfigurationError, match=r"the key of charge is declared \(key='order.id'\); a command has one way"
    ):
        declare(charge).with_key("k")


# --- what it looks like ---

once = declare(charge, name="looks")
later = declare(charge_later, LOOP, name="looks")


def test_a_command_has_the_name_and_signature_of_its_function() -> None:
    assert isinstance(once, Once)
    assert isinstance(later, AsyncOnce)
    declared: Any
    for declared, function in ((once, charge), (later, charge_later)):
        assert (declared.__name__, declared.__module__, declared.__wrapped__) == (function.__name__, __name__, function)
        assert inspect.signature(declared) == inspect.signature(function)
        assert (declared.operation, declared.policy) == ("looks", Policy())
    assert repr(once) == "<command 'looks': charge>"
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        once.nope  # type: ignore[attr-defined]  # noqa: B018 - it is the access that fails


def test_async_and_plain_functions_are_distinguished() -> None:
    tell: Callable[[Any], bool] = inspect.iscoroutinefunction
    assert tell(later.__call__)
    assert tell(later)  # Dramatiq asks so: an actor that it does not await has run nothing, and is acknowledged
    assert not tell(once.__call__)
    assert not tell(once)


def test_callers_cannot_pass_the_permit() -> None:
    def by_annotation(permit: Permit, order: str) -> str:
        return order

    def by_default(order: str, permit: Any = this_permit) -> str:
        return order

    def optional(order: str, *, permit: Permit | None = None) -> str:
        return order

    for function in (by_annotation, by_default, optional):
        assert permit_names(function) == ("permit",)
        declared = declare(function, Engine.connect("memory://"), key="order")
        assert list(inspect.signature(declared).parameters) == ["order"]


def rename(order: str) -> str:
    return order


pickled = declare(rename, name="pickled", key="order")
rename = pickled


def test_a_command_can_be_pickled_for_a_process_pool() -> None:
    assert pickle.loads(pickle.dumps(pickled)) is pickled
