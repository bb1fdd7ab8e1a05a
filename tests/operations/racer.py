"""One process of a race: the references of the others, under keys of its own. Says what it ran, and what it met."""

from __future__ import annotations

import asyncio
import json
import sys
from hashlib import sha256
from typing import Any

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.core.model import Effects
from semel.errors import CommandError, StoreUnavailable


def command(name: str, number: int, policy: Policy) -> Command:
    scope = Scope("acme", "alice", "pay")
    return Command(
        scope, f"{name}-{number}", sha256(b"%d" % number).digest(), "race", policy, business_ref=f"r-{number}"
    )


def handler(number: int, ran: list[int]) -> Any:
    def act(permit: Permit) -> Answer:
        ran.append(number)
        return Answer(201, (), b"%d" % number)

    return act


def threads(options: dict[str, Any], policy: Policy, ran: list[int], met: list[str]) -> None:
    with Engine.connect(options["url"]) as engine:
        ready()
        for number in range(options["rounds"]):
            try:
                engine.run(command(options["name"], number, policy), handler(number, ran), wait_seconds=20)
            except (CommandError, StoreUnavailable) as error:
                met.append(type(error).__name__)


async def loop(options: dict[str, Any], policy: Policy, ran: list[int], met: list[str]) -> None:
    async with AsyncEngine.connect(options["url"]) as engine:

        async def one(number: int) -> None:
            act = handler(number, ran)

            async def handle(permit: Permit) -> Answer:
                answer: Answer = act(permit)
                return answer

            try:
                await engine.run(command(options["name"], number, policy), handle, wait_seconds=20)
            except (CommandError, StoreUnavailable) as error:
                met.append(type(error).__name__)

        ready()
        await asyncio.gather(*(one(number) for number in range(options["rounds"])))


def ready() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def main(options: dict[str, Any]) -> None:
    policy = Policy(effects=Effects[options["effects"].upper()])
    ran: list[int] = []
    met: list[str] = []
    if options["asynchronous"]:
        asyncio.run(loop(options, policy, ran, met))
    else:
        threads(options, policy, ran, met)
    print(json.dumps({"ran": ran, "met": met}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
