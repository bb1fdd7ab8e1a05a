"""Maintenance of records: lapses, retention, the purge, pages for operators."""

from __future__ import annotations

from functools import partial

from semel.core.contract import DoctorFinding, Restorable
from semel.core.model import AnswerKind, Find, KeyExpired, OutcomeUnknown, Proceed, Purged, Record, State
from semel.core.timing import PURGE_GRACE_US
from semel.errors import StatementRefused
from semel.policy import Policy
from semel.testing.attempts import EXTERNAL, IDEMPOTENT, attempt, scope
from semel.testing.bench import Bench
from semel.testing.cases.claims import DAY_US, LEASE_US


def a_lapse_makes_the_unknown_visible(bench: Bench) -> None:
    """EXTERNAL and ATOMIC lapse at the lease's end, not a microsecond before; the fence stays the holder's."""
    external = bench.grant(attempt("e"))
    bench.grant(attempt("a", policy=Policy(effects="atomic")))
    bench.grant(attempt("i", policy=IDEMPOTENT))
    bench.grant(attempt("c", starts=State.CLAIMED))
    bench.clock.advance(LEASE_US - 1)
    assert bench.lapse() == []
    bench.clock.advance(1)
    marked = bench.lapse()
    assert {row.id: row.doubt for row in marked} == {attempt("e").id: "lapsed", attempt("a").id: "committed-early"}
    assert bench.lapse() == []
    assert (bench.row(external.id).fence, bench.row(external.id).state) == (external.fence, State.UNKNOWN)
    assert bench.claim(attempt("e", nonce=2)) == OutcomeUnknown(external.operation_id, "lapsed")
    assert isinstance(bench.claim(attempt("i", nonce=2, policy=IDEMPOTENT)), Proceed)
    assert isinstance(bench.claim(attempt("c", nonce=2)), Proceed)


def a_lapse_marks_idempotent_commands_only_past_their_bounds(bench: Bench) -> None:
    """It marks them past dedup_for or attempts_max, as an attempt would. A released lease does not count as a crash."""
    short = Policy(effects="idempotent", dedup_for_seconds=40)
    once = Policy(effects="idempotent", attempts_max=1)
    bench.grant(attempt("dedup", policy=short))
    bench.grant(attempt("poison", policy=once))
    bench.settle(bench.grant(attempt("given back", policy=once)), State.PROCESSING)
    assert bench.lapse() == []
    bench.clock.advance(LEASE_US)
    assert [(row.id, row.doubt) for row in bench.lapse()] == [(attempt("poison").id, "attempts-over")]
    bench.clock.advance(LEASE_US)
    assert [(row.id, row.doubt) for row in bench.lapse()] == [(attempt("dedup").id, "dedup-over")]


def a_lapse_marks_a_reservation_whose_lease_was_given_back(bench: Bench) -> None:
    """A CLAIMED record that was released as PROCESSING lapses like any other."""
    short = Policy(effects="idempotent", dedup_for_seconds=40)
    bench.settle(bench.grant(attempt(policy=short, starts=State.CLAIMED)), State.PROCESSING)
    assert bench.lapse() == []
    bench.clock.advance(2 * LEASE_US)
    assert [(row.state, row.doubt) for row in bench.lapse()] == [(State.UNKNOWN, "dedup-over")]


def a_lapse_takes_the_oldest_leases_first(bench: Bench) -> None:
    """Each round takes up to a limit, oldest lease first."""
    ids = []
    for number in range(5):
        ids.append(bench.grant(attempt(str(number))).id)
        bench.clock.advance(1)
    bench.clock.advance(LEASE_US)
    assert [[row.id for row in bench.lapse(2)] for _ in range(4)] == [ids[:2], ids[2:4], ids[4:], []]


def retention_starts_at_settlement(bench: Bench) -> None:
    """The answer is kept for its whole retention, however long the command ran."""
    grant = bench.grant()
    bench.clock.advance(3 * DAY_US)
    bench.settle(grant)
    bench.clock.advance(DAY_US - 1)
    assert bench.purge() == (0, 0)
    assert not isinstance(bench.claim(attempt(nonce=2)), KeyExpired)
    bench.clock.advance(1)
    assert bench.claim(attempt(nonce=2)) == KeyExpired(grant.operation_id)


def an_answer_goes_before_its_tombstone(bench: Bench) -> None:
    """Both go ten minutes late, so that a clock set back does not miss a record that should still exist."""
    grant = bench.grant()
    bench.settle(grant)
    settled = bench.clock()
    bench.clock.set(settled + DAY_US + PURGE_GRACE_US - 1)
    assert bench.purge() == (0, 0)
    bench.clock.advance(1)
    assert bench.purge() == (1, 0)
    assert bench.purge() == (0, 0)
    row = bench.row()
    assert (row.body, row.headers, row.answer_kind) == (None, None, AnswerKind.NOT_KEPT)
    assert (row.state, row.fingerprint, row.status) == (State.SUCCEEDED, attempt().fingerprint, 201)
    assert bench.claim(attempt(nonce=2)) == KeyExpired(grant.operation_id)
    bench.clock.set(settled + 30 * DAY_US + PURGE_GRACE_US - 1)
    assert bench.purge() == (0, 0)
    bench.clock.advance(1)
    assert bench.purge() == (0, 1)
    assert bench.do(lambda: bench.store.read((grant.id,))) == [None]
    assert bench.do(lambda: bench.store.read_operations((grant.operation_id,))) == [None]
    assert isinstance(bench.claim(attempt(nonce=2)), Proceed)


def what_is_open_or_unknown_is_never_forgotten(bench: Bench) -> None:
    """CLAIMED, PROCESSING and UNKNOWN records and released leases stay, however old."""
    bench.grant(attempt("claimed", starts=State.CLAIMED))
    bench.grant(attempt("processing"))
    bench.settle(bench.grant(attempt("unknown")), State.UNKNOWN)
    bench.settle(bench.grant(attempt("given back", policy=IDEMPOTENT)), State.PROCESSING)
    bench.clock.advance(4000 * DAY_US)
    assert bench.purge() == (0, 0)
    assert sum(bench.do(bench.store.counts).values()) == 4


def a_key_reopened_is_not_forgotten_by_its_old_clock(bench: Bench) -> None:
    """A released record that is granted again is open: its former expiry no longer counts."""
    bench.settle(bench.grant(), State.FAILED_NOT_REPLAYABLE)
    bench.clock.advance(29 * DAY_US)
    bench.grant(attempt(nonce=2))
    bench.clock.advance(DAY_US + PURGE_GRACE_US)
    assert bench.purge() == (0, 0)
    assert bench.row().state == State.PROCESSING


def a_purge_walks_in_chunks(bench: Bench) -> None:
    """Each chunk returns its position; the last one reports the end."""
    for number in range(5):
        bench.settle(bench.grant(attempt(str(number))))
    bench.clock.advance(31 * DAY_US)
    first = bench.do(lambda: bench.store.purge(None, 2))
    assert (first.scanned, first.answers_dropped, first.forgotten) == (2, 0, 2)
    second = bench.do(lambda: bench.store.purge(first.next_after, 2))
    assert second.forgotten == 2
    assert bench.do(lambda: bench.store.purge(second.next_after, 2)) == Purged(1, 0, 1, None)
    assert bench.do(bench.store.counts) == {}


def pages_are_found_newest_first(bench: Bench) -> None:
    """Pages repeat and miss no record, and leave out bodies."""
    for number in range(5):
        bench.settle(bench.grant(attempt(str(number))))
        bench.clock.advance(1)
    pages: list[list[bytes]] = []
    before: int | None = None
    while True:
        query = Find(limit=2, before=before)
        found = bench.do(partial(bench.store.find, query))
        assert all((row.body, row.headers, row.request) == (None, None, None) for row in found.records)
        assert found.now == bench.clock()
        pages.append([row.id for row in found.records])
        before = found.next_before
        if before is None:
            break
    ids = [attempt(str(number)).id for number in (4, 3, 2, 1, 0)]
    assert pages == [ids[:2], ids[2:4], ids[4:]]


def pages_are_found_by_what_is_asked(bench: Bench) -> None:
    """By states, tenant, caller, operation, lapsed leases, alone and together; a full last page has no next."""
    bench.grant(attempt("1", within=scope(tenant="a")))
    bench.settle(bench.grant(attempt("2", within=scope(tenant="a", caller="bob"))))
    bench.settle(bench.grant(attempt("3", within=scope("refund", tenant="b"))), State.UNKNOWN)
    bench.grant(attempt("4", within=scope("refund", tenant="b"), policy=Policy(lease_seconds=60)))
    bench.clock.advance(LEASE_US)
    names = {attempt(n, within=w).id: n for n in "1234" for w in (scope(tenant="a"), scope(tenant="a", caller="bob"))}
    names |= {attempt(n, within=scope("refund", tenant="b")).id: n for n in "34"}

    def find_ids(**asked: object) -> str:
        page = bench.do(lambda: bench.store.find(Find(**asked)))  # type: ignore[arg-type]
        assert page.next_before is None
        return "".join(names[row.id] for row in page.records)

    assert find_ids() == "4321"
    assert find_ids(limit=4) == "4321"
    assert find_ids(looks=4) == "4321"  # so does a look that ends with the last record
    assert find_ids(states=(State.PROCESSING,)) == "41"
    assert find_ids(states=(State.SUCCEEDED,)) == "2"
    assert find_ids(states=(State.SUCCEEDED, State.UNKNOWN)) == "32"
    assert find_ids(states=(State.FAILED_REPLAYABLE,)) == ""
    assert find_ids(tenant="a") == "21"
    assert find_ids(tenant="a", caller="alice") == "1"
    assert find_ids(operation="refund") == "43"
    assert find_ids(operation="refund", states=(State.UNKNOWN,)) == "3"
    assert find_ids(lapsed=True) == "1"
    assert find_ids(lapsed=True, states=(State.PROCESSING, State.UNKNOWN)) == "1"
    assert find_ids(states=(State.UNKNOWN,), attention=True) == "3"
    needing = find_ids(states=(State.CLAIMED, State.PROCESSING, State.UNKNOWN), attention=True)
    assert needing in ("431", "43", "31", "3")  # a list may lack young open records
    assert find_ids(tenant="nobody") == ""


def pages_that_look_at_few_records_lead_to_all(bench: Bench) -> None:
    """However few records a page looks at, the pages together return each match once, newest first."""
    ends = (State.UNKNOWN, State.SUCCEEDED, State.UNKNOWN, State.UNKNOWN, State.FAILED_REPLAYABLE, State.UNKNOWN)
    ids = []
    for number, state in enumerate(ends):
        claimed = bench.grant(attempt(str(number)))
        bench.settle(claimed, state)
        bench.clock.advance(1)
        ids.append(claimed.id)
    bench.grant(attempt("open"))
    unknown = [id for id, state in zip(ids, ends, strict=True) if state is State.UNKNOWN][::-1]
    for looks in range(1, 9):
        for query in (Find(states=(State.UNKNOWN,)), Find(states=(State.UNKNOWN,), operation=scope().operation)):
            seen: list[bytes] = []
            asked = query._replace(limit=2, looks=looks)
            for _ in range(50):
                found = bench.do(partial(bench.store.find, asked))
                seen += [row.id for row in found.records]
                if found.next_before is None:
                    break
                assert asked.before is None or found.next_before < asked.before  # each page continues
                asked = asked._replace(before=found.next_before)
            assert seen == unknown


def records_are_read_in_the_order_asked(bench: Bench) -> None:
    """By id and by operation id; None for missing ones; an id given twice is answered twice."""
    a, b = bench.grant(attempt("a")), bench.grant(attempt("b"))
    rows = bench.do(lambda: bench.store.read((b.id, bytes(16), a.id, b.id)))
    assert [None if row is None else row.id for row in rows] == [b.id, None, a.id, b.id]
    operations = bench.do(lambda: bench.store.read_operations((b.operation_id, bytes(16), a.operation_id)))
    assert operations == [rows[0], None, rows[2]]


def states_are_counted(bench: Bench) -> None:
    """There is one number for each state that has records."""
    assert bench.do(bench.store.counts) == {}
    for number, state in enumerate((State.SUCCEEDED, State.SUCCEEDED, State.UNKNOWN)):
        bench.settle(bench.grant(attempt(str(number))), state)
    assert bench.do(bench.store.counts) == {int(State.SUCCEEDED): 2, int(State.UNKNOWN): 1}


def a_store_knows_who_it_is(bench: Bench) -> None:
    """The first migration gives it an identity; a second one changes nothing."""
    first = bench.do(bench.store.identity)
    assert first is not None
    assert (first.store_id, first.secret_check, first.epoch, first.id_format) == ("conformance", b"none", 1, 1)
    assert bench.do(lambda: bench.store.migrate("somebody else", b"other")) == []
    assert bench.do(bench.store.identity) == first


def every_field_of_a_record_has_its_own_place(bench: Bench) -> None:
    """No two columns are swapped: every way of reading returns the written values."""
    bench.settle(bench.grant(attempt(policy=EXTERNAL)))
    row = bench.row()
    [operation] = bench.do(lambda: bench.store.read_operations((row.operation_id,)))
    [listed] = bench.do(lambda: bench.store.find(Find())).records
    assert operation == row
    assert listed == row._replace(headers=None, body=None)
    assert len(row) == len(Record._fields)


def every_check_of_the_doctor_can_be_performed(bench: Bench) -> None:
    """Each check of a new store returns something; a quick look leaves out checks, and adds none."""
    thorough, quick = (bench.store.doctor(full=not quick, quick=quick) for quick in (False, True))
    for check in thorough:
        try:
            found = bench.do(check.look)
        except StatementRefused:
            assert check.refused is not None, check.name
            found = [check.refused]
        assert found, check.name
        assert all(isinstance(each, DoctorFinding) and each.check and each.detail for each in found)
    names = [check.name for check in thorough]
    assert len(set(names)) == len(names)
    assert [check.name for check in quick] == [name for name in names if name in {check.name for check in quick}]
    assert not any(check.is_slow for check in quick)


def a_migrated_store_misses_nothing(bench: Bench) -> None:
    """Every unversioned migration has run, too; the number of versioned ones is the identity's."""
    assert bench.do(bench.store.missing_additions) == []
    identity = bench.do(bench.store.identity)
    assert identity is not None
    if bench.store.migrations:
        assert identity.schema_version == len(bench.store.migrations)


def a_store_tells_its_time(bench: Bench) -> None:
    """It is the clock by which records are written; the store may be empty."""
    assert bench.do(bench.store.now) == bench.clock()
    grant = bench.grant()
    bench.clock.advance(seconds=1)
    now = bench.do(bench.store.now)
    assert (now - grant.created_at, now) == (1_000_000, bench.do(lambda: bench.store.find(Find())).now)


def a_restored_store_begins_a_new_epoch(bench: Bench) -> None:
    """Only a store that may lose records needs it; the store keeps its id and its remaining records."""
    store = bench.store
    before = bench.do(store.identity)
    assert before is not None
    if not isinstance(store, Restorable):
        return
    grant = bench.grant()
    bench.do(lambda: store.restore("another", before.secret_check))
    after = bench.do(store.identity)
    assert after is not None
    assert (after.store_id, after.epoch > before.epoch) == (before.store_id, True)
    assert bench.row(grant.id).fence == grant.fence


ALL = (
    a_lapse_makes_the_unknown_visible,
    a_lapse_marks_idempotent_commands_only_past_their_bounds,
    a_lapse_marks_a_reservation_whose_lease_was_given_back,
    a_lapse_takes_the_oldest_leases_first,
    retention_starts_at_settlement,
    an_answer_goes_before_its_tombstone,
    what_is_open_or_unknown_is_never_forgotten,
    a_key_reopened_is_not_forgotten_by_its_old_clock,
    a_purge_walks_in_chunks,
    pages_are_found_newest_first,
    pages_are_found_by_what_is_asked,
    pages_that_look_at_few_records_lead_to_all,
    records_are_read_in_the_order_asked,
    states_are_counted,
    a_store_knows_who_it_is,
    a_store_tells_its_time,
    every_field_of_a_record_has_its_own_place,
    every_check_of_the_doctor_can_be_performed,
    a_migrated_store_misses_nothing,
    a_restored_store_begins_a_new_epoch,
)
