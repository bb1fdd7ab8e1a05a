"""Strawberry: a mutation's field is a command, called through schemas as clients call them, and over HTTP."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final, Literal

import flask
import pytest
import strawberry
from graphql import GraphQLError
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from strawberry.asgi import GraphQL
from strawberry.extensions import FieldExtension, MaskErrors
from strawberry.field_extensions import InputMutationExtension
from strawberry.permission import BasePermission, PermissionExtension
from strawberry.schema.config import StrawberryConfig

from semel import AsyncEngine, Engine, NothingHappened, Policy
from semel.errors import ConfigurationError, SemelError, StoreTimeout, StoreUnavailable
from semel.http.refused import RefusedCall
from semel.integrations.strawberry import Caller, Idempotent, permit_of, single_caller

Mode = Literal["sync", "async"]


@strawberry.type
class Query:
    version: int = 1


@strawberry.type
class Payment:
    number: int
    amount: int
    note: str | None

    @strawberry.field
    def doubled(self) -> int:
        return self.amount * 2

    @strawberry.field
    def broken(self) -> int:
        raise ValueError("this field never resolves")


@strawberry.type
class Declined:
    reason: str


@strawberry.input
class Details:
    note: str | None = strawberry.UNSET
    tags: list[str] = strawberry.field(default_factory=list)
    priority: strawberry.Maybe[int | None]


@strawberry.input
class Wish:
    amount: int


@strawberry.input(name="Wish")
class GrownWish:
    amount: int
    note: str | None = strawberry.UNSET
    tags: list[str] = strawberry.field(default_factory=list)


GrownWish.__qualname__ = "Wish"  # as the next release writes it


class Opaque:
    """Nothing that could be kept; Strawberry takes it as a scalar."""


class CardDeclined(Exception):
    """A definite refusal, with what its clients read of it."""

    extensions: Final = {"code": "CARD_DECLINED"}


class Shop:
    """A schema on an engine of either colour, what happened in it, and who is asking."""

    def __init__(self, mode: Mode, url: str = "memory://", **settings: Any) -> None:
        self.mode = mode
        self.engine: Any = (AsyncEngine if mode == "async" else Engine).connect(url)
        self.paid: list[int] = []
        self.caller: str | None = "alice"
        self.settings = settings if "policy" in settings else {"effects": "external", **settings}
        self.fail: Callable[[], None] = lambda: None
        self.schema = strawberry.Schema(Query, self._mutation(), types=[Payment])

    def idempotent(self, name: str, **settings: Any) -> Idempotent:
        options = {"key": "key", "caller": self.find_caller, **self.settings, **settings}
        return Idempotent(self.engine, name, **options)

    def find_caller(self, info: strawberry.Info) -> Caller | None:
        return None if self.caller is None else Caller("shop", self.caller)

    def pay(self, info: strawberry.Info, amount: int, note: Any) -> Payment:
        self.paid.append(amount)
        self.fail()
        return Payment(number=len(self.paid), amount=amount, note=note if isinstance(note, str) else None)

    def _mutation(self) -> type:
        shop = self
        idempotent = self.idempotent("payments.create")

        if self.mode == "async":

            @strawberry.type
            class Mutation:
                @strawberry.mutation(extensions=[idempotent])
                async def pay(
                    self,
                    info: strawberry.Info,
                    amount: int,
                    key: str | None = None,
                    note: str | None = strawberry.UNSET,
                    details: Details | None = None,
                ) -> Payment:
                    await asyncio.sleep(0)
                    return shop.pay(info, amount, note)

                @strawberry.mutation
                async def fails(self) -> int:
                    raise ValueError("a sibling failed")

            return Mutation

        @strawberry.type
        class Plain:
            @strawberry.mutation(extensions=[idempotent])
            def pay(
                self,
                info: strawberry.Info,
                amount: int,
                key: str | None = None,
                note: str | None = strawberry.UNSET,
                details: Details | None = None,
            ) -> Payment:
                return shop.pay(info, amount, note)

            @strawberry.mutation
            def fails(self) -> int:
                raise ValueError("a sibling failed")

        return Plain

    def ask(self, *documents: str, variables: dict[str, Any] | None = None) -> list[Any]:
        """The results of documents that are asked for one after the other."""
        if self.mode == "async":

            async def all_of_them() -> list[Any]:
                async with self.engine:
                    return [await self.schema.execute(each, variables) for each in documents]

            return asyncio.run(all_of_them())
        with self.engine:
            return [self.schema.execute_sync(each, variables) for each in documents]


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def shop(mode: Mode) -> Shop:
    return Shop(mode)


def pay(amount: int = 50, key: str = "invoice-1", selection: str = "number", more: str = "") -> str:
    return f'mutation {{ pay(amount: {amount}, key: "{key}"{more}) {{ {selection} }} }}'


def code(result: Any) -> Any:
    [error] = result.errors
    return (error.extensions or {}).get("code", type(error.original_error).__name__)


# --- once, replay, another payload -----------------------------------------------------------------


def test_a_retry_gets_the_first_result_under_another_selection_alias_and_spelling(shop: Shop) -> None:
    root = "Mutation" if shop.mode == "async" else "Plain"
    first, again, other = shop.ask(
        pay(selection="number amount"),
        pay(selection="doubled   amount").replace("pay(", "mine : pay("),
        f'mutation {{ ...Paid }} fragment Paid on {root} {{ pay(key: "invoice-1", amount: 50) {{ number }} }}',
    )

    assert first.data == {"pay": {"number": 1, "amount": 50}}
    assert again.data == {"mine": {"doubled": 100, "amount": 50}}
    assert other.data == {"pay": {"number": 1}}
    assert shop.paid == [50]


@pytest.mark.parametrize(
    "other",
    [
        pay(60),
        pay(more=', note: "x"'),
        pay(more=", note: null"),
        pay(more=", details: {}"),
        pay(more=', details: {tags: ["a"]}'),
        pay(more=", details: {priority: 1}"),
    ],
)
def test_other_arguments_under_the_key_are_refused(shop: Shop, other: str) -> None:
    _, reused = shop.ask(pay(), other)

    assert reused.data is None
    [error] = reused.errors
    assert error.extensions["code"] == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
    assert (error.extensions["retryable"], error.extensions["keyAction"]) == (False, "new")
    assert error.extensions["state"] == "SUCCEEDED"
    assert error.extensions["operationId"]
    assert shop.paid == [50]


def test_an_argument_that_may_be_null_counts_apart_from_one_that_was_not_sent(shop: Shop) -> None:
    answers = shop.ask(
        pay(more=", details: {priority: null}"),
        pay(more=", details: {priority: null, tags: []}"),
        pay(more=", details: {}"),
    )

    assert [answer.errors is None for answer in answers] == [True, True, False]
    assert shop.paid == [50]


def test_variables_count_and_the_text_of_the_query_does_not(shop: Shop) -> None:
    document = "mutation($amount: Int!, $key: String) { pay(amount: $amount, key: $key) { number } }"
    [first] = shop.ask(document, variables={"amount": 50, "key": "invoice-1"})
    [again] = shop.ask(pay())
    [other] = shop.ask(document, variables={"amount": 51, "key": "invoice-1"})

    assert first.data == again.data == {"pay": {"number": 1}}
    assert code(other) == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"


def test_each_field_of_a_request_has_its_own_key(shop: Shop) -> None:
    one, other = 'one: pay(amount: 50, key: "a") {number}', 'other: pay(amount: 50, key: "b") {number}'
    same = 'same: pay(amount: 50, key: "a") {number}'
    [both, swapped] = shop.ask(f"mutation {{ {one} {other} {same} }}", f"mutation {{ {other} {one} }}")

    assert both.data == {"one": {"number": 1}, "other": {"number": 2}, "same": {"number": 1}}
    assert swapped.data == {"other": {"number": 2}, "one": {"number": 1}}
    assert shop.paid == [50, 50]


def test_keys_are_their_callers_own(shop: Shop) -> None:
    shop.ask(pay())
    shop.caller = "bob"
    [other] = shop.ask(pay(60))
    shop.caller = None
    [of_nobody] = shop.ask(pay())

    assert other.data == {"pay": {"number": 2}}
    assert code(of_nobody) == "IDEMPOTENCY_CALLER_UNKNOWN"
    assert shop.paid == [50, 60]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("amount: 50", "MISSING_IDEMPOTENCY_KEY"),
        ("amount: 50, key: null", "MISSING_IDEMPOTENCY_KEY"),
        ('amount: 50, key: ""', "INVALID_IDEMPOTENCY_KEY"),
        ('amount: 50, key: "  "', "INVALID_IDEMPOTENCY_KEY"),
        (f'amount: 50, key: "{"k" * 256}"', "INVALID_IDEMPOTENCY_KEY"),
    ],
)
def test_a_missing_or_malformed_key_runs_nothing(shop: Shop, arguments: str, expected: str) -> None:
    [refused] = shop.ask(f"mutation {{ pay({arguments}) {{ number }} }}")

    assert code(refused) == expected
    assert shop.paid == []


def test_an_optional_key_may_be_absent_but_not_empty(mode: Mode) -> None:
    shop = Shop(mode, policy=Policy(key="optional"))
    without, again, empty = shop.ask(
        "mutation { pay(amount: 50) { number } }",
        "mutation { pay(amount: 50) { number } }",
        'mutation { pay(amount: 50, key: "") { number } }',
    )

    assert (without.data, again.data) == ({"pay": {"number": 1}}, {"pay": {"number": 2}})
    assert code(empty) == "INVALID_IDEMPOTENCY_KEY"


# --- errors in a 200 ---------------------------------------------------------------------------------


def test_an_error_of_the_resolver_leaves_the_outcome_unknown(shop: Shop) -> None:
    def fail() -> None:
        raise ValueError("the provider did not answer in time")

    shop.fail = fail
    first, again = shop.ask(pay(), pay())

    assert [error.message for error in first.errors] == ["the provider did not answer in time"]
    [error] = again.errors
    assert error.extensions["code"] == "IDEMPOTENCY_OUTCOME_UNKNOWN"
    assert (error.extensions["retryable"], error.extensions["keyAction"]) == (False, "keep")
    assert shop.paid == [50]


def test_the_status_of_an_unknown_outcome_is_linked(mode: Mode) -> None:
    shop = Shop(mode, operations_path="/operations/{id}")

    def fail() -> None:
        raise ValueError

    shop.fail = fail
    _, again = shop.ask(pay(), pay())

    extensions = again.errors[0].extensions
    assert extensions["operation"] == f"/operations/{extensions['operationId']}"


def test_an_error_that_proves_that_nothing_happened_frees_the_key(shop: Shop) -> None:
    def fail() -> None:
        shop.paid.pop()
        shop.fail = lambda: None
        raise NothingHappened("the provider refused the connection")

    shop.fail = fail
    first, again = shop.ask(pay(), pay())

    assert first.data is None
    assert again.data == {"pay": {"number": 1}}


def test_a_declared_refusal_is_kept_with_its_code(mode: Mode) -> None:
    shop = Shop(mode, replays=(CardDeclined,))

    def fail() -> None:
        raise CardDeclined("the card was declined")

    shop.fail = fail
    for refused in shop.ask(pay(), pay()):
        [error] = refused.errors
        assert (error.message, error.extensions) == ("the card was declined", {"code": "CARD_DECLINED"})
    assert shop.paid == [50]


def test_a_verdict_from_another_command_is_the_resolvers_own_error(shop: Shop) -> None:
    class Other(ConfigurationError):
        pass

    def fail() -> None:
        raise Other("of another command")

    shop.fail = fail
    [first] = shop.ask(pay())

    assert type(first.errors[0].original_error) is Other


def test_a_sibling_that_nulls_the_answer_does_not_undo_the_command(shop: Shop) -> None:
    nulled, again = shop.ask(f"{pay()[:-2]} fails }}", pay())

    assert nulled.data is None
    assert [error.message for error in nulled.errors] == ["a sibling failed"]
    assert again.data == {"pay": {"number": 1}}
    assert shop.paid == [50]


def test_a_failing_field_of_the_result_does_not_undo_the_command(shop: Shop) -> None:
    broken, again = shop.ask(pay(selection="number broken"), pay())

    assert broken.data is None
    assert again.data == {"pay": {"number": 1}}
    assert shop.paid == [50]


def test_what_validation_refuses_leaves_no_record(shop: Shop) -> None:
    refused, then = shop.ask(pay(selection="unheardOf"), pay(60))

    assert refused.errors
    assert then.data == {"pay": {"number": 1}}


# --- races, permits, transactions ------------------------------------------------------------------------


def test_duplicates_at_once_have_one_effect() -> None:
    shop = Shop("async")

    async def at_once() -> list[Any]:
        async with shop.engine:
            return await asyncio.gather(*(shop.schema.execute(pay()) for _ in range(20)))

    answers = asyncio.run(at_once())

    assert all(answer.data == {"pay": {"number": 1}} for answer in answers)
    assert shop.paid == [50]


def test_a_running_command_states_when_to_retry() -> None:
    shop = Shop("async", wait_seconds=0)

    async def twice() -> Any:
        begun, go = asyncio.Event(), asyncio.Event()

        @strawberry.type
        class Mutation:
            @strawberry.mutation(extensions=[shop.idempotent("slow")])
            async def slow(self, key: str) -> int:
                begun.set()
                await go.wait()
                return 1

        schema = strawberry.Schema(Query, Mutation)
        async with shop.engine:
            first = asyncio.create_task(schema.execute('mutation { slow(key: "k") }'))
            await begun.wait()
            second = await schema.execute('mutation { slow(key: "k") }')
            go.set()
            return await first, second

    first, second = asyncio.run(twice())

    assert first.data == {"slow": 1}
    extensions = second.errors[0].extensions
    assert extensions["code"] == "IDEMPOTENCY_REQUEST_IN_PROGRESS"
    assert extensions["retryable"]
    assert extensions["keyAction"] == "keep"
    assert extensions["retryAfter"] >= 1


def test_the_permit_belongs_to_the_field(mode: Mode) -> None:
    shop = Shop(mode)
    keys = []
    pay_ = shop.pay

    def pay_with_permit(info: strawberry.Info, amount: int, note: Any) -> Payment:
        keys.append(permit_of(info).key_for("charge"))
        return pay_(info, amount, note)

    shop.pay = pay_with_permit  # type: ignore[method-assign]
    [answer] = shop.ask('mutation { a: pay(amount: 1, key: "a") {number} b: pay(amount: 1, key: "b") {number} }')

    assert answer.errors is None
    assert len(set(keys)) == 2


def test_there_is_no_permit_without_protection() -> None:
    @strawberry.type
    class Mutation:
        @strawberry.mutation
        def bare(self, info: strawberry.Info) -> str:
            return permit_of(info).key_for("charge")

    bare = strawberry.Schema(Query, Mutation).execute_sync("mutation { bare }")

    assert "this field is not protected" in bare.errors[0].message  # type: ignore[index]


def test_rows_and_record_of_an_atomic_field_are_committed_together(mode: Mode, tmp_path: Path) -> None:
    shop = Shop(mode, f"sqlite:///{tmp_path / 'shop.db'}", effects="atomic")
    rows: list[int] = []

    def write(info: strawberry.Info, amount: int, note: Any) -> Payment:
        connection = permit_of(info).connection
        connection.execute("CREATE TABLE IF NOT EXISTS paid (amount INTEGER)")
        connection.execute("INSERT INTO paid VALUES (?)", (amount,))
        shop.fail()
        [(count,)] = connection.execute("SELECT count(*) FROM paid").fetchall()
        rows.append(count)
        return Payment(number=count, amount=amount, note=None)

    def fail() -> None:
        shop.fail = lambda: None
        raise GraphQLError("no")

    if mode == "async":
        asyncio.run(shop.engine.migrate())
    else:
        shop.engine.migrate()
    shop.pay = write  # type: ignore[method-assign]
    shop.fail = fail
    failed, done, again = shop.ask(pay(), pay(), pay())

    assert failed.errors[0].message == "no"
    assert done.data == again.data == {"pay": {"number": 1}}
    assert rows == [1]


def test_a_client_that_disconnects_does_not_end_the_command() -> None:
    engine = AsyncEngine.connect("memory://")
    ended: list[int] = []

    async def main() -> Any:
        begun, go = asyncio.Event(), asyncio.Event()

        @strawberry.type
        class Mutation:
            @strawberry.mutation(extensions=[Idempotent(engine, "slow", caller=single_caller, key="key")])
            async def slow(self, key: str) -> int:
                begun.set()
                await go.wait()
                ended.append(1)
                return len(ended)

        schema = strawberry.Schema(Query, Mutation)
        async with engine:
            first = asyncio.create_task(schema.execute('mutation { slow(key: "k") }'))
            await begun.wait()
            first.cancel()
            go.set()
            await asyncio.gather(first, return_exceptions=True)
            return await schema.execute('mutation { slow(key: "k") }')

    assert asyncio.run(main()).data == {"slow": 1}
    assert ended == [1]


@pytest.mark.parametrize(
    ("settings", "expected", "effects"),
    [
        ({"effects": "external"}, ["IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"] * 2, 1),
        ({"effects": "atomic"}, ["IDEMPOTENCY_ANSWER_TOO_LARGE"] * 2, 2),
    ],
)
def test_a_result_of_another_type_than_declared_is_refused(
    settings: dict[str, Any], expected: list[str], effects: int, tmp_path: Path
) -> None:
    shop = Shop("sync", f"sqlite:///{tmp_path / 'shop.db'}", **settings)
    shop.engine.migrate()

    def unlike(info: strawberry.Info, amount: int, note: Any) -> Any:
        shop.paid.append(amount)
        return SimpleNamespace(number=1, amount=amount, note=None)

    shop.pay = unlike  # type: ignore[method-assign]

    assert [code(answer) for answer in shop.ask(pay(), pay())] == expected
    assert len(shop.paid) == effects


@pytest.mark.parametrize(
    ("error", "maybe_done", "detail"),
    [
        (StoreUnavailable("db1.internal refused"), False, "Nothing was done."),
        (StoreTimeout("db1.internal is silent"), True, "The commit was not confirmed"),
    ],
)
def test_a_store_error_is_reported_without_its_text(error: SemelError, maybe_done: bool, detail: str) -> None:
    why = RefusedCall.of(error, maybe_done=maybe_done)

    assert why is not None
    assert (why.kind.code, why.kind.retryable, why.key_action) == ("IDEMPOTENCY_STORE_UNAVAILABLE", True, "keep")
    assert why.detail.startswith(detail)


def test_a_refused_commit_is_an_error_of_the_field_not_an_outage(mode: Mode, tmp_path: Path) -> None:
    shop = Shop(mode, f"sqlite:///{tmp_path / 'shop.db'}", effects="atomic")

    def write(info: strawberry.Info, amount: int, note: Any) -> Payment:
        shop.paid.append(amount)
        connection = permit_of(info).connection
        connection.execute("CREATE TABLE effect (n INTEGER UNIQUE)")
        connection.execute("INSERT INTO effect VALUES (1)")
        with suppress(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO effect VALUES (1)")
        return Payment(number=1, amount=amount, note=None)

    if mode == "async":
        asyncio.run(shop.engine.migrate())
    else:
        shop.engine.migrate()
    shop.pay = write  # type: ignore[method-assign]

    for answer in shop.ask(pay(), pay()):
        assert "nothing of it remains, and the key is free" in answer.errors[0].message
        assert not answer.errors[0].extensions  # no code that a client would retry at
    assert len(shop.paid) == 2  # nothing of the first one remained


# --- permissions, other extensions, shapes of results ------------------------------------------------------


class MayPay(BasePermission):
    message = "You may not pay."
    allowed = True

    def has_permission(self, source: Any, info: Any, **kwargs: Any) -> bool:
        return MayPay.allowed


@pytest.fixture
def permission() -> Iterator[None]:
    MayPay.allowed = True
    yield
    MayPay.allowed = True


def test_permissions_come_before_the_claim_and_before_each_replay(permission: None) -> None:
    paid: list[int] = []
    engine = Engine.connect("memory://")

    @strawberry.type
    class Mutation:
        @strawberry.mutation(
            permission_classes=[MayPay], extensions=[Idempotent(engine, "pay", caller=single_caller, key="key")]
        )
        def pay(self, amount: int, key: str) -> int:
            paid.append(amount)
            return len(paid)

    schema = strawberry.Schema(Query, Mutation)
    with engine:
        MayPay.allowed = False
        refused = schema.execute_sync('mutation { pay(amount: 1, key: "k") }')
        MayPay.allowed = True
        done = schema.execute_sync('mutation { pay(amount: 2, key: "k") }')
        MayPay.allowed = False
        replay = schema.execute_sync('mutation { pay(amount: 2, key: "k") }')

    assert refused.errors
    assert refused.errors[0].message == "You may not pay."
    assert done.data == {"pay": 1}  # the refused attempt has left no record
    assert replay.data is None
    assert paid == [2]


def test_an_input_mutation_and_a_union_as_result() -> None:
    engine = Engine.connect("memory://")
    paid: list[int] = []

    @strawberry.type
    class Mutation:
        @strawberry.mutation(
            extensions=[Idempotent(engine, "pay", caller=single_caller, key="key"), InputMutationExtension()]
        )
        def pay(self, amount: int, key: strawberry.ID) -> Annotated[Payment | Declined, strawberry.union("Paid")]:
            paid.append(amount)
            return Declined(reason="too much") if amount > 100 else Payment(number=1, amount=amount, note=None)

    schema = strawberry.Schema(Query, Mutation)
    document = (
        "mutation($input: PayInput!) { pay(input: $input) { __typename ... on Payment { doubled } "
        "... on Declined { reason } } }"
    )
    with engine:
        for _ in range(2):
            refused = schema.execute_sync(document, {"input": {"amount": 500, "key": "a"}})
            taken = schema.execute_sync(document, {"input": {"amount": 50, "key": "b"}})
            assert refused.data == {"pay": {"__typename": "Declined", "reason": "too much"}}
            assert taken.data == {"pay": {"__typename": "Payment", "doubled": 100}}

    assert paid == [500, 50]


def test_an_input_may_get_further_fields_that_a_client_need_not_send(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    paid: list[int] = []

    def serve(wish: type) -> tuple[Engine, strawberry.Schema]:
        engine = Engine.connect(url)

        def pay(wish: Any, key: str) -> int:
            paid.append(wish.amount)
            return len(paid)

        pay.__annotations__["wish"] = wish
        field = strawberry.mutation(pay, extensions=[Idempotent(engine, "pay", caller=single_caller, key="key")])
        return engine, strawberry.Schema(Query, strawberry.type(type("Mutation", (), {"pay": field})))

    def deploy(wish: type, document: str) -> Any:
        engine, schema = serve(wish)
        engine.migrate()
        with engine:
            return schema.execute_sync(document)

    document = 'mutation { pay(wish: {amount: 5}, key: "a") }'
    assert deploy(Wish, document).data == deploy(GrownWish, document).data == {"pay": 1}
    assert code(deploy(GrownWish, document.replace("5", '5, note: "x"'))).startswith("IDEMPOTENCY_KEY_REUSED")
    assert paid == [5]


def test_a_moment_with_an_offset_is_an_argument_and_a_result() -> None:
    engine = Engine.connect("memory://")
    booked: list[datetime] = []

    @strawberry.type
    class Mutation:
        @strawberry.mutation(extensions=[Idempotent(engine, "book", caller=single_caller, key="key")])
        def book(self, at: datetime, key: str) -> datetime:
            booked.append(at)
            return at

    schema = strawberry.Schema(Query, Mutation)
    document = "mutation($at: DateTime!, $key: String!) { book(at: $at, key: $key) }"
    with engine:
        for at in ("2026-07-01T12:00:00Z", "2026-07-01T12:00:00+00:00"):
            answer = schema.execute_sync(document, {"at": at, "key": "a"})
            assert (answer.data, answer.errors) == ({"book": "2026-07-01T12:00:00+00:00"}, None)
        answer = schema.execute_sync(document, {"at": "2026-07-01T14:00:00+02:00", "key": "b"})
        assert answer.data == {"book": "2026-07-01T14:00:00+02:00"}

    assert [each.hour for each in booked] == [12, 14]


def test_an_inherited_field_is_the_same_command_whatever_kind_of_method_it_is() -> None:
    engine = Engine.connect("memory://")
    paid: list[int] = []

    def once(name: str) -> Idempotent:
        return Idempotent(engine, name, caller=single_caller, key="key")

    @strawberry.type
    class Base:
        @strawberry.mutation(extensions=[InputMutationExtension(), once("pay")])
        def pay(self, amount: int, key: str) -> int:
            paid.append(amount)
            return len(paid)

        @strawberry.mutation(extensions=[once("refund")])
        @staticmethod
        def refund(key: str) -> int:
            paid.append(0)
            return len(paid)

    first = strawberry.type(type("First", (Base,), {}))
    other = strawberry.type(type("Other", (Base,), {}))
    document = 'mutation { pay(input: {amount: 5, key: "k"}) refund(key: "k") }'
    with engine:
        answers = [strawberry.Schema(Query, each).execute_sync(document) for each in (first, other)]

    assert [answer.data for answer in answers] == [{"pay": 1, "refund": 2}] * 2
    assert paid == [5, 0]


def test_verdicts_pass_although_other_errors_are_masked(shop: Shop) -> None:
    def is_hidden(error: GraphQLError) -> bool:
        return "keyAction" not in (error.extensions or {})

    shop.schema = strawberry.Schema(
        Query,
        shop.schema.mutation,
        types=[Payment],
        extensions=[lambda: MaskErrors(should_mask_error=is_hidden)],
    )
    _, reused, masked = shop.ask(pay(), pay(60), "mutation { fails }")

    assert code(reused) == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
    assert masked.errors[0].message == "Unexpected error."


def test_a_key_in_an_input_object_and_arguments_that_do_not_count() -> None:
    engine = Engine.connect("memory://")

    @strawberry.input
    class Order:
        key: str | None = strawberry.UNSET
        amount: int = 0

    @strawberry.type
    class Mutation:
        @strawberry.mutation(
            extensions=[Idempotent(engine, "order", caller=single_caller, key="order.key", exclude=("trace",))]
        )
        def order(self, order: Order, trace: str = "") -> int:
            return order.amount

    schema = strawberry.Schema(Query, Mutation)
    with engine:
        first = schema.execute_sync('mutation { order(order: {key: "k", amount: 5}, trace: "a") }')
        again = schema.execute_sync('mutation { order(order: {key: "k", amount: 5}, trace: "b") }')
        without = schema.execute_sync("mutation { order(order: {amount: 5}) }")

    assert first.data == again.data == {"order": 5}
    assert code(without) == "MISSING_IDEMPOTENCY_KEY"


def make_nested_schema(parent: Any) -> tuple[AsyncEngine, list[tuple[int, int]], strawberry.Schema]:
    engine = AsyncEngine.connect("memory://")
    paid: list[tuple[int, int]] = []

    @strawberry.type
    class Account:
        id: int

        @strawberry.field(
            extensions=[Idempotent(engine, "accounts.pay", caller=single_caller, key="key", parent=parent)]
        )
        async def pay(self, amount: int, key: str) -> int:
            paid.append((self.id, amount))
            await asyncio.sleep(0)
            return self.id

    @strawberry.type
    class Mutation:
        @strawberry.mutation
        async def account(self, id: int) -> Account:
            return Account(id=id)

    @strawberry.type
    class Queried:
        @strawberry.field
        def account(self, id: int) -> Account:
            return Account(id=id)

    return engine, paid, strawberry.Schema(Queried, Mutation)


def test_below_another_field_the_parent_counts_and_must_be_named() -> None:
    engine, paid, schema = make_nested_schema(lambda account: account.id)

    async def main() -> list[Any]:
        async with engine:
            return [
                await schema.execute('mutation { account(id: 5) { pay(amount: 1, key: "k") } }'),
                await schema.execute('mutation { account(id: 6) { pay(amount: 1, key: "k") } }'),
                await schema.execute(
                    'mutation { account(id: 5) { a: pay(amount: 1, key: "k") b: pay(amount: 1, key: "k") } }'
                ),
                await schema.execute('{ account(id: 5) { pay(amount: 1, key: "k") } }'),
            ]

    first, other, at_once, queried = asyncio.run(main())

    assert first.data == {"account": {"pay": 5}}
    assert code(other) == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
    assert at_once.data == {"account": {"a": 5, "b": 5}}
    assert code(queried) == "ConfigurationError"
    assert "in a query" in queried.errors[0].message
    assert paid == [(5, 1)]

    engine, paid, schema = make_nested_schema(None)

    async def pay_without_path() -> Any:
        async with engine:
            return await schema.execute('mutation { account(id: 5) { pay(amount: 1, key: "k") } }')

    assert "give parent= a function that distinguishes its parents" in asyncio.run(pay_without_path()).errors[0].message
    assert paid == []


# --- over HTTP: a key in the header ------------------------------------------------------------------------


def test_a_key_in_the_header_is_for_one_field_of_one_request() -> None:
    engine = AsyncEngine.connect("memory://")
    paid: list[int] = []

    @strawberry.type
    class Mutation:
        @strawberry.mutation(extensions=[Idempotent(engine, "pay", caller=single_caller, key="header:Idempotency-Key")])
        async def pay(self, amount: int) -> int:
            paid.append(amount)
            return len(paid)

    schema = strawberry.Schema(Query, Mutation, config=StrawberryConfig(batching_config={"max_operations": 5}))

    def send(client: TestClient, key: str | None, *documents: str) -> Any:
        sent = [{"query": document} for document in documents]
        headers = {} if key is None else {"Idempotency-Key": key}
        return client.post("/", json=sent[0] if len(sent) == 1 else sent, headers=headers).json()

    def codes(answer: Any) -> list[str]:
        return [error["extensions"]["code"] for error in answer.get("errors", ())]

    one = "mutation { pay(amount: 5) }"
    with TestClient(Starlette(routes=[Mount("/", GraphQL(schema))])) as client:
        assert [send(client, "a", one)["data"] for _ in range(2)] == [{"pay": 1}, {"pay": 1}]
        assert codes(send(client, "a", "mutation { pay(amount: 6) }")) == [
            "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
        ]
        assert codes(send(client, None, one)) == ["MISSING_IDEMPOTENCY_KEY"]
        assert codes(send(client, "a b", one)) == ["INVALID_IDEMPOTENCY_KEY"]
        for _ in range(2):
            assert codes(send(client, "c", "mutation { x: pay(amount: 5) y: pay(amount: 5) }")) == [
                "INVALID_IDEMPOTENCY_KEY"
            ]
            batch = send(client, "d", one, one)
            assert sorted(map(str, map(codes, batch))) == ["['INVALID_IDEMPOTENCY_KEY']", "[]"]
        headers = {"Idempotency-Key": "e"}
        with client.websocket_connect("/", subprotocols=["graphql-transport-ws"], headers=headers) as socket:
            socket.send_json({"type": "connection_init"})
            assert socket.receive_json()["type"] == "connection_ack"
            socket.send_json({"id": "1", "type": "subscribe", "payload": {"query": one}})
            assert "send this mutation over HTTP" in str(socket.receive_json())
    assert paid == [5, 5, 5]


def test_a_header_needs_the_request_in_the_context() -> None:
    engine = Engine.connect("memory://")

    @strawberry.type
    class Mutation:
        @strawberry.mutation(extensions=[Idempotent(engine, "pay", caller=single_caller, key="header:X-Key")])
        def pay(self) -> int:
            return 1

    with engine:
        asked = strawberry.Schema(Query, Mutation).execute_sync("mutation { pay }")

    assert "needs the HTTP request in info.context" in asked.errors[0].message  # type: ignore[index]


class FakeRequest:
    """A request whose headers are a plain mapping, as Django's are."""

    def __init__(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class MarkedRequest(FakeRequest, dict[str, Any]):
    """A request that takes marks as a mapping and no attributes, as aiohttp's does."""

    def __setattr__(self, name: str, value: object) -> None:
        assert name == "headers"
        super().__setattr__(name, value)


@pytest.mark.parametrize("kind", [FakeRequest, MarkedRequest, "flask"])
@pytest.mark.parametrize("is_dict", [True, False])
def test_a_header_is_read_from_the_request_of_any_framework(kind: Any, is_dict: bool) -> None:
    engine = Engine.connect("memory://")

    @strawberry.type
    class Mutation:
        @strawberry.mutation(extensions=[Idempotent(engine, "pay", caller=single_caller, key="header:Idempotency-Key")])
        def pay(self) -> int:
            return 1

    schema = strawberry.Schema(Query, Mutation)

    def ask(request: Any) -> tuple[Any, Any]:
        context: Any = {"request": request} if is_dict else SimpleNamespace(request=request)
        return tuple(schema.execute_sync("mutation { pay }", context_value=context) for _ in range(2))  # type: ignore[return-value]

    with engine:
        if kind == "flask":
            with flask.Flask("shop").test_request_context("/", headers={"Idempotency-Key": "k"}):
                done, refused = ask(flask.request)
        else:
            done, refused = ask(kind(Idempotency_Key="k"))
        missing, _ = ask(FakeRequest(Other="x"))

    assert done.data == {"pay": 1}
    assert (code(refused), code(missing)) == ("INVALID_IDEMPOTENCY_KEY", "MISSING_IDEMPOTENCY_KEY")


# --- misuse is refused when the schema is built ---------------------------------------------------------------


def refuse(make: Callable[[Engine], Any]) -> str:
    """Return the error with which such a field of a mutation is refused."""
    with pytest.raises((ConfigurationError, TypeError)) as refused:  # a TypeError of graphql-core's with our sentence
        make(Engine.connect("memory://"))
    return str(refused.value)


def build(resolver: Any, *extensions: FieldExtension) -> strawberry.Schema:
    fields = {"pay": strawberry.mutation(resolver=resolver, extensions=list(extensions))}
    mutation = strawberry.type(type("Mutation", (), fields))
    return strawberry.Schema(Query, mutation)


def charge(amount: int, key: str) -> int:
    return amount


async def charge_async(amount: int, key: str) -> int:
    return amount


def charge_by_default(amount: int, key: str = "the-same-for-all") -> int:
    return amount


def test_misuse_is_refused_with_the_remedy() -> None:
    def once(engine: Any, **options: Any) -> Idempotent:
        return Idempotent(engine, "pay", **{"caller": single_caller, "key": "key", **options})

    assert "caller= is missing" in refuse(lambda engine: Idempotent(engine, "pay"))
    assert "did you mean 'key'" in refuse(lambda engine: build(charge, once(engine, key="keys")))
    assert "no parameter 'idempotency_key'" in refuse(
        lambda engine: build(charge, Idempotent(engine, "pay", caller=single_caller))
    )
    assert "share it" in refuse(lambda engine: build(charge_by_default, once(engine)))
    assert "needs an AsyncEngine" in refuse(lambda engine: build(charge_async, once(engine)))
    assert "needs an Engine" in refuse(lambda engine: build(charge, once(AsyncEngine.connect("memory://"))))
    assert "put Idempotent first" in refuse(lambda engine: build(charge, PermissionExtension([MayPay()]), once(engine)))
    assert "names 'nothing'" in refuse(lambda engine: build(charge, once(engine, exclude=("nothing",))))
    assert "resumable is not for fields" in refuse(lambda engine: once(engine, steps=True, resumable=True))
    assert "is for HTTP operations" in refuse(lambda engine: build(charge, once(engine, success=lambda answer: True)))
    assert "either a policy or its options" in refuse(lambda engine: once(engine, policy=Policy(), effects="external"))
    assert "must contain {id} once" in refuse(lambda engine: once(engine, operations_path="/operations"))
    assert "an exception of your own" in refuse(lambda engine: once(engine, replays=(GraphQLError,)))
    assert "'header:NAME'" in refuse(lambda engine: once(engine, key="header:"))
    assert "plain function" in refuse(lambda engine: once(engine, parent="id"))

    def build_both(engine: Engine) -> None:
        one = once(engine)
        build(charge, one)
        build(charge, one)  # another schema of the same field
        build(charge_by_default, one)

    assert "another field's" in refuse(build_both)
    assert "comes before" in refuse(lambda engine: build(charge, once(engine), once(engine)))


def test_a_query_a_subscription_and_a_result_without_a_form_are_refused() -> None:
    def query(engine: Engine) -> None:
        idempotent = Idempotent(engine, "pay", caller=single_caller, key="key")
        fields = {"pay": strawberry.field(resolver=charge, extensions=[idempotent])}
        strawberry.Schema(strawberry.type(type("Query", (), fields)))

    async def follow(key: str) -> AsyncGenerator[int, None]:
        yield 1

    def subscription(engine: Engine) -> None:
        idempotent = Idempotent(engine, "follow", caller=single_caller, key="key")
        fields = {"follow": strawberry.subscription(resolver=follow, extensions=[idempotent])}
        strawberry.Schema(Query, subscription=strawberry.type(type("Subscription", (), fields)))

    def unkept(engine: Engine) -> None:
        def opaque(key: str) -> Opaque:
            return Opaque()

        build(opaque, Idempotent(engine, "opaque", caller=single_caller, key="key"))

    assert "Query.pay is not a mutation" in refuse(query)
    assert "is not a mutation" in refuse(subscription)
    assert "Opaque" in refuse(unkept)
