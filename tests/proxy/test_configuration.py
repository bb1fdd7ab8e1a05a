"""operations.toml: what it says, and what it is refused for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from semel.errors import ConfigurationError
from semel.http.caller import Caller
from semel.proxy.configuration import UpstreamOrigin, caller_of, configuration_of

_PAY = '\n[[operation]]\nname = "pay"\npath = "/payments"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("caller =", "not TOML: .*line 1|not TOML: .*end of document"),
        (_PAY, "caller is missing"),
        ('caller = "ip"' + _PAY, "caller must be one of"),
        (
            'caller = "header:Authorization"' + _PAY,
            "caller must not be the header Authorization.*caller = .authorization",
        ),
        ('caller = "header:cookie"' + _PAY, "caller must not be the header cookie"),
        ('caller = "header:Idempotency-Key"' + _PAY, "caller must not be the header Idempotency-Key"),
        ('caller = "header:"' + _PAY, "caller must be one of"),
        ('caller = "header:X User"' + _PAY, "caller must be one of"),
        ('caller = "none"', "no operation is declared"),
        ('caller = "none"\nupstrem = 1' + _PAY, "'upstrem' is not a member"),
        (
            'caller = "none"' + _PAY + 'effect = "external"',
            r"\(pay\): 'effect' is not a member; did you mean 'effects'",
        ),
        ('caller = "none"' + _PAY + 'effects = "atomic"', "effects cannot be 'atomic'"),
        ('caller = "none"' + _PAY + 'lease_seconds = "30"', r"\(pay\): lease_seconds must be a number"),
        ('caller = "none"' + _PAY + "success = [404]", "success must be a list of 2xx"),
        ('caller = "none"' + _PAY + "not_run = [200]", r"\(pay\): not_run must be a list of statuses from 400 to 599"),
        ('caller = "none"' + _PAY + "not_run = 429", r"\(pay\): not_run must be a list of statuses"),
        ('caller = "none"' + _PAY + 'answers = "rebuild"', "write 'forget'"),
        ('caller = "none"' + _PAY + 'method = "GET"', "GET is not a command"),
        ('caller = "none"' + _PAY + _PAY, "duplicate operation name"),
        ('caller = "none"' + _PAY + "timeout_seconds = 0", "timeout_seconds must be 0.1 to 3600"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        configuration_of(text)


def test_a_service_may_be_given_less_time_than_a_lease() -> None:
    found = configuration_of('caller = "none"\ntimeout_seconds = 2' + _PAY)
    assert found.timeouts == {"pay": 2.0}
    assert found.operations[0].policy.deadline_seconds == 30


def test_a_caller_header_that_is_missing_or_doubled_names_no_caller() -> None:
    read = caller_of("header:X-User")
    assert read({"headers": [(b"x-user", b"alice")]}) == Caller("proxy", "alice")
    assert read({"headers": []}) is None
    assert read({"headers": [(b"x-user", b"alice"), (b"x-user", b"bob")]}) is None


def test_authorization_is_kept_as_a_hash_only() -> None:
    caller = caller_of("authorization")({"headers": [(b"authorization", b"Bearer secret")]})
    assert caller is not None
    assert "secret" not in caller.id
    assert len(caller.id) == 64


@pytest.mark.parametrize(
    ("url", "host", "own"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1", True),
        ("http://localhost:8080", "127.0.0.1", True),
        ("http://[::1]:8080", "0.0.0.0", True),
        ("http://shop:8080", "shop", True),
        ("http://127.0.0.1:3000", "127.0.0.1", False),
        ("http://10.0.0.7:8080", "0.0.0.0", False),
        ("http://shop:8080", "127.0.0.1", False),
    ],
)
def test_a_proxy_is_not_its_own_upstream(url: str, host: str, own: bool) -> None:
    """One request would come back to it until no connection is left."""
    expected: Any = pytest.raises(ConfigurationError, match="each request would come back") if own else nullcontext()
    with expected:
        UpstreamOrigin.of(url).check_is_another(host, 8080)


@pytest.mark.parametrize("url", ["shop:3000", "http://", "ftp://shop", "http://shop/path", "http://shop:99999"])
def test_an_upstream_with_a_path_or_query_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--upstream"):
        UpstreamOrigin.of(url)
