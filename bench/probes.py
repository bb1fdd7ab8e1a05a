"""What is measured without HTTP: the servers' own benchmarks, and Semel's store calls beside them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.plain import HEADERS, SCRIPTS
from bench.processes import BenchError, Child
from bench.servers import Started
from bench.subjects import ANSWER_BODY, Probe

LIMITS: Final[Mapping[str, str]] = {
    "postgresql": "pgbench",
    "postgresql+asyncpg": "pgbench",
    "redis": "redis-benchmark",
}
"""The server's own benchmark, by kind of store."""
_TPS: Final = re.compile(r"tps = ([\d.]+)")
_PER_SECOND: Final = re.compile(r"([\d.]+) requests per second")
_RECORD_BYTES: Final = 700  # of a record with the bench's answer
_COMMANDS_PER_SECOND: Final = 60_000  # about; redis-benchmark takes a number and not a time
# The least that a claim in progress can be: a value that is there is answered, else it is written.
_CLAIM: Final = """
local now = redis.call('TIME')
local record = redis.call('GET', KEYS[1])
if record then return record end
redis.call('SET', KEYS[1], now[1] .. ARGV[1])
return false
"""
_COMPLETE: Final = """
if redis.call('GETRANGE', KEYS[1], 0, 8) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', 86400000)
return 1
"""


@dataclass(frozen=True, slots=True)
class Probed:
    """One measurement. ``pair_cpu_us`` of the calling process, where it is one of ours."""

    pairs_per_second: float
    pair_cpu_us: float | None


def missing(probe: Probe) -> str | None:
    """Return what a probe needs beyond its server and is not here; None if nothing is missing."""
    if probe.kind == "redis-benchmark" and shutil.which("redis-benchmark") is None:
        return "no redis-benchmark here (install redis-tools)"
    return None


def measure_probe(probe: Probe, started: Started, ways: int, seconds: float) -> Probed | None:
    """Measure one probe once; None if it is not measured at so many ways.

    Raises BenchError: a program failed; it says how.
    """
    return _KINDS[probe.kind](probe, started, ways, seconds)


def _pgbench(probe: Probe, started: Started, ways: int, seconds: float) -> Probed:
    assert started.programs is not None
    url = started.urls[probe.store]
    _run([str(started.programs / "psql"), "-q", "-f", str(SCRIPTS / "schema.sql"), url])
    said = _run(
        [
            *(str(started.programs / "pgbench"), "-n", "-M", "prepared", "-c", str(ways), "-j", str(min(ways, 2))),
            *(
                "-T",
                str(max(1, round(seconds))),
                "-D",
                f"body={ANSWER_BODY.decode()}",
                "-D",
                f"headers={HEADERS.decode()}",
            ),
            *("-f", str(SCRIPTS / "claim_complete.sql"), url),
        ]
    )
    return Probed(float(_found(_TPS, said)), None)


def _redis_benchmark(probe: Probe, started: Started, ways: int, seconds: float) -> Probed:
    """Claims and completions are measured one after the other: a pair takes as long as one of each."""
    import redis

    port = urlsplit(started.urls[probe.store]).port
    assert port is not None
    record = "r" * _RECORD_BYTES
    with redis.Redis(port=port) as client:
        claim, complete = (str(client.script_load(text)) for text in (_CLAIM, _COMPLETE))
        client.set("bench:one", record)
    seconds_of_pair = 0.0
    for command in (
        ("EVALSHA", claim, "1", "bench:__rand_int__", record),
        ("EVALSHA", complete, "1", "bench:one", record[:9], record),
    ):
        number = int(_COMMANDS_PER_SECOND * seconds / 2 * min(1.0, ways / 8))
        program = ("redis-benchmark", "-p", str(port), "-c", str(ways), "-n", str(number), "-r", "1000000000", "-q")
        seconds_of_pair += 1 / float(_found(_PER_SECOND, _run([*program, *command]).rpartition("\r")[2]))
    return Probed(1 / seconds_of_pair, None)


def _calls(probe: Probe, started: Started, ways: int, seconds: float) -> Probed | None:
    if probe.kind == "plain" and ways != 1:
        return None
    child = Child("bench.calls", json.dumps([probe.kind, started.urls[probe.store], ways, seconds]))
    try:
        said = child.stdout.read()
        if child.wait() != 0:
            raise BenchError(f"{probe.name} failed; see its words above")
    finally:
        child.end()
    return Probed(**json.loads(said))


_KINDS: Final[Mapping[str, Callable[[Probe, Started, int, float], Probed | None]]] = {
    "pgbench": _pgbench,
    "redis-benchmark": _redis_benchmark,
    "calls": _calls,
    "plain": _calls,
}


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        raise BenchError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _found(pattern: re.Pattern[str], said: str) -> str:
    match = pattern.search(said)
    if match is None:
        raise BenchError(f"this says no rate: {said.strip()[-200:]!r}")
    return match[1]
