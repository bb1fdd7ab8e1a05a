"""The policy and command options that handlers with steps need, and those of resumable operations."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from semel.core.model import Effects
from semel.errors import PolicyError, RequestTooLarge

REQUEST_BYTES_MAX: Final = 1024 * 1024  # of a resumable operation's request, kept until there is an outcome


class Resumed(NamedTuple):
    """Identifies the record that a command without its client continues: its key is unknown."""

    id: bytes
    key_hash: bytes
    operation_id: bytes


class Options(Protocol):
    """The options of a policy that this module reads."""

    @property
    def steps(self) -> bool: ...

    @property
    def resumable(self) -> bool: ...

    @property
    def attempts_max(self) -> int: ...

    @property
    def marks_effects(self) -> bool: ...

    @property
    def on_error(self) -> str: ...

    @property
    def on_unprotected(self) -> str: ...


def check_steps(policy: Options, effects: Effects) -> None:
    """Raise PolicyError where options exclude steps; the message names the remedy."""
    if policy.resumable and not policy.steps:
        raise PolicyError(
            "resumable=True needs steps=True: only a handler whose every effect is inside a step can be brought to its "
            "end without its client"
        )
    if policy.resumable and policy.attempts_max < 2:
        raise PolicyError(
            "resumable=True needs attempts_max of at least 2: the first attempt is the client's, and no other would be "
            "made without it"
        )
    if not policy.steps:
        return
    if effects is not Effects.EXTERNAL:
        raise PolicyError(
            f"steps=True is for effects='external', which it refines; {effects.name.lower()} commands need no steps"
        )
    if policy.marks_effects:
        raise PolicyError("marks_effects means nothing with steps=True: each step marks its own beginning")
    if policy.on_error == "replay":
        raise PolicyError("on_error='replay' is impossible with steps=True: after an error the next run continues")
    if policy.on_unprotected == "mark":
        raise PolicyError("on_unprotected='mark' is impossible with steps=True: a step is recorded before it begins")


def check_request(policy: Options, request: object, resumed: Resumed | None) -> None:
    """Raise PolicyError for a missing or superfluous stored request, RequestTooLarge for a large one."""
    if not policy.resumable:
        raise PolicyError("a command's request is kept for resumable operations only: declare Policy(resumable=True)")
    if resumed is not None:
        return  # the record has it already
    if not isinstance(request, bytes):
        raise PolicyError(
            "a command of a resumable operation needs its request as bytes, for a run without its client: "
            "Command(..., request=b'...')"
        )
    if len(request) > REQUEST_BYTES_MAX:
        raise RequestTooLarge(
            f"The request has {len(request)} bytes with its head, and at most {REQUEST_BYTES_MAX} can be stored for a "
            "run without its client; send a smaller body, and pass large data by reference."
        )
