"""What a process of one revision writes or reads: `python acts.py CODE STORE SCHEMA ACT`; what it saw, as JSON.

CODE is what ``semel`` is imported from: the source of today, or the frozen code of the previous revision. The file uses
what both of them have, and imports nothing of the tests.
"""

import base64
import hashlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

sys.path.insert(0, sys.argv[1])

from importlib import import_module

import semel
from semel import Answer, Bulk, Command, Engine, NothingHappened, Permit, Policy, Scope
from semel.errors import SemelError


def _find_name(name: str, *modules: str) -> Any:
    """What lies in one module today and lay in another one at the previous revision."""
    for module in modules:
        try:
            return getattr(import_module(f"semel.{module}"), name)
        except ModuleNotFoundError:
            continue
    raise ImportError(name)


SqliteDriver = _find_name("SqliteDriver", "stores.sqlite.driver", "drivers.sqlite")
sqlite_backend = _find_name("sqlite_backend", "stores.sqlite.url", "engine.urls", "engine.connect")
postgres_backend = _find_name("postgres_backend", "stores.postgres.url", "engine.connect_postgres")
DigestField, Facts, Fingerprinter, Members, Recipe, WholeBody = (
    _find_name(name, "http.fingerprint.fingerprinter", "rules.fingerprint")
    for name in ("DigestField", "Facts", "Fingerprinter", "Members", "Recipe", "WholeBody")
)

Handler = Callable[[Permit], Answer]
Seen = dict[str, Any]
LATER_US = 60_000_000  # the leases of those that wrote are over
ITEMS = [{"clientItemId": f"item-{n}", "n": n} for n in range(6)]
POLICIES = {
    "external": Policy(),
    "idempotent": Policy(effects="idempotent"),
    "atomic": Policy(effects="atomic"),
    "steps": Policy(steps=True),
    "resumable": Policy(steps=True, resumable=True),
    "kept": Policy(operation_seconds=366 * 86_400),
}
calls: list[str] = []


class Died(BaseException):
    """A process that ends here: nothing more is written."""


def command(key: str, declared: str, policy: Policy | None = None) -> Command:
    policy = POLICIES[declared] if policy is None else policy
    reference = "invoice-7" if declared == "kept" else None
    request = b"ten euros" if declared == "resumable" else None
    scope = Scope("acme", "alice", "pay")
    return Command(scope, key, b"f" * 32, "1.tests", policy, business_ref=reference, request=request)


def pay(permit: Permit) -> Answer:
    calls.append("pay")
    return Answer(201, ((b"location", b"/payments/7"),), b"paid")


def decline(permit: Permit) -> Answer:
    return Answer(409, (), b"declined")


def unproven(permit: Permit) -> Answer:
    raise ConnectionError("away")


def nothing(permit: Permit) -> Answer:
    raise NothingHappened("not sent")


def in_steps(until: str | None = None) -> Handler:
    """Charges and mails. ``until``: the step in whose call the process ends."""

    def call(name: str) -> str:
        calls.append(name)
        if name == until:
            raise Died
        return f"{name}-1"

    def handler(permit: Permit) -> Answer:
        permit.step("charge", lambda: call("charge"))
        permit.step("mail", lambda: call("mail"), repeat=True)
        return Answer(201, (), b"paid in steps")

    return handler


def abandon(engine: Engine, what: Command, handler: Handler | None = None) -> None:
    """A holder that is granted, comes as far as its handler says, and is never heard of again."""
    permit = engine.claim(what)
    assert isinstance(permit, Permit), permit
    if handler is not None:
        with suppress(Died):
            handler(permit)


def bulk(engine: Engine) -> Bulk:
    return Bulk(engine, operation="approve", effects="external")


def write(engine: Engine) -> None:
    """Records of every state, with steps and without, and bulks."""
    for key, declared, handler in (
        ("succeeded", "external", pay),
        ("succeeded atomic", "atomic", pay),
        ("succeeded in steps", "steps", in_steps()),
        ("succeeded kept", "kept", pay),
        ("refused", "external", decline),
        ("unknown", "external", unproven),
        ("given back", "idempotent", unproven),
        ("nothing happened", "external", nothing),
    ):
        with suppress(ConnectionError, NothingHappened):
            engine.run(command(key, declared), handler)
    abandon(engine, command("abandoned", "external"))
    abandon(engine, command("abandoned idempotent", "idempotent"))
    abandon(engine, command("no step begun", "steps"))
    abandon(engine, command("in doubt", "steps"), in_steps("charge"))
    abandon(engine, command("charged", "steps"), in_steps("mail"))
    abandon(engine, command("charged, resumable", "resumable"), in_steps("mail"))
    bulk(engine).run(ITEMS, lambda item: item.id, key="whole", caller="alice")

    def dies(item: Any) -> str:
        if item.place == 3:
            raise Died
        return str(item.id)

    with suppress(Died):
        bulk(engine).run(ITEMS, dies, key="half", caller="alice")


def write_withheld(engine: Engine) -> None:
    """Write what only today's revision writes: answers that are sealed, redacted, rebuilt or not stored."""
    engine.core.sealer = semel.Sealer({"2026": bytes(32)})
    secret = Answer(201, (), b'{"id":7,"pin":"4711"}')
    for key, options in WITHHELD.items():
        policy = Policy(**options)
        engine.run(command(key, "external", policy), lambda permit: secret)
    charged = Policy(steps=True, answers="seal")
    abandon(engine, command("charged, sealed", "steps", charged), in_steps("mail"))


WITHHELD: dict[str, dict[str, Any]] = {
    "sealed": {"answers": "seal"},
    "redacted": {"redact": ("pin",)},
    "rebuilt": {"answers": "rebuild", "rebuild": lambda done: {"id": 7}},
    "forgotten": {"answers": "forget"},
}


def read_withheld(engine: Engine) -> Seen:
    """What a process meets there that knows nothing of it, or has no sealer."""
    seen: Seen = {}
    for key, declared, handler in (
        *((key, "external", pay) for key in WITHHELD),
        ("charged, sealed", "steps", in_steps()),
    ):
        calls.clear()
        try:
            result = engine.run(command(key, declared), handler, wait_seconds=0)
            seen[key] = ["replayed" if result.replayed else "ran", result.answer.body.decode(), *calls]
        except SemelError as error:
            seen[key] = [type(error).__name__, *calls]
    return seen


WRITTEN = (
    ("succeeded", "external"),
    ("succeeded atomic", "atomic"),
    ("succeeded in steps", "steps"),
    ("succeeded kept", "kept"),
    ("refused", "external"),
    ("unknown", "external"),
    ("given back", "idempotent"),
    ("nothing happened", "external"),
    ("abandoned", "external"),
    ("abandoned idempotent", "idempotent"),
    ("no step begun", "steps"),
    ("in doubt", "steps"),
    ("charged", "steps"),
    ("charged, resumable", "resumable"),
)


def read(engine: Engine) -> Seen:
    """Return what a retry of each of them gets, and which calls it makes."""
    seen: Seen = {}
    for key, declared in WRITTEN:
        calls.clear()
        handler = in_steps() if declared in ("steps", "resumable") else pay
        try:
            result = engine.run(command(key, declared), handler, wait_seconds=0)
            seen[key] = ["replayed" if result.replayed else "ran", result.answer.body.decode(), *calls]
        except SemelError as error:
            seen[key] = [type(error).__name__, *calls]
        other = command(key, declared)
        object.__setattr__(other, "fingerprint", b"g" * 32)
        try:
            engine.run(other, pay, wait_seconds=0)
            seen[f"another request: {key}"] = "ran"
        except SemelError as error:
            if type(error).__name__ != "KeyReusedError":
                seen[f"another request: {key}"] = type(error).__name__

    def note(item: Any) -> Any:
        calls.append(item.id)
        return item.id

    for key in ("whole", "half"):
        calls.clear()
        try:
            done = bulk(engine).run(ITEMS, note, key=key, caller="alice")
        except SemelError as error:
            seen[f"bulk {key}"] = [type(error).__name__, *calls]
            continue
        tally = done.tally
        seen[f"bulk {key}"] = [done.replayed, tally.succeeded, tally.failed, tally.unknown, *calls]
    return seen


def read_without_steps(engine: Engine) -> Seen:
    """What the same keys get from a process whose operation is declared otherwise."""
    seen: Seen = {}
    for key, declared in (
        ("charged", "external"),
        ("charged", "idempotent"),
        ("charged, resumable", "atomic"),
        ("no step begun", "external"),
        ("abandoned idempotent", "external"),
        ("given back", "atomic"),
    ):
        calls.clear()
        try:
            result = engine.run(command(key, declared), pay, wait_seconds=0)
            seen[f"{key} as {declared}"] = ["ran", result.answer.body.decode(), *calls]
        except SemelError as error:
            seen[f"{key} as {declared}"] = [type(error).__name__, *calls]
    return seen


def fingerprints(engine: Engine) -> Seen:
    """Version 1 of the algorithm, for every way to read a body."""
    form = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n'
    seen: Seen = {}
    bodies: tuple[Any, ...] = (WholeBody(), Members(("amount",)), DigestField())
    for body in bodies:
        try:
            recipe = Recipe(body=body, version=1)
        except TypeError:  # before it could be named, it was the only one
            recipe = Recipe(body=body)
        for media, content in (
            ("application/json", b'{"amount": 5.0, "a": [true]}'),
            ("application/x-www-form-urlencoded", b"b=1&a=%20"),
            ("multipart/form-data; boundary=x", form),
            ("text/plain; charset=utf-8", b"text"),
            ("", b""),
        ):
            sent = f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"
            facts = Facts("pay", "POST", (("id", "7"),), b"a=1", "acme", "alice", media, (("X", "y"),), sent)
            made = Fingerprinter(recipe).digest(facts, content)
            seen[f"{type(body).__name__} {media}"] = [recipe.id, made.hex()]
    return seen


ACTS: dict[str, Callable[[Engine], Any]] = {
    "write": write,
    "read": read,
    "read without steps": read_without_steps,
    "write withheld": write_withheld,
    "read withheld": read_withheld,
    "fingerprints": fingerprints,
}


def main(code: str, store: str, schema: str, act: str) -> None:
    later = 0 if act.startswith("write") else LATER_US
    clock = lambda: time.time_ns() // 1_000 + later  # noqa: E731 - one expression, no name needed
    backend = (
        postgres_backend(store, schema=schema, clock=clock)
        if schema
        else sqlite_backend(SqliteDriver(store, clock=clock), 5.0)
    )
    engine = Engine(backend)
    if act == "migrate":
        print(json.dumps({"code": semel.__file__, "ran": engine.migrate()}))
        return
    engine.open()
    print(json.dumps({"code": semel.__file__, "seen": ACTS[act](engine)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
