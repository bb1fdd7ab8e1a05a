"""What the ORM writes while code runs in a transaction of Semel's is refused: it would commit apart from it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test import TransactionTestCase
from psycopg import sql

from semel import Answer, AsyncEngine, AsyncInbox, Bulk, Command, Inbox, Policy, Scope
from semel.errors import ConfigurationError
from semel.functions import command
from semel.imports import ImportJob, Imports, Row
from semel.inbox.store import Receipt
from semel.integrations import django as semel
from semel.integrations.django.site import site
from tests.frameworks.django_site.models import Effect
from tests.frameworks.django_site.tests import effects

REFUSED = "wrote on Django's connection 'default', which commits for itself.* or {}"
FIND = REFUSED.format("declare effects='idempotent'")


def write() -> None:
    Effect.objects.create(what="by the ORM")


def new() -> str:
    return str(uuid.uuid4())


class OrmTests(TransactionTestCase):  # type: ignore[misc]  # Django ships no types
    """Each way in, on the engine of the project; reads pass, and writes on the connection that Semel gives."""

    serialized_rollback = True
    databases = {"default", "other"}  # noqa: RUF012 -- as Django has it

    def test_an_atomic_function(self) -> None:
        @command(semel.engine(), "orm.function", caller="who", key="key", effects="atomic")
        def restock(who: str, key: str) -> None:
            with transaction.atomic():
                Effect.objects.count()  # it may read, also in a block
            Effect.objects.using("other").count()
            write()

        key = new()
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=FIND):
                restock("alice", key)
        assert effects() == []

    def test_a_command_of_the_engine_and_its_local_step(self) -> None:
        engine = semel.engine()

        def make_command(name: str, policy: Policy) -> Command:
            return Command(Scope("default", "alice", name), new(), b"f" * 32, "r", policy)

        def atomic(permit: Any) -> Answer:
            write()
            return Answer(200, (), b"")

        def run_step(permit: Any) -> Answer:
            permit.local_step("reserve", lambda _: write())
            return Answer(200, (), b"")

        with pytest.raises(ConfigurationError, match=FIND):
            engine.run(make_command("orm.atomic", Policy(effects="atomic")), atomic)
        with pytest.raises(ConfigurationError, match=REFUSED.format("make it a step")):
            engine.run(make_command("orm.stepped", Policy(effects="external", steps=True)), run_step)
        assert effects() == []
        engine.run(make_command("orm.idempotent", Policy(effects="idempotent")), atomic)  # no transaction of Semel's
        assert effects() == ["by the ORM"]

    def test_an_item_of_a_bulk(self) -> None:
        bulk = Bulk(semel.engine(), operation="orm.bulk", effects="atomic")
        with pytest.raises(ConfigurationError, match=FIND):
            bulk.run(["a"], lambda item: write(), key=new(), caller="alice")
        assert effects() == []

    def test_a_message(self) -> None:
        inbox, id = Inbox(semel.engine(), consumer="orm"), new()
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=REFUSED.format("join your own transaction")):
                inbox.handle(id, lambda message: write())
        assert (effects(), inbox.find_parked()) == ([], [])

        def by_the_connection(message: Any) -> None:
            message.connection.execute("INSERT INTO django_site_effect (what) VALUES ('by the connection')")

        assert inbox.handle(id, by_the_connection) is Receipt.HANDLED
        for _ in range(2):
            with transaction.atomic(), inbox.within(connection, "joined") as message:
                if message.receipt is None:
                    write()
        assert effects() == ["by the connection", "by the ORM"]

    def test_what_a_driver_composes_is_read_as_the_statement_that_it_is(self) -> None:
        inbox = Inbox(semel.engine(), consumer="orm-composed")

        def statement(text: str) -> Any:
            return sql.SQL(text) + sql.SQL("") if connection.vendor == "postgresql" else text

        def run(text: str) -> Receipt:
            def handle(message: Any) -> None:
                with connection.cursor() as cursor:
                    cursor.execute(statement(text))

            return inbox.handle(new(), handle)

        assert run("SELECT what FROM django_site_effect") is Receipt.HANDLED
        with pytest.raises(ConfigurationError, match="wrote on Django's connection"):
            run("DELETE FROM django_site_effect")

    def test_async_code_whose_orm_writes_in_a_thread(self) -> None:
        async def story() -> None:
            async with AsyncEngine.connect(site().url("default")) as engine:
                inbox = AsyncInbox(engine, consumer="orm-async")

                async def handle(message: Any) -> None:
                    await Effect.objects.acount()
                    await Effect.objects.aupdate_or_create(what="by the ORM")

                with pytest.raises(ConfigurationError, match="wrote on Django's connection"):
                    await inbox.handle(new(), handle)

        async_to_sync(story)()
        assert effects() == []

    def test_a_row_of_an_import_and_of_its_preview(self) -> None:
        async def story() -> ImportJob | None:
            async with AsyncEngine.connect(site().url("default")) as engine:
                imports = Imports(engine, operation="orm.import", effects="atomic")

                @imports.row
                async def book(row: Row) -> None:
                    await Effect.objects.aupdate_or_create(what="by the ORM")

                with pytest.raises(ConfigurationError, match=FIND):
                    await imports.preview(b"n\n1\n", supplier="ACME")
                job = await imports.submit(b"n\n1\n", supplier="ACME")
                await imports.run_due()
                return await imports.job(job.id)

        job = async_to_sync(story)()
        assert "wrote on Django's connection" in str(job and job.reason)
        assert effects() == []

    def test_another_database_is_not_the_stores(self) -> None:
        @command(semel.engine(), "orm.other", caller="who", key="key", effects="atomic")
        def note(who: str, key: str) -> None:
            with connections["other"].cursor() as cursor:
                cursor.execute("CREATE TABLE orm_note (what TEXT)")
                cursor.execute("DROP TABLE orm_note")

        note("alice", new())
