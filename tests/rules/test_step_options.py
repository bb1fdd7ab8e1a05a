"""Which options go together with steps, whose request is kept, and how a sealed one is recognised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from semel.core.model import Effects
from semel.errors import ConfigurationError, PolicyError, RequestTooLarge
from semel.sealing.rules import MARK, open_request, seal_request, validate_sealer
from semel.steps.options import REQUEST_BYTES_MAX, Resumed, check_request, check_steps


@dataclass
class Given:
    steps: bool = True
    resumable: bool = False
    attempts_max: int = 5
    marks_effects: bool = False
    on_error: str = "unknown"
    on_unprotected: str = "refuse"


@pytest.mark.parametrize(
    "given",
    [Given(), Given(resumable=True, attempts_max=2), Given(attempts_max=1), Given(on_error="x", on_unprotected="x")],
)
def test_valid_step_options_are_accepted(given: Given) -> None:
    check_steps(given, Effects.EXTERNAL)


@pytest.mark.parametrize("effects", Effects)
def test_without_steps_the_options_are_not_checked(effects: Effects) -> None:
    check_steps(Given(False, False, 1, True, "replay", "mark"), effects)


@pytest.mark.parametrize(
    ("given", "effects", "told"),
    [
        (
            Given(steps=False, resumable=True),
            Effects.EXTERNAL,
            "resumable=True needs steps=True: only a handler whose every effect is inside a step can be brought to its "
            "end without its client",
        ),
        (
            Given(resumable=True, attempts_max=1),
            Effects.EXTERNAL,
            "resumable=True needs attempts_max of at least 2: the first attempt is the client's, and no other would be "
            "made without it",
        ),
        (
            Given(),
            Effects.ATOMIC,
            "steps=True is for effects='external', which it refines; atomic commands need no steps",
        ),
        (
            Given(),
            Effects.IDEMPOTENT,
            "steps=True is for effects='external', which it refines; idempotent commands need no steps",
        ),
        (
            Given(marks_effects=True),
            Effects.EXTERNAL,
            "marks_effects means nothing with steps=True: each step marks its own beginning",
        ),
        (
            Given(on_error="replay"),
            Effects.EXTERNAL,
            "on_error='replay' is impossible with steps=True: after an error the next run continues",
        ),
        (
            Given(on_unprotected="mark"),
            Effects.EXTERNAL,
            "on_unprotected='mark' is impossible with steps=True: a step is recorded before it begins",
        ),
    ],
)
def test_invalid_step_options_are_refused_with_the_remedy(given: Given, effects: Effects, told: str) -> None:
    with pytest.raises(PolicyError) as refused:
        check_steps(given, effects)
    assert str(refused.value) == told


def test_only_a_resumable_operation_stores_its_request() -> None:
    resumable = Given(resumable=True)
    check_request(resumable, b"x" * REQUEST_BYTES_MAX, None)
    check_request(resumable, None, Resumed(b"", b"", b""))  # the record has it already
    with pytest.raises(PolicyError, match=r"kept for resumable operations only: declare Policy\(resumable=True\)$"):
        check_request(Given(), b"x", None)
    for request in (None, "text"):
        with pytest.raises(
            PolicyError, match=r"needs its request as bytes, .*client: Command\(\.\.\., request=b'\.\.\.'\)$"
        ):
            check_request(resumable, request, None)
    with pytest.raises(
        RequestTooLarge,
        match=r"^The request has 1048577 bytes with its head, and at most 1048576 can be stored for a run without its "
        r"client; send a smaller body, and pass large data by reference\.$",
    ):
        check_request(resumable, b"x" * (REQUEST_BYTES_MAX + 1), None)


class Turning:
    """Seals by turning round."""

    def seal(self, text: bytes, about: bytes) -> bytes:
        return about + text[::-1]

    def open(self, kept: bytes, about: bytes) -> bytes:
        return kept.removeprefix(about)[::-1]


def test_a_request_is_sealed_where_there_is_a_sealer() -> None:
    assert seal_request(b"abc", b"id", Turning()) == b"idcba"
    assert open_request(b"idcba", b"id", Turning()) == b"abc"
    assert seal_request(b"abc", b"id", None) == open_request(b"abc", b"id", None) == b"abc"
    with pytest.raises(PolicyError, match=r"^a command's request must not begin with .*, which marks sealed ones$"):
        seal_request(MARK + b"abc", b"id", None)
    with pytest.raises(
        ConfigurationError, match=r"^a stored request is sealed: give the engine its sealer, Engine\.connect"
    ):
        open_request(MARK + b"abc", b"id", None)


@pytest.mark.parametrize("wrong", ["key", b"key", object(), {}])
def test_an_invalid_sealer_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"sealer must be a Sealer, .* it is of type {type(wrong).__name__}$"):
        validate_sealer(wrong)


def test_a_valid_sealer_is_accepted() -> None:
    turning = Turning()
    assert validate_sealer(turning) is turning
    assert validate_sealer(None) is None
    half: Any = type("Half", (), {"seal": lambda *_: b"", "open": 7})()
    with pytest.raises(ConfigurationError, match="Half"):
        validate_sealer(half)
