"""An answer that no store could keep: the error names the field, and the outcome is on record at once."""

from __future__ import annotations

from typing import Any

import pytest

from semel import Answer, Policy
from semel.core.outcomes import Refused
from semel.errors import OutcomeUnknownError
from tests.engine.shells import MADE, Shell, command

MISMADE: list[tuple[Any, str]] = [
    (("201", (), b""), r"Answer\.status must be a number .*not str"),
    ((201, (), "made"), r"Answer\.body must be bytes.*not str"),
    ((201, (), None), r"Answer\.body must be bytes.*not NoneType"),
    ((201, (("location", "/orders/1"),), b""), r"Answer\.headers must be pairs of bytes"),
    ((201, {"location": "/orders/1"}, b""), r"Answer\.headers must be pairs of bytes"),
    ((201, (b"location",), b""), r"Answer\.headers must be pairs of bytes"),
]


@pytest.mark.parametrize(("parts", "message"), MISMADE)
@pytest.mark.parametrize("is_refusal", [False, True])
def test_a_mismade_answer_names_its_field_and_leaves_no_command_running(
    shell: Shell, parts: Any, message: str, is_refusal: bool
) -> None:
    answer: Any = Refused(Answer(*parts)) if is_refusal else Answer(*parts)
    with pytest.raises(TypeError, match=message):
        shell.run(command(), lambda permit: answer)
    with pytest.raises(OutcomeUnknownError):
        shell.run(command(), lambda permit: MADE)


def test_a_mismade_answer_of_an_idempotent_command_may_be_tried_again(shell: Shell) -> None:
    what = command(policy=Policy(effects="idempotent"))
    mismade: Any = Answer(201, (), "made")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="body"):
        shell.run(what, lambda permit: mismade)
    assert shell.run(what, lambda permit: MADE).answer == MADE


@pytest.mark.parametrize("body", [bytearray(b"made"), memoryview(b"made")])
def test_other_buffers_are_bodies_too(shell: Shell, body: Any) -> None:
    shell.run(command(), lambda permit: Answer(201, [(b"a", b"b")], body))  # type: ignore[arg-type]
    assert bytes(shell.run(command(), lambda permit: MADE).answer.body) == b"made"
