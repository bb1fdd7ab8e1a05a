"""What happens to an operation with steps without its holder: operators who find out, and time."""

from __future__ import annotations

from collections.abc import Iterator

from semel.core.model import ANSWERED_STATES, Resolution, Resolved, State
from semel.steps.rules import unpack_steps
from verification.explore import step_rows, store
from verification.explore.notebook import note_write
from verification.explore.steps import Step as Taken
from verification.explore.steps import time_passes
from verification.explore.world import DEDUP, RESULT, Account, Mode, World


def step_operator(world: World, mode: Mode) -> Iterator[Taken]:
    """Settle the step in doubt: it did not happen, it has this result, or the rest was done."""
    row = world.row
    if row is None or not world.left.resolutions or row.state not in (State.UNKNOWN, State.PROCESSING):
        return
    place = next((n for n, part in enumerate(mode.script) if row.doubt == f"step:{part.name}"), None)
    if place is None:
        return
    part, account = mode.script[place], world.accounts[place]
    resolution = Resolution(
        row.id, row.fence, bool(account.effects), None, "olga", "asked the provider", step=part.name
    )
    if mode.habits.operator_guesses:
        resolution = resolution._replace(happened=not resolution.happened)
    world = world._replace(left=world.left._replace(resolutions=world.left.resolutions - 1))
    if not resolution.happened:
        unopened = with_account(world, place, account._replace(open=0))
        yield from _resolve(world, resolution, f"{part.name} did not happen", unopened)
        return
    yield from _resolve(world, resolution._replace(result=RESULT), f"{part.name} happened", world)
    answer = store.answer_by(int.from_bytes(row.nonce))
    whole = world._replace(spec=world.spec._replace(effects=1))
    yield from _resolve(world, resolution._replace(answer=answer), "all of it was done by hand", whole)


def _resolve(world: World, resolution: Resolution, what: str, then: World) -> Iterator[Taken]:
    assert world.row is not None
    reply, row, steps = step_rows.resolve(world.row, world.steps, world.now, resolution)
    if isinstance(reply, Resolved):
        after = note_write(then, row, operator=True)._replace(steps=steps)
        yield f"an operator settles that {what}: {State(reply.state).name}", after


def step_time(world: World) -> Iterator[Taken]:
    """As without steps, and to the moments at which a downstream may have forgotten a step's derived key.

    Once it is answered, retention is all that passes: that is explored without steps.
    """
    row = world.row
    if row is not None and row.state in ANSWERED_STATES:
        return
    if row is None or world.steps is None:
        yield from time_passes(world)
        return
    open = [step for step in unpack_steps(world.steps, row.generation) if step.repeatable and not step.finished]
    yield from time_passes(world, [step.started_at + DEDUP for step in open])


def with_account(world: World, part: int, account: Account) -> World:
    """The world with another account of one step."""
    accounts = list(world.accounts)
    accounts[part] = account
    return world._replace(accounts=tuple(accounts))
