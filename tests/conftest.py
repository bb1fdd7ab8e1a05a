"""What every suite shares: the run's real servers, which the main process begins and ends."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path

import pytest

from tests.ordering import begin_first, seat_of, seats
from tests.progress import Progress
from tests.servers.needed import LeftOut
from tests.servers.running import begin_run, end_run, in_memory, one_of

_RUN = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in a shell's background inherits that Ctrl-C is ignored, and so would every process whose end by Ctrl-C
        # is tested: it would never end. A signal with a handler is at its default in what is started.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # the one that outlives the workers
        os.environ["SEMEL_TEST_OWNER"] = str(os.getpid())
        config.stash[_RUN] = begin_run(in_memory())
        config.pluginmanager.register(Progress())


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_RUN, None)
    if folder is not None:
        end_run(folder)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import a share of the test modules first, another one in each worker, where all of them are collected.

    On a fresh clone nothing is compiled. Workers that collect in the same order would all compile the same module at
    the same time, and rewrite its assertions. So each of them finds most of that done by another one.
    """
    config = session.config
    given = getattr(config, "workerinput", None)
    if given is None or config.args != config.getini("testpaths"):
        return
    files = sorted(config.rootpath.glob("tests/*/test_*.py"))
    for file in files[int(given["workerid"].removeprefix("gw")) :: given["workercount"]]:
        with suppress(Exception):  # the collection meets it again, and reports it
            import_module(f"tests.{file.parent.name}.{file.stem}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is made while tests are collected stays: looking for garbage in it was a twelfth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A name with an address in it differs between the workers of one run, which then run nothing at all."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"give the parameters of {item.nodeid} ids that are the same in every process")
    items[:] = begin_first(items, getattr(config, "workerinput", {}).get("workercount", 1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three workers for each core: the tests wait for half of their time, for a server, a lock, a lease or a timeout
    that they are about. Of those that start processes, or compute for long, fewer run at a time, see below."""
    return 3 * seats()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that starts processes of its own waits for a seat, before anything of it begins and no clock runs."""
    within_a_run = hasattr(item.config, "workerinput")
    kind = seat_of(item.nodeid) if within_a_run else None
    with nullcontext() if kind is None else one_of(f"{kind}-seat", seats()):
        return (yield)


_SETTLED = pytest.StashKey[object]()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """What is there when a module's first test begins lives to the end: nothing looks for garbage in it again, which
    was a third of the simulator's time. What is garbage by then is found out here, before it is another module's.

    ``no_cover`` means it: pytest-cov's own pause leaves the tracer that a worker of xdist began with as a child.
    """
    module = getattr(item, "module", None)
    if item.session.stash.get(_SETTLED, item) is not module:
        item.session.stash[_SETTLED] = module
        gc.collect()
        gc.freeze()
    with pause_tracing() if item.get_closest_marker("no_cover") else nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """As its setup."""
    with pause_tracing() if item.get_closest_marker("no_cover") else nullcontext():
        return (yield)


@contextmanager
def pause_tracing() -> Iterator[None]:
    """No coverage tool meanwhile, neither here nor in threads and processes that begin: the same lines at full speed.

    What is measured by ``sys.monitoring`` (coverage's way from Python 3.14 on) continues; it costs a line only once.
    """
    tracing, in_threads = sys.gettrace(), threading.gettrace()
    for_children = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("COVERAGE_PROCESS")}
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        os.environ.update(for_children)
        threading.settrace(in_threads)
        sys.settrace(tracing)
