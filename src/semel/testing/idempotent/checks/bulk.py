"""Check an interrupted list: a retry must not run finished items again."""

from __future__ import annotations

from dataclasses import dataclass

from semel.testing.idempotent.interrupting import Moment, Witness, watch
from semel.testing.idempotent.probe import Attempted, Probe
from semel.testing.idempotent.reply import Came, Reply
from semel.testing.idempotent.report import NotGiven

_CHECK = "bulk_retry_does_not_rerun_finished_items"
_ITEMS_MIN = 3  # one finished, one running and one not begun
_SENT = (
    "the list; the process died between two chunks; the list again when the lease had lapsed, died after some "
    "handlers; the list again"
)


@dataclass
class _Trial:
    """One list, sent until it was done."""

    command: Attempted
    runs: list[Witness]
    last: Reply
    again: Reply

    @property
    def rerun(self) -> list[int]:
        """The places of items that were run again after their outcome was stored."""
        return sorted(self.runs[0].finished & (self.runs[1].handed | self.runs[2].handed))


async def bulk_retry_does_not_rerun_finished_items(probe: Probe) -> None:
    """A list of a thousand payments stops in the middle, and its client sends it again, as it should. What was paid
    must not be paid again, what was not must be, and the answer must be that of one list."""
    await probe.baseline()
    probe.need_engine()
    if probe.bulk is None:
        if not probe.known:
            raise NotGiven("no Semel protects this operation", "declare it; see the other findings")
        probe.remark("it is not a bulk: there was no list to interrupt")
        return
    if probe.bulk.total < _ITEMS_MIN:
        raise NotGiven(
            f"the list has no middle: it has {_items(probe.bulk.total)}",
            f"give a payload of at least {_ITEMS_MIN} items, better of six",
        )
    if _judge(probe, await _interrupt(probe)):
        await _other_list(probe)


async def _interrupt(probe: Probe) -> _Trial:
    clocks = probe.need_clocks()
    command = await probe.command("bulk")
    runs: list[Witness] = []
    for moment in Moment:
        with watch(probe.engines, moment) as witness:
            await command.send()
        runs.append(witness)
        if not runs[0].died:
            raise NotGiven(
                "the list has no middle: all of its items that can be handled went to their handlers together",
                "give more items that are well-formed",
            )
        clocks.advance(probe.policy.lease_seconds + 1)
    with watch(probe.engines) as witness:
        last = await command.send()
    runs.append(witness)
    return _Trial(command, runs, last, await command.send())


async def _other_list(probe: Probe) -> None:
    command = await probe.command("another list")
    other = probe.case.another(command.number, probe.members)
    if other is None or other == command.request:
        return  # the check of other payloads has reported it
    with watch(probe.engines, Moment.BETWEEN_CHUNKS):
        await command.send()
    probe.need_clocks().advance(probe.policy.lease_seconds + 1)
    reply = await command.send(other)
    if reply.came is Came.KEY_REUSED and not command.last:
        return
    probe.find(
        _CHECK,
        "the list; the process died between two chunks; another list under the same key",
        f"{reply.text()}; {probe.times(command.last)}",
        "two lists are mixed under one key: the progress of the first one is lost",
        "give Bulk the very list that the client sent, with the client's own key: it compares the whole list before "
        "anything of it is done",
    )


def _judge(probe: Probe, trial: _Trial) -> bool:
    """Judge whether each item was done once, and the list had one answer."""
    assert probe.bulk is not None
    assert probe.bulk.policy is not None
    effects = probe.bulk.policy.effects
    grown = trial.command.grown
    came = f"{trial.last.text()}; {probe.times(grown, 'in all')}"
    if trial.rerun:
        probe.find(
            _CHECK,
            _SENT,
            f"{_items(len(trial.runs[0].finished))} had been finished, and {_places(trial.rerun)} of the list ran "
            f"again; {probe.times(grown, 'in all')}",
            "the retry does not continue where the first run stopped, it starts again: payees are paid twice",
            "give Bulk the client's own key, and the same caller, tenant and operation at every attempt: it knows its "
            "finished items by them",
        )
    elif grown > probe.unit:
        probe.find(
            _CHECK,
            _SENT,
            came,
            "an item that was under way when the process died was done twice",
            "write on item.connection and nowhere else, and never commit: only that is undone with the chunk; what "
            "calls another system is 'idempotent' or 'external'"
            if effects == "atomic"
            else "hand the other side item.key_for('charge') as its key, the same at every attempt; if it has no such "
            "key, declare effects='external'",
        )
    elif not trial.last.done or (grown < probe.unit and effects != "external"):
        probe.find(
            _CHECK,
            _SENT,
            came,
            "the rest of the list is lost: its client asks again and is never served",
            "see why the last attempt fails; nothing but the key, the list and the caller must be needed to continue",
        )
    elif not trial.again.same_answer(trial.last):
        probe.find(
            _CHECK,
            _SENT,
            f"{trial.last.text()}, and on a retry {trial.again.text()}",
            "two answers about one list: its client does not know which items were done",
            "return what Bulk.run returned, and nothing that is counted or timed again",
        )
    else:
        if grown < probe.unit:
            _remark_unknown(probe)
        return True
    return False


def _remark_unknown(probe: Probe) -> None:
    probe.remark(
        "items that were running in a crash become UNKNOWN and never run again, as declared (effects='external'): "
        "list them with `semel bulk`, and settle them after asking the provider"
    )


def _places(places: list[int]) -> str:
    named = ", ".join(str(place + 1) for place in places[:10])
    more = f" and {len(places) - 10} more" if len(places) > 10 else ""
    return f"item{'' if len(places) == 1 else 's'} {named}{more}"


def _items(number: int) -> str:
    return "one item" if number == 1 else f"{number} items"
