"""One open, unknown or successful operation has a business reference, even after its key is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel import Answer, NothingHappened, Policy
from semel.core.identity import uuid_bytes
from semel.core.model import InProgress, NotReplayable, OutcomeUnknown, ReferenceTaken, Resolution, State
from semel.core.outcomes import Unprovable
from semel.engine.result import Result
from semel.errors import (
    ConfigurationError,
    InProgressError,
    NotReplayableError,
    OutcomeUnknownError,
    PolicyError,
    ReferenceTakenError,
)
from semel.operations.flow import claim_one, lapse, purge_operations, resolve
from semel.operations.references import reference_id
from semel.retention.flow import Walked, rest_seconds
from semel.retention.worker import Reaper
from semel.testing.attempts import bits
from tests.engine.drivers import memory
from tests.engine.shells import MADE, Shell
from tests.operations.worlds import EXTERNAL, KINDS, SCOPE, Cashier, World, each, paying, policy, world

__all__ = ["each", "policy", "world"]
SERVERS = [kind for kind in KINDS if not kind.startswith("sqlite")]
REF = reference_id(SCOPE.tenant, SCOPE.operation, "inv-1")


def test_another_key_with_a_used_reference_is_not_replayable(world: World, policy: Policy) -> None:
    shell, other, cashier = world.shell(), world.shell(), Cashier()
    first = shell.run(paying("a", policy=policy), cashier)
    assert other.run(paying("a", policy=policy), cashier) == Result(MADE, True, first.operation_id)
    met = other.claim(paying("b", request=1, policy=policy))
    id = uuid_bytes(first.operation_id)
    assert met == NotReplayable(id or b"", "charge", "ch-1")
    with pytest.raises(NotReplayableError):
        shell.run(paying("b", policy=policy), cashier)
    assert len(cashier.ran) == 1
    assert shell.row(paying("b")) is None  # nothing of the refused attempt remains: its key is new
    assert world.states() == [(State.SUCCEEDED, True)]


def test_another_reference_another_operation_and_another_tenant_are_free(each: World) -> None:
    shell, cashier = each.shell(), Cashier()
    shell.run(paying("a"), cashier)
    shell.run(paying("b", "inv-2"), cashier)
    shell.run(paying("c", None), cashier)
    assert len(cashier.ran) == 3
    assert len(each.states()) == 2  # what declares nothing has no row


def test_another_caller_of_the_tenant_learns_only_that_the_reference_is_taken(each: World) -> None:
    shell, cashier = each.shell(), Cashier()
    permit = shell.permit(paying("a"))
    assert shell.claim(paying("a", caller="bob"), wait_seconds=5) == ReferenceTaken()  # at once
    shell.settle(permit)
    assert shell.claim(paying("a", caller="bob")) == ReferenceTaken()
    with pytest.raises(ReferenceTakenError, match="nothing was done") as refused:
        shell.run(paying("b", caller="bob"), cashier)
    assert refused.value.operation_id is None
    shell.settle(shell.permit(paying("c", "inv-2")), Unprovable("died"))
    assert shell.claim(paying("d", "inv-2", caller="bob")) == ReferenceTaken()
    assert cashier.ran == []


def test_references_may_be_each_callers_own(each: World) -> None:
    shell, cashier, own = each.shell(), Cashier(), Policy(reference_scope="caller")
    first = shell.run(paying("a", policy=own), cashier)
    second = shell.run(paying("a", caller="bob", policy=own), cashier)
    assert len(cashier.ran) == 2
    for caller, done, resource in (("alice", first, "ch-1"), ("bob", second, "ch-2")):
        met = shell.claim(paying("b", caller=caller, policy=own))
        assert met == NotReplayable(uuid_bytes(done.operation_id) or b"", "charge", resource)
    shell.run(paying("c"), cashier)  # the tenant's is another one
    assert len(cashier.ran) == 3


def test_an_unknown_scope_of_references_is_refused() -> None:
    with pytest.raises(PolicyError, match="reference_scope must be 'tenant' or 'caller'; it is 'world'"):
        Policy(reference_scope="world")  # type: ignore[arg-type]


def test_another_key_with_the_reference_is_refused_while_the_command_runs(each: World) -> None:
    shell, other = each.shell(), each.shell()
    permit = shell.permit(paying("a"))
    assert other.claim(paying("b")) == InProgress(permit.grant.operation_id, permit.claim.terms.lease_us)
    with pytest.raises(InProgressError):
        other.run(paying("b"), Cashier())
    shell.settle(permit)
    assert isinstance(other.claim(paying("b")), NotReplayable)


@pytest.mark.parametrize("world", SERVERS, indirect=True)  # a file has one unit at a time: another waits for its gate
def test_while_an_atomic_unit_runs_another_key_is_refused_at_once(world: World) -> None:
    atomic = Policy(effects="atomic")
    shell, other = world.shell(), world.shell()
    permit = shell.permit(paying("a", policy=atomic))
    assert isinstance(other.claim(paying("b", policy=atomic)), InProgress)
    shell.settle(permit)
    assert isinstance(other.claim(paying("b", policy=atomic)), NotReplayable)


def test_did_not_happen_frees_the_reference(each: World, policy: Policy) -> None:
    shell, cashier = each.shell(), Cashier()
    with pytest.raises(NothingHappened):
        shell.run(paying("a", policy=policy), Cashier(error=NothingHappened("refused before")))
    shell.run(paying("b", policy=policy), cashier)
    assert len(cashier.ran) == 1
    assert isinstance(shell.claim(paying("a", policy=policy)), NotReplayable)  # now the first key may not run either


def test_a_definite_refusal_frees_the_reference_and_is_replayed_to_its_own_key(world: World, policy: Policy) -> None:
    shell, cashier = world.shell(), Cashier()
    refused = Answer(409, (), b"out of stock")
    assert shell.run(paying("a", policy=policy), Cashier(refused)).answer == refused
    assert world.states() == [(State.FAILED_REPLAYABLE, False)]
    shell.run(paying("b", policy=policy), cashier)
    assert shell.run(paying("a", policy=policy), cashier).answer == refused
    assert len(cashier.ran) == 1


def test_an_unknown_outcome_keeps_the_reference_until_it_is_settled(each: World) -> None:
    shell, cashier = each.shell(), Cashier()
    with pytest.raises(TimeoutError):
        shell.run(paying("a"), Cashier(error=TimeoutError()))
    assert each.states() == [(State.UNKNOWN, True)]
    with pytest.raises(OutcomeUnknownError):
        shell.run(paying("b"), cashier)
    row = shell.row(paying("a"))
    assert row is not None
    assert isinstance(shell.claim(paying("b")), OutcomeUnknown)
    resolution = Resolution(row.id, row.fence, False, None, "olga", "no charge", forced=True)
    shell.perform("resolve", lambda: resolve(shell.engine.store, resolution))
    assert each.states() == [(State.FAILED_NOT_REPLAYABLE, False)]
    shell.run(paying("b"), cashier)
    assert len(cashier.ran) == 1


def test_a_lapsed_holder_is_unknown_before_and_after_the_reaper_looks(each: World) -> None:
    shell, other = each.shell(), each.shell()
    permit = shell.permit(paying("a"))
    each.clock.advance(seconds=31)
    met = other.claim(paying("b"))
    assert met == OutcomeUnknown(permit.grant.operation_id, "lapsed")
    assert len(other.perform("lapse", lambda: lapse(other.engine.store, 10))) == 1
    assert each.states() == [(State.UNKNOWN, True)]
    assert other.claim(paying("b")) == met
    shell.settle(permit)  # its holder lived after all
    assert isinstance(other.claim(paying("b")), NotReplayable)


def test_a_reference_protects_after_the_key_has_expired_and_is_forgotten(each: World) -> None:
    shell, cashier = each.shell(), Cashier()
    new = Policy(answer_seconds=60, tombstone_seconds=120, after_expiry="new")
    first = shell.run(paying("a", policy=new), cashier)
    each.clock.advance(seconds=61)
    assert isinstance(shell.claim(paying("a", policy=new)), NotReplayable)  # the key would be new, the reference is not
    each.clock.advance(seconds=1000)
    shell.perform("purge", lambda: shell.engine.store.purge(None, 100))
    assert shell.row(paying("a")) is None
    met = shell.claim(paying("a", policy=new))
    assert met == NotReplayable(uuid_bytes(first.operation_id) or b"", "charge", "ch-1")
    record, operation = each.find(shell, ref_id=REF)
    assert record is None
    assert operation is not None
    assert operation[2:10] == ("acme", "alice", "pay", "inv-1", State.SUCCEEDED, "charge", "ch-1", None)


def test_operations_are_deleted_after_their_own_retention_in_chunks(each: World) -> None:
    shell, cashier = each.shell(), Cashier()
    kept = Policy(answer_seconds=60, tombstone_seconds=120, operation_seconds=3600)
    for number in range(5):
        shell.run(paying(f"k{number}", f"inv-{number}", kept), cashier)
    permit = shell.permit(paying("open", "inv-open", kept))
    runs = shell.engine._performer.drive
    each.clock.advance(seconds=3599)
    assert shell._end(runs(purge_operations(shell.engine.store, 2))).forgotten == 0
    each.clock.advance(seconds=1000)
    done = shell._end(runs(purge_operations(shell.engine.store, 2)))
    assert (done.scanned, done.forgotten) == (6, 5)
    assert each.states() == [(State.PROCESSING, True)]
    shell.settle(permit)


def test_the_reaper_deletes_operations_and_rests_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote: list[tuple[int, float]] = []

    def rest(done: Walked, took: float) -> float:
        wrote.append((done.forgotten, rest_seconds(done, 0.25)))
        return 0

    monkeypatch.setattr("semel.retention.worker.rest_seconds", rest)
    world = World("sqlite-async", tmp_path)
    world.prepare()
    shell = world.shell()
    kept = Policy(answer_seconds=60, tombstone_seconds=120, operation_seconds=3600)
    for number in range(5):
        shell.run(paying(f"k{number}", f"inv-{number}", kept), Cashier())
    world.clock.advance(seconds=5000)
    shell._end(Reaper(shell.engine).purge(2))
    assert world.states() == []
    assert sum(forgotten for forgotten, _ in wrote) == 10  # the records, and their operations
    assert [seconds for forgotten, seconds in wrote if forgotten] == [0.25] * 6
    world.close()


def test_a_claim_repeated_by_its_nonce_is_granted_again(each: World) -> None:
    shell = each.shell()
    what = paying("a")
    claim = shell.engine.core.attempt(what)
    first = shell._end(shell.engine._performer.drive(claim_one(shell.engine.store, claim, None)))
    again = shell._end(shell.engine._performer.drive(claim_one(shell.engine.store, claim, None)))
    assert first.grant == again.grant
    assert each.states() == [(State.PROCESSING, True)]


def test_a_released_claim_frees_the_reference(each: World) -> None:
    shell, cashier = each.shell(), Cashier()
    claim = shell.engine.core.attempt(paying("a"))
    shell._end(shell.engine._performer.drive(claim_one(shell.engine.store, claim, None)))
    shell.engine._upkeep._abandoned.add(claim)
    nonces = shell.engine._upkeep._abandoned.batch()
    shell.perform("abandon", shell.engine._upkeep._abandoned.release(shell.engine.store, nonces))
    assert each.states() == [(State.FAILED_NOT_REPLAYABLE, False)]
    shell.run(paying("b"), cashier)
    assert len(cashier.ran) == 1


def test_a_settlement_that_missed_the_operation_is_repaired(each: World) -> None:
    """By a process of an older version, say: the record tells, and the row is mended on the way."""
    shell, cashier = each.shell(), Cashier()
    permit = shell.permit(paying("a"))
    nonce = (permit.grant.id, permit.grant.nonce)
    shell.perform("abandon", lambda: shell.engine.store.abandon((nonce,)))
    assert each.states() == [(State.PROCESSING, True)]
    shell.run(paying("b"), cashier)
    assert each.states() == [(State.FAILED_NOT_REPLAYABLE, False), (State.SUCCEEDED, True)]


def test_a_store_without_sql_refuses_references() -> None:
    shell = Shell("sync", memory())
    shell.open()
    with pytest.raises(ConfigurationError, match="need a SQL database"):
        shell.claim(paying("a"))
    shell.close()


@pytest.mark.parametrize("ref", ["", "x" * 256, "a\x00b", "a\nb", "\ud800", 7])
def test_an_invalid_reference_is_refused(ref: object) -> None:
    with pytest.raises(PolicyError, match="business_ref must be 1 to 255 printable characters"):
        paying("a", ref)  # type: ignore[arg-type]


def test_an_operation_must_outlive_its_key() -> None:
    with pytest.raises(PolicyError, match=r"operation_seconds \(60\) must not be shorter than tombstone_seconds"):
        Policy(operation_seconds=60)
    with pytest.raises(PolicyError, match="operation_seconds must be a number"):
        Policy(operation_seconds="long")  # type: ignore[arg-type]


def test_references_are_names_within_tenant_and_operation() -> None:
    seen = {
        reference_id("t", "op", "r"),
        reference_id("t", "opr", ""),
        reference_id("to", "p", "r"),
        reference_id("t", "op", "r", bits("secret", 0)),
    }
    assert len(seen) == 4
    assert EXTERNAL.operation_seconds is None
