"""Do `semel conform` and `make compare` say the same of a package, where they look for the same?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from bench.correctness.verdicts import Finding, Verdict
from semel.conform import Report

# What a check fails at, by the case of `make compare` that looks for it.
_BAD_RETRY: Final = frozenset({Verdict.TWICE, Verdict.OTHER_ANSWER, Verdict.ERROR_AFTER, Verdict.ERROR, Verdict.HANGS})
_RAN: Final = frozenset({Verdict.TWICE, Verdict.HANGS})
_LEAKS: Final = frozenset({Verdict.LEAK, Verdict.HANGS})
_TAKEN: Final = frozenset(set(Verdict) - {Verdict.REFUSED, Verdict.NOT_OFFERED, Verdict.NO_START})
PAIRS: Final[Mapping[str, tuple[str, frozenset[Verdict]]]] = {
    "retry": ("replay-once", _BAD_RETRY | {Verdict.REFUSED_AFTER}),
    "parallel": ("race-crowd", _RAN),
    "killed": ("crash-one-effect", _RAN),
    "gone": ("lost-running", _RAN),
    "scoped": ("caller-other", _LEAKS | {Verdict.TWICE}),
    "payload": ("other-body", frozenset({Verdict.WRONG_PAYLOAD, Verdict.TWICE, Verdict.HANGS})),
    "binary": ("replay-binary", _BAD_RETRY),
    "stream": ("replay-stream", _BAD_RETRY),
    "reply-3mb": ("replay-huge-answer", _BAD_RETRY),
    "error": ("broken-again", _RAN),
    "empty": ("key-empty", _TAKEN),
    "nonascii": ("key-non-ascii", _TAKEN),
    "lines": ("key-doubled", _TAKEN),
    "comma": ("key-list", _TAKEN),
    "key-10kb": ("key-too-long", _TAKEN),
}
# Why the two may differ: how they look is not the same.
REASONS: Final[Mapping[str, str]] = {
    "killed": "the case's handler waits at a gate after its effect; the check's is killed at a third of its time",
    "gone": "the case's client leaves once the effect has happened; the check's after a third of the handler's time",
    "scoped": "the case names the caller in a header and asks no credentials; so does the check",
    "retry": "the check counts effects; the case compares the answers too",
    "key-10kb": "the case's key has 10,000 characters, the check's 8,000",
    "reply-3mb": "the check fails already where the first caller gets no 2xx; the case looks at the retry alone",
    "error": "the case's handler fails at its first run alone, the check's at each",
    "empty": "the check also sends other requests that have no key before it, in a package that shares the empty key",
    "lines": "the case sends bare keys, the check quoted ones",
    "comma": "the case sends bare keys, the check quoted ones",
    "nonascii": "the case sends a bare key, the check a quoted one",
}


class Row(NamedTuple):
    """One cell of both: whether they agree, and where not, why."""

    subject: str
    case: str
    verdict: str
    check: str
    outcome: str
    agrees: bool
    why: str


def compare_cells(subject: str, findings: Mapping[str, Finding], report: Report) -> list[Row]:
    """The cells in which both have looked at one subject.

    >>> compare_cells("x", {}, Report("u", "o", "semel", ()))
    []
    """
    outcomes = {result.check.id: result.outcome for result in report.results}
    rows = []
    for case, (check, bad) in PAIRS.items():
        finding, outcome = findings.get(case), outcomes.get(check, "not-tried")
        if finding is None or outcome == "not-tried" or finding.verdict in (Verdict.NOT_OFFERED, Verdict.NO_START):
            continue
        agrees = (finding.verdict in bad) == (outcome == "failed")
        why = "" if agrees else REASONS.get(case, "not explained yet")
        rows.append(Row(subject, case, finding.words(), check, outcome, agrees, why))
    return rows
