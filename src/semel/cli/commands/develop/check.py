"""`semel check`: the shipping questions, answered for every operation of an application; and the required tests, run.

The check imports and inspects the application. It never starts it, unless ``--run`` names tests that do.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

from semel.admin.failures import UsageFailed
from semel.check.answers import CheckAnswer, answers, as_document
from semel.check.application import DJANGO_HINT, load
from semel.check.discovery import Discovered, discover, discover_functions, function_operation, is_asgi, is_wsgi
from semel.check.reconcilers import load_reconcilers
from semel.check.server import server_answers
from semel.cli.arguments import Commands, Parser, add_command, near
from semel.cli.exits import Exit
from semel.cli.terminal import Output
from semel.errors import SemelError

_MARKS: Final = {"ok": "ok", "open": "open", "unsafe": "UNSAFE"}
_STYLES: Final = {"open": "yellow", "unsafe": "red"}
_WIDTH: Final = 32
_REPEATABLE: Final = ("PUT", "DELETE")  # HTTP defines these methods as idempotent; your handlers must keep to it


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "check",
        "answer the shipping questions for every operation of an application; run its required tests",
        "semel check shop.main:app\n"
        "semel check 'shop.main:make_app()' --json\n"
        "semel check shop.jobs                          the functions of a module\n"
        "semel check shop.wsgi:application              a Django project; in it: manage.py semel check\n"
        "semel check shop.main:app --unprotected-ok 'POST /login'\n"
        "semel check shop.main:app --reconcile shop.reconcilers:ask_provider\n"
        "semel check --run tests.test_payments:TestPayments",
        "A question that the declaration does not answer is reported as open, with the next thing to find out or "
        "declare. Exit code 1 where an answer is unsafe or a test fails; open questions do not fail. The application "
        "is imported, not started, and its servers are asked for their settings; --run starts it.",
    )
    parser.add_argument(
        "application", nargs="?", metavar="APPLICATION", help="module:app, module:make_app(), or a module of functions"
    )
    parser.add_argument(
        "--unprotected-ok",
        action="append",
        default=[],
        metavar="ROUTE",
        help="a route that needs no protection, such as 'POST /login'; may be repeated",
    )
    parser.add_argument(
        "--reconcile",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="a reconciler that runs elsewhere, as given to semel worker --reconcile; may be repeated",
    )
    parser.add_argument(
        "--run", dest="tests", metavar="TESTS", help="module:name of a suite of semel.testing.required, to be run"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Run the check and report its result."""
    if options.application is None and options.tests is None:
        options.application = getattr(options.project, "application", None)
    if options.application is None and options.tests is None:
        raise UsageFailed("give an application, such as shop.main:app, or --run module:tests (see semel check --help)")
    document: dict[str, Any] = {}
    unsafe = 0
    if options.application is not None:
        unsafe += _questions(options, document, out)
    if options.tests is not None:
        unsafe += _tests(options.tests, document, out)
    document["unsafe"] = unsafe
    out.document(document)
    return Exit.REFUSED if unsafe else Exit.OK


# --- the questions ------------------------------------------------------------------------------


def _questions(options: argparse.Namespace, document: dict[str, Any], out: Output) -> int:
    spec, allowed = options.application, options.unprotected_ok
    found = _discover(spec)
    reconcilers = load_reconcilers(spec, options.reconcile)
    unknown = [route for route in allowed if route not in found.routes]
    if unknown:
        raise UsageFailed(f"--unprotected-ok {unknown[0]!r} is not a route of {spec}{near(unknown[0], found.routes)}")
    operations = [replace(each, reconciled_by=reconcilers.get(each.name)) for each in found.operations]
    given = [(operation, answers(operation)) for operation in operations]
    bare = [route for route in found.unprotected if route not in allowed]
    document["operations"] = [as_document(operation, each) for operation, each in given]
    document["unprotected"] = bare
    document["mistakes"] = [mistake.said for mistake in found.mistakes]
    for operation, each in given:
        out.say_styled("bold", operation.title)
        for answer in each:
            _say(answer, out)
        out.say("")
    servers = server_answers(found.operations)
    document["servers"] = [
        {"level": each.level, "answer": each.said, "remedy": each.remedy or None} for each in servers
    ]
    for answer in servers:
        _say(answer, out)
    for mistake in found.mistakes:
        _say(CheckAnswer("installation", "unsafe", mistake.said, mistake.remedy), out)
    for route in bare:
        _say(_unprotected_answer(route), out)
    levels = [answer.level for _, each in given for answer in each] + [
        _unprotected_answer(route).level for route in bare
    ]
    levels += [answer.level for answer in servers]
    unsafe = levels.count("unsafe") + len(found.mistakes)
    document["open"] = levels.count("open")
    out.say(f"{len(given)} operation(s): {unsafe} unsafe, {levels.count('open')} open, {levels.count('ok')} ok")
    return unsafe


def _unprotected_answer(route: str) -> CheckAnswer:
    method = route.partition(" ")[0]
    if method in _REPEATABLE:
        return CheckAnswer(
            "not declared",
            "open",
            f"{route} is not protected; {method} may be repeated by its definition",
            "make sure that a repetition is harmless, even after another client's change; or declare it",
        )
    return CheckAnswer(
        "not declared",
        "unsafe",
        f"{route} is not protected: a retry runs it again",
        f"declare it (@semel.command, or Operation(...)), or accept that it is not: --unprotected-ok '{route}'",
    )


def _say(answer: CheckAnswer, out: Output) -> None:
    head = f"  {_MARKS[answer.level]:<7} {answer.question:<{_WIDTH}} "
    out.say_hanging(head, answer.said, _STYLES.get(answer.level))
    if answer.remedy:
        out.say_hanging(f"  {'':<7} {'':<{_WIDTH}} → ", answer.remedy)


def _discover(spec: str) -> Discovered:
    thing = load(spec)
    try:
        if isinstance(thing, ModuleType) or function_operation(thing) is not None:
            found = discover_functions(thing)
        elif callable(thing) and (is_asgi(thing) or is_wsgi(thing)):
            found = discover(thing)
        else:
            raise UsageFailed(
                f"APPLICATION {spec} is of the type {type(thing).__name__}, no ASGI or WSGI application; for a "
                f"factory write '{spec.removesuffix('()')}()'"
            )
    except SemelError as error:
        raise UsageFailed(f"APPLICATION {spec}: {error}") from error
    if not found.operations and not found.unprotected:
        raise UsageFailed(
            f"APPLICATION {spec} has no operation that can be seen: name an application with @semel.command or "
            f"SemelMiddleware, or a module with @command functions{DJANGO_HINT}"
        )
    return replace(found, mistakes=tuple(dict.fromkeys(found.mistakes)))


# --- the required tests -------------------------------------------------------------------------


def _tests(spec: str, document: dict[str, Any], out: Output) -> int:
    thing = load(spec)
    checks = getattr(thing, "checks", None)
    if not callable(checks):
        raise UsageFailed(
            f"--run {spec} is of the type {type(thing).__name__}, no suite: name what "
            "semel.testing.required.suite(...) returned, or a class of RequiredTests"
        )
    results = [_result(test, out) for test in _tests_of(checks, spec)]
    failed = [each for each in results if each["failure"] is not None]
    document["tests"] = results
    out.say("", f"{len(results)} required test(s): {len(failed)} failed, {len(results) - len(failed)} passed")
    return len(failed)


def _tests_of(checks: Any, spec: str) -> Iterable[Any]:
    tests = list(checks())
    if not tests:
        raise UsageFailed(f"--run {spec} has no operations: give it operations=[Case(...)]")
    return tests


def _result(test: Any, out: Output) -> dict[str, Any]:
    failure: str | None = None
    try:
        test.run()
    except Exception as error:  # noqa: BLE001 -- a user's application may raise anything: the error is the result
        told = isinstance(error, (AssertionError, SemelError))
        failure = str(error) if told else f"{type(error).__name__}: {error}"
    line = f"  {'ok' if failure is None else 'FAILED':<7} {test.name:<46} {test.operation}"
    out.say_styled("red", line) if failure is not None else out.say(line)
    if failure is not None:
        out.say(*(f"  {'':<7} {text}" for text in failure.splitlines()), f"  {'':<7} why: {test.why}")
    return {"test": test.name, "operation": test.operation, "failure": failure}
