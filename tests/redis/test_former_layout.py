"""What lies in the server is what revision 8fd64371 wrote there, byte for byte: either may go on with the other's.

Its scripts and those of today run in one fleet while a release is deployed. ``former_layout.json`` is what this file
printed with that revision's code: ``python -m tests.redis.test_former_layout PORT``, on an empty server. Only the
schema's version has grown since: the markers that it counts are beside those of that revision.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from redis import Redis

from semel import Policy
from semel.core.model import Claim, State
from semel.stores.backend import Backend
from semel.stores.redis.url import redis_backend
from semel.testing.attempts import EXTERNAL, IDEMPOTENT, attempt, settlement
from semel.testing.clock import SettableClock

FORMER: Final = Path(__file__).with_name("former_layout.json")
PREFIX: Final = "layout"
SETTLED: Final = ("paid", "twice", "declined")


def test_the_names_that_a_fleet_shares_have_not_changed(own: int) -> None:
    with Redis(port=own) as client:
        client.flushall()
    assert write_records(own) == json.loads(FORMER.read_text("utf-8"))


def write_records(port: int) -> dict[str, Any]:
    """Write claims and settlements to an empty server; return every key, its value and its remaining seconds."""
    clock = SettableClock()
    made = redis_backend((("127.0.0.1", port),), prefix=PREFIX, clock=clock)
    run(made, "migrate", "store", b"none")
    once = Policy(effects="idempotent", attempts_max=1, answer_seconds=600, tombstone_seconds=3600)
    short = Policy(lease_seconds=5, answer_seconds=60, tombstone_seconds=7200)
    policies = {"paid": EXTERNAL, "twice": IDEMPOTENT, "once": once, "declined": short, "runs": IDEMPOTENT}
    claims: dict[str, Claim] = {key: attempt(key=key, policy=policy) for key, policy in policies.items()}
    grants = {key: run(made, "claim", (claim,))[0].grant for key, claim in claims.items()}
    clock.advance(1_500_000)
    for key in SETTLED:
        state = State.FAILED_REPLAYABLE if key == "declined" else State.SUCCEEDED
        run(made, "settle", (settlement(grants[key], state),))
    made.driver.close()
    return dump(port)


def run(made: Backend, verb: str, *arguments: Any) -> Any:
    return made.driver.run(lambda: getattr(made.store, verb)(*arguments))


def dump(port: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with Redis(port=port) as client:
        for key in client.keys("*"):
            name, left = key.decode(), client.pttl(key)
            if "marker" in name:
                continue
            value: Any
            match client.type(key):
                case b"string":
                    value = client.get(key).hex()
                case b"zset":
                    value = [(id.hex(), int(score)) for id, score in client.zrange(key, 0, -1, withscores=True)]
                case _:
                    value = sorted((name.hex(), data.hex()) for name, data in client.hgetall(key).items())
            found[name] = [value, round(left / 60_000)]
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


if __name__ == "__main__":
    print(json.dumps(write_records(int(sys.argv[1])), indent=1, sort_keys=True))
