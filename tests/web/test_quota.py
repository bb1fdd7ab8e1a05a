"""A quota of new keys over HTTP: 429 with the time to come back, nothing stored, retries answered."""

from __future__ import annotations

from semel import Quota
from tests.web.conftest import MakeWeb
from tests.web.driving import BOB

CODE = "IDEMPOTENCY_KEY_QUOTA_EXCEEDED"


def test_a_new_key_beyond_the_quota_is_429_and_a_retry_is_answered(make_web: MakeWeb) -> None:
    web = make_web(quota=Quota(new_keys=1, per_seconds=60))
    first = web.call(key="one")
    assert (first.status, first.header("idempotency-key-lifetime")) == (201, "86400")
    refused = web.call(key="two")
    assert (refused.status, refused.code) == (429, CODE)
    assert (refused.problem["keyAction"], refused.problem["retryable"]) == ("keep", True)
    assert 57 <= int(refused.header("retry-after") or 0) <= 63
    assert refused.problem["retryAfter"] == int(refused.header("retry-after") or 0)
    assert refused.header("semel-code") == CODE
    assert refused.header("idempotency-key-lifetime") is None
    again = web.call(key="one")
    assert (again.status, again.replayed) == (201, True)
    assert web.call(key="two", caller=BOB).status == 201
    assert (len(web.seen), len(web.records())) == (2, 2)
