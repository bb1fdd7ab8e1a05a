"""The table of ``docs/nemeses.md``: what is done to which server, and what may come of it.

A short part of it is played in every test run, all of it by ``make soak``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.nemeses.scripts import play

# What a lost record looks like in a history: the command looks never asked for, and a retry runs it again.
LOSSES: Final = frozenset(
    {"not-linearizable", "two-effects", "changed-answer", "answer-without-effect", "derived-keys-differ"}
)
AFTER: Final = 100  # operations after the recovery, at least
FEW: Final = 12  # violations of what was under way in one moment: two workers have up to six commands each


@dataclass(frozen=True)
class Line:
    """One line. ``needs`` is what comes in no wheel; ``soak``: it is played by ``make soak`` alone."""

    nemesis: str
    store: str
    effects: str
    setting: str = ""
    needs: tuple[str, ...] = ()
    soak: bool = False

    @property
    def words(self) -> tuple[str, str, str, str]:
        """Its first four cells."""
        return (self.nemesis, self.store, self.effects, self.setting)

    @property
    def name(self) -> str:
        """Its words in one, for a test's name: reports of test runs cut names at blanks."""
        return "-".join(" ".join(self.words).replace(",", "").split())

    def __str__(self) -> str:
        return " ".join(self.words).strip()


MARIADB: Final = ("mariadb",)
DISK: Final = ("disk",)
SOUND: Final = (
    Line("server killed", "postgresql", "external"),
    Line("server killed", "mariadb", "atomic", needs=MARIADB),
    Line("server killed", "redis", "external", "always"),
    Line("server killed", "redis", "idempotent", "everysec"),
    Line("immediate stop", "postgresql", "atomic"),
    Line("backend killed", "asyncpg", "external"),
    Line("connections killed", "mariadb", "external", needs=MARIADB),
    Line("lost replies", "postgresql", "atomic"),
    Line("lost replies", "asyncpg", "external"),
    Line("lost replies", "mariadb", "atomic", needs=MARIADB),
    Line("lost replies", "redis", "external", "always"),
    Line("partition", "postgresql", "atomic"),
    Line("partition", "mariadb", "external", needs=MARIADB),
    Line("partition", "redis", "idempotent", "always"),
    Line("synchronous standby", "postgresql", "external"),
    Line("synchronous standby, cut off", "postgresql", "atomic"),
    Line("full disk", "postgresql", "external", needs=DISK),
    Line("full disk", "postgresql", "atomic", needs=DISK, soak=True),
    Line("full disk", "postgresql", "external", "log", needs=DISK),
    Line("full disk", "postgresql", "atomic", "log", needs=DISK, soak=True),
    Line("full disk", "mariadb", "external", needs=(*DISK, *MARIADB)),
    Line("full disk", "mariadb", "atomic", needs=(*DISK, *MARIADB), soak=True),
    Line("full disk", "redis", "external", "everysec", needs=DISK),
    Line("full disk", "redis", "external", "always", needs=DISK, soak=True),
    Line("sentinel failover, cut off", "redis", "external", "wait 2", soak=True),
    Line("cluster failover, cut off", "redis", "idempotent", "wait 1"),
    Line("cluster failover, cut off", "redis", "external", "wait 1", soak=True),
    Line("two nodes at once", "galera", "external", "sync_wait 7", needs=MARIADB, soak=True),
)
# What was acknowledged in the last moment may be gone here, seldom and on a busy machine; nothing else may.
RISKY: Final = (
    Line("nodes lost", "galera", "external", needs=MARIADB),
    Line("nodes lost", "galera", "atomic", needs=MARIADB, soak=True),
)
LOSING: Final = (
    Line("server killed", "redis", "external", "none"),
    Line("asynchronous standby, cut off", "postgresql", "external"),
    Line("asynchronous standby, cut off", "postgresql", "atomic"),
    Line("replica promoted, cut off", "redis", "external", "always"),
    Line("sentinel failover, cut off", "redis", "external"),
    Line("cluster failover, cut off", "redis", "external", soak=True),
    Line("two nodes at once", "galera", "atomic", "sync_wait 7", needs=MARIADB, soak=True),
)


def play_line(folder: Path, line: Line, seed: int) -> dict[str, Any]:
    """Play it once; what was found."""
    nemesis, store, effects, setting = line.words
    verdict: dict[str, Any] = play(
        "scenarios", folder, name=nemesis, store=store, effects=effects, setting=setting, seed=seed
    )
    return verdict


def find_violation(line: Line, verdict: dict[str, Any]) -> str | None:
    """Return what the documents do not allow of this; None if all is as they say."""
    if verdict["undecided"]:
        return f"undecided: {verdict['undecided']}"
    if verdict["after"] < AFTER or not verdict["effects"]:
        return f"it did not recover: {verdict['after']} operations after it, {verdict['effects']} effects in all"
    if line in RISKY:
        return _more_than_a_moment(verdict)
    return _unsound(line, verdict) if line in SOUND else _find_missing_loss(line, verdict)


def _unsound(line: Line, verdict: dict[str, Any]) -> str | None:
    if verdict["kinds"]:
        return "\n".join(verdict["shown"])
    more = verdict["more"]
    if line.nemesis == "full disk":
        met = (
            more["refused"] >= 5
            and more["slowest"] <= 3
            and more["replayed"] == (line.setting not in ("always", "log"))
        )
        return None if met else f"not as a full disk should be met: {more}"
    return None


def _more_than_a_moment(verdict: dict[str, Any]) -> str | None:
    """Nothing may be broken but a few commands of the moment in which the server died."""
    kinds = verdict["kinds"]
    if verdict["more"]["refused"] != 5:
        return f"a node without a quorum granted something: {verdict['more']}"
    if not kinds.keys() <= LOSSES or sum(kinds.values()) > FEW:
        return f"predicted is less than {kinds}\n" + "\n".join(verdict["shown"])
    return _young(verdict)


def _find_missing_loss(line: Line, verdict: dict[str, Any]) -> str | None:
    """The documents say that something is lost here, and a checker that is to be believed must see it."""
    kinds = verdict["kinds"]
    if line.store == "galera":  # both nodes run it, and one is refused its commit
        fits = kinds.keys() <= {"not-linearizable"} and verdict["more"]["conflicts"] > 0
        return None if fits else f"predicted is less: {kinds}, {verdict['more']}\n" + "\n".join(verdict["shown"])
    # Of an ATOMIC command the effect is lost with the record; any other has happened, and happens again.
    fits = kinds.keys() <= LOSSES and ("two-effects" in kinds) == (line.effects != "atomic")
    if not fits or not kinds.get("changed-answer"):
        return f"predicted is another loss than {kinds}\n" + "\n".join(verdict["shown"])
    return _young(verdict)


def _young(verdict: dict[str, Any]) -> str | None:
    if verdict["young"]:
        return f"commands after the recovery are as safe as any, and these were not: {verdict['young']}"
    return None
