"""All checks by name, in order, and the function that runs them against one target."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

from semel.testing.idempotent.case import Case
from semel.testing.idempotent.checks.bulk import bulk_retry_does_not_rerun_finished_items
from semel.testing.idempotent.checks.callers import (
    no_replay_across_callers,
    stored_answer_never_reaches_the_wrong_caller,
)
from semel.testing.idempotent.checks.events import event_identity_stable_over_replay
from semel.testing.idempotent.checks.failures import expired_key, failure_after_the_effect, failure_before_the_effect
from semel.testing.idempotent.checks.requests import (
    concurrent_same_key_runs_once,
    first_request_runs,
    invalid_key_refused,
    missing_key_refused,
    other_payload_refused,
    same_key_and_payload_replays,
    timeout_then_retry_gives_the_final_result,
)
from semel.testing.idempotent.failing import movable
from semel.testing.idempotent.probe import Probe
from semel.testing.idempotent.report import NotGiven, NotTried, Report
from semel.testing.idempotent.targets.target import Target, target_of

Check = Callable[[Probe], Awaitable[None]]

CHECKS: Final[Mapping[str, Check]] = {
    check.__name__: check
    for check in (
        missing_key_refused,
        invalid_key_refused,
        first_request_runs,
        same_key_and_payload_replays,
        other_payload_refused,
        concurrent_same_key_runs_once,
        timeout_then_retry_gives_the_final_result,
        failure_before_the_effect,
        failure_after_the_effect,
        expired_key,
        no_replay_across_callers,
        stored_answer_never_reaches_the_wrong_caller,
        event_identity_stable_over_replay,
        bulk_retry_does_not_rerun_finished_items,
    )
}
"""The required tests by name. Each one's docstring says why it is required."""


async def run_checks(thing: Any, case: Case, names: Sequence[str], *, strict: bool) -> Report:
    """Run some checks against one target, one after the other.

    Parameters: ``strict``: an argument that a check misses is an error, not an entry under "not tried".

    Raises CannotRun if nothing can be tested, or a handler that fails at random would cause the findings;
    ConfigurationError for an invalid target or case.
    """
    target: Target = target_of(thing, case)
    engines = target.found.engines if target.found is not None else ()
    held: list[str] = []
    not_tried: list[NotTried] = []
    with ExitStack() as stack:
        probe = Probe(target, case, stack.enter_context(movable(engines)))
        await target.open()
        try:
            for name in names:
                count = len(probe.findings)
                try:
                    await CHECKS[name](probe)
                except NotGiven as error:
                    if strict:
                        raise
                    not_tried.append(NotTried(name, f"{error.reason}; {error.remedy}"))
                else:
                    if len(probe.findings) == count:
                        held.append(name)
            if probe.findings:
                await probe.check_determinism()
        finally:
            await target.close()
    return Report(
        target.name, case.name, tuple(held), tuple(probe.findings), tuple(not_tried), tuple(sorted(probe.remarks))
    )


def run_sync(make: Callable[[], Awaitable[Report]]) -> Report:
    """Run on a new event loop; in a new thread if a loop is running already."""

    async def main() -> Report:
        return await make()

    if not _loop_runs():
        return asyncio.run(main())
    with ThreadPoolExecutor(1, "semel-testing") as pool:
        return pool.submit(asyncio.run, main()).result()


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
