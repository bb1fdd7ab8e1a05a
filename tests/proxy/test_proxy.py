"""`semel proxy` as its own process, in front of node and of an upstream that breaks the line on purpose."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from semel.cli.main import main
from semel.client.answers import link_of
from tests.proxy.running import Breaking, Running

EXAMPLE = Path(__file__).parents[2] / "examples" / "proxy"
CONFIG = """
caller = "authorization"
timeout_seconds = 20
[[operation]]
name = "pay"
path = "/payments"
[[operation]]
name = "pay-many"
path = "/payments.csv"
[[operation]]
name = "invoice"
path = "/invoices/{id}/pay"
key_from = "path:id"
[[operation]]
name = "note"
path = "/notes"
effects = "idempotent"
"""


class Proxy(Running):
    """One proxy process."""

    def __init__(self, folder: Path, upstream: int, store: str) -> None:
        config = folder / "operations.toml"
        config.write_text(CONFIG)
        arguments = ["proxy", "--config", str(config), "--upstream", f"http://127.0.0.1:{upstream}"]
        super().__init__([*arguments, "--store", store, "--port", "0"])

    def post(self, path: str, key: str | None, body: object, who: str = "alice") -> httpx.Response:
        headers = {"authorization": f"Bearer {who}"} | ({} if key is None else {"idempotency-key": f'"{key}"'})
        return self.client.post(path, json=body, headers=headers)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('proxy') / 'semel.db'}"
    assert main(["migrate", "--url", url]) == 0
    return url


@pytest.fixture(scope="module")
def node(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with subprocess.Popen(["node", str(EXAMPLE / "shop.js"), "--port", "0"], stdout=subprocess.PIPE) as shop:
        assert shop.stdout is not None
        proxy = Proxy(tmp_path_factory.mktemp("node"), int(shop.stdout.readline().split()[1]), store)
        yield proxy
        proxy.end()
        shop.terminate()


@pytest.fixture(scope="module")
def breaking() -> Iterator[Breaking]:
    upstream = Breaking()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def faulty_proxy(breaking: Breaking, store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path_factory.mktemp("breaking"), breaking.port, store)
    yield proxy
    proxy.end()
    assert b"canary" not in proxy.log
    assert b"semel-code" not in proxy.log  # of its own answers nothing is missed in a replay
    assert b"Traceback" not in proxy.log


def test_a_retry_gets_the_first_answer_and_a_node_service_one_request(node: Proxy) -> None:
    count = len(node.client.get("/payments").json())
    first = node.post("/payments", "once", {"amount": 7})
    again = node.post("/payments", "once", {"amount": 7})
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert "idempotency-key-lifetime" in first.headers
    payments = node.client.get("/payments").json()
    assert len(payments) == count + 1
    operation = node.client.get(
        f"/operations/{payments[-1]['operation']}", headers={"authorization": "Bearer alice"}
    ).json()
    assert operation["state"] == "SUCCEEDED"
    assert node.post("/payments", "once", {"amount": 8}).status_code == 422
    assert node.post("/payments", None, {"amount": 7}).status_code == 400
    assert node.client.post("/payments", json={}, headers={"idempotency-key": '"x"'}).status_code == 401


def test_a_path_with_a_format_of_its_own_is_an_operation_or_passes(breaking: Breaking, faulty_proxy: Proxy) -> None:
    """Rails and others take the format off; where a service does not, both paths are declared."""
    for path in ("/payments.csv", "/report.json", "/v1.2/other", "/.payments"):
        breaking.answers.append(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok")
        assert faulty_proxy.post(path, "format", {}).status_code == 201
        assert breaking.requests[-1].startswith(b"POST " + path.encode())


def test_two_callers_with_one_key_do_not_get_each_others_answer(node: Proxy) -> None:
    first = node.post("/payments", "shared", {"amount": 1}, "alice")
    other = node.post("/payments", "shared", {"amount": 1}, "bob")
    assert other.status_code == 201
    assert other.json() != first.json()
    assert "idempotency-replayed" not in other.headers


def test_twenty_at_once_are_one_payment(node: Proxy) -> None:
    count = len(node.client.get("/payments").json())
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: node.post("/payments", "race", {"amount": 3}), range(20)))
    assert {each.status_code for each in answers} <= {201, 409}
    assert len({each.content for each in answers if each.status_code == 201}) == 1
    assert len(node.client.get("/payments").json()) == count + 1


@pytest.mark.parametrize("path", ["//payments", "/payments/", "/%2Fpayments", "/Payments", "/./payments"])
def test_a_lenient_spelling_of_a_command_is_not_passed_on(node: Proxy, path: str) -> None:
    sent = f'POST {path} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: "a"\r\nContent-Length: 2\r\n\r\n{{}}'
    assert b" 400 " in node.send(sent).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST /payments HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked", b"400"),
        ("POST /payments HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3", b"400"),
        ("POST http://x/payments HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("GET /chat HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket", b"501"),
        ("CONNECT x:80 HTTP/1.1\r\nHost: x", b"501"),
        ("POST /payments HTTP/1.1\r\nHost: x\r\nConnection: Idempotency-Key\r\nIdempotency-Key: a", b"400"),
        ("POST /other HTTP/1.1\r\nHost: x\r\nConnection: close, authorization\r\nAuthorization: a", b"400"),
        ("POST /payments HTTP/1.1\r\nHost: x\r\nHost: y\r\nContent-Length: 0", b"400"),
        ("POST /payments HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked", b"400"),
        ("POST /payments HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked", b"400"),
        ("POST /other HTTP/1.1\r\nHost: x\r\nX-Nul: a\x00b\r\nContent-Length: 0", b"400"),
        ("POST //evil/payments HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("POST /%5cevil/payments HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("POST /payments#x HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("POST /a/%2e%2e/payments HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("POST /invoices/7;v=1/pay HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nContent-Length: 0", b"400"),
        ("POST /payments.json HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("POST /payments.x-json HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("POST /payments.v2.json HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("POST /Payments%2eXML HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("POST /payments. HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("POST /invoices/7/pay.json HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("PUT /payments.json HTTP/1.1\r\nHost: x\r\nX-HTTP-Method-Override: post\r\nContent-Length: 0", b"400"),
        ("POST /payments;v=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0", b"400"),
        ("PUT /payments HTTP/1.1\r\nHost: x\r\nX-HTTP-Method-Override: post\r\nContent-Length: 0", b"400"),
        ("GET /payments HTTP/1.1\r\nHost: x\r\nX_HTTP_Method_Override: POST", b"400"),
        ("POST /payments HTTP/1.1\r\nHost: x\r\nEarly-Data: 1\r\nContent-Length: 0", b"425"),
        ("POST /other HTTP/1.1\r\nHost: x\r\nEarly-Data: 1\r\nContent-Length: 0", b"425"),
    ],
)
def test_ambiguous_requests_are_refused(node: Proxy, head: str, status: bytes) -> None:
    count = len(node.client.get("/payments").json())
    assert node.send(head + "\r\n\r\n").split(b" ")[1] == status
    assert len(node.client.get("/payments").json()) == count


def test_a_reset_after_the_request_leaves_the_outcome_unknown(faulty_proxy: Proxy, breaking: Breaking) -> None:
    breaking.answers.append(b"")
    count = len(breaking.requests)
    assert faulty_proxy.post("/payments", "canary-reset", {"amount": 1}).status_code == 502
    again = faulty_proxy.post("/payments", "canary-reset", {"amount": 1})
    assert (again.status_code, again.headers["semel-code"]) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
    assert len(breaking.requests) == count + 1


def test_a_truncated_answer_is_not_a_success(faulty_proxy: Proxy, breaking: Breaking) -> None:
    breaking.answers.append(b"HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\nhalf")
    assert faulty_proxy.post("/payments", "canary-cut", {"amount": 1}).status_code == 502
    again = faulty_proxy.post("/payments", "canary-cut", {"amount": 1})
    assert (again.status_code, again.headers["semel-code"]) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")


def test_an_idempotent_operation_is_sent_again_with_the_same_downstream_key(
    faulty_proxy: Proxy, breaking: Breaking
) -> None:
    breaking.answers += [b"", b"HTTP/1.1 201 Created\r\nSet-Cookie: s=1\r\nContent-Length: 2\r\n\r\nok"]
    assert faulty_proxy.post("/notes", "canary-note", {"n": 1}).status_code == 502
    done = faulty_proxy.post("/notes", "canary-note", {"n": 1})
    assert (done.status_code, done.content, done.headers["set-cookie"]) == (201, b"ok", "s=1")
    keys = [re.search(rb"(?i)semel-downstream-key: (\S+)", each) for each in breaking.requests[-2:]]
    assert keys[0] is not None
    assert keys[1] is not None
    assert keys[0][1] == keys[1][1]
    replay = faulty_proxy.post("/notes", "canary-note", {"n": 1})
    assert replay.content == b"ok"
    assert "set-cookie" not in replay.headers


def test_a_409_to_a_repeated_attempt_is_in_progress(faulty_proxy: Proxy, breaking: Breaking) -> None:
    busy = b"HTTP/1.1 409 Conflict\r\n%sContent-Length: 4\r\n\r\nbusy"
    breaking.answers += [
        b"",
        busy % b"",
        busy % b"Retry-After: 7\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok",
    ]
    assert faulty_proxy.post("/notes", "canary-busy", {"n": 1}).status_code == 502
    for seconds in ("1", "7"):
        waits = faulty_proxy.post("/notes", "canary-busy", {"n": 1})
        assert (waits.status_code, waits.json()["retryable"]) == (409, True)
        assert waits.headers["semel-code"] == "IDEMPOTENCY_REQUEST_IN_PROGRESS"
        assert waits.headers["retry-after"] == seconds
    assert faulty_proxy.post("/notes", "canary-busy", {"n": 1}).content == b"ok"


@pytest.mark.parametrize(("before", "mark"), [([], b""), ([b""], b"Idempotency-Replayed: true\r\n")])
def test_a_409_of_the_first_attempt_or_a_replayed_one_is_definite(
    faulty_proxy: Proxy, breaking: Breaking, before: list[bytes], mark: bytes
) -> None:
    breaking.answers[:] = [*before, b"HTTP/1.1 409 Conflict\r\n%sContent-Length: 5\r\n\r\ntaken" % mark]
    key = f"canary-taken-{len(before)}"
    for _ in before:
        assert faulty_proxy.post("/notes", key, {"n": 1}).status_code == 502
    for _ in range(2):
        assert faulty_proxy.post("/notes", key, {"n": 1}).content == b"taken"


def test_a_status_that_no_server_may_send_is_a_broken_answer(faulty_proxy: Proxy, breaking: Breaking) -> None:
    breaking.answers += [b"HTTP/1.1 %d Odd\r\nContent-Length: 0\r\n\r\n" % status for status in (600, 999)]
    for status, path in ((600, "/payments"), (999, "/other")):
        answer = faulty_proxy.post(path, f"canary-{status}", {"n": 1})
        assert (answer.status_code, answer.headers["semel-code"]) == (502, "IDEMPOTENCY_UPSTREAM_BROKE_OFF")
    again = faulty_proxy.post("/payments", "canary-600", {"n": 1})
    assert again.headers["semel-code"] == "IDEMPOTENCY_OUTCOME_UNKNOWN"


def test_the_services_own_key_headers_are_dropped(faulty_proxy: Proxy, breaking: Breaking) -> None:
    own = b"Idempotency-Key-Lifetime: 5\r\nIdempotency-Replayed: true\r\nIdempotent-Replayed: true\r\n"
    answer = b"HTTP/1.1 201 Created\r\n" + own + b"Content-Length: 2\r\n\r\nok"
    breaking.answers += [answer, answer]
    done = faulty_proxy.post("/payments", "canary-lifetime", {"n": 1})
    assert done.headers.get_list("idempotency-key-lifetime") == ["86400"]
    assert "idempotency-replayed" not in done.headers
    assert "idempotent-replayed" not in done.headers
    assert faulty_proxy.client.get("/other").headers["idempotency-key-lifetime"] == "5"  # no command of the proxy's


OTHERS = '</terms>; rel="license"'
THEIRS = "/operations/01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.mark.parametrize(
    ("link", "lifetime", "kept"),
    [
        (f'<{THEIRS}>; rel="status"', True, []),
        (f'<{THEIRS}>; rel="status"', False, []),  # the proxy answers at that path
        ('</api/operations/7>; title="a, b"; rel=status, ' + OTHERS, True, [OTHERS]),
        ('</jobs/7>; rel="status"', False, ['</jobs/7>; rel="status"']),  # of a service that knows nothing of keys
        (f'{OTHERS}, <http://127.0.0.1:PORT{THEIRS}>; rel="status"', False, [OTHERS]),
        ('</a>; rel="status', True, ['</a>; rel="status']),  # no link at all
    ],
)
def test_the_status_link_of_a_service_that_uses_semel_too_is_not_passed_on(
    faulty_proxy: Proxy, breaking: Breaking, link: str, lifetime: bool, kept: list[str]
) -> None:
    """The proxy's record answers the client's retries, so that the one link leads to it."""
    own = f"Link: {link}\r\n".replace("PORT", str(breaking.port)) + "Idempotency-Key-Lifetime: 5\r\n" * lifetime
    answer = f"HTTP/1.1 201 Created\r\n{own}Content-Length: 2\r\n\r\nok".encode()
    breaking.answers += [answer, answer]
    done = faulty_proxy.post("/payments", f"canary-{uuid4()}", {"n": 1})
    *others, status = done.headers.get_list("link")
    assert others == kept
    operation = link_of(status, "status")
    assert operation is not None
    assert faulty_proxy.client.get(operation, headers={"authorization": "Bearer alice"}).json()["state"] == "SUCCEEDED"
    passed = faulty_proxy.client.get("/other").headers["link"]  # no command of the proxy's
    assert passed == link.replace("PORT", str(breaking.port))


def test_a_client_cannot_forge_semels_headers(faulty_proxy: Proxy, breaking: Breaking) -> None:
    breaking.answers.append(b"HTTP/1.1 204 No Content\r\n\r\n")
    forged = {"Semel-Operation": "forged", "semel_downstream_key": "forged", "X_Forwarded_For": "forged"}
    faulty_proxy.client.put("/other", headers=forged, content=b"1")
    assert b"forged" not in breaking.requests[-1]
    assert b"X-Forwarded-For: 127.0.0.1" in breaking.requests[-1]


def test_a_link_to_the_service_s_own_address_comes_back_through_the_proxy(
    faulty_proxy: Proxy, breaking: Breaking
) -> None:
    for path, there in (
        ("/payments/7", "/payments/7"),
        ("", "/"),
        ("@evil.example/x", None),
        ("?a=1", "/?a=1"),
        ("//evil.example/x", "/.//evil.example/x"),  # of the path alone, a client would read the first part as a host
        ("/\\evil.example/x", "/./\\evil.example/x"),
    ):
        sent = f"http://127.0.0.1:{breaking.port}{path}"
        breaking.answers.append(f"HTTP/1.1 307 Moved\r\nLocation: {sent}\r\nContent-Length: 0\r\n\r\n".encode())
        count = len(breaking.requests)
        answer = faulty_proxy.client.post("/other", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, there or sent)
        assert len(breaking.requests) == count + 1


def test_one_answers_bytes_are_not_read_as_another_answer(faulty_proxy: Proxy, breaking: Breaking) -> None:
    own = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown"
    stale = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale"
    for method, first in (
        ("HEAD", stale + stale),
        ("GET", own + stale),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n" + stale),
        ("POST", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + own + stale),
    ):
        breaking.answers += [first, own]
        assert faulty_proxy.client.request(method, "/other").content in (b"", b"own")
        assert faulty_proxy.client.get("/other").content == b"own"


def test_an_answer_with_two_lengths_has_its_chunks(faulty_proxy: Proxy, breaking: Breaking) -> None:
    head = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    breaking.answers.append(head + b"5\r\nwhole\r\n0\r\n\r\n")
    for _ in range(2):
        assert faulty_proxy.post("/payments", "lengths", {"amount": 1}).content == b"whole"
    breaking.answers.append(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nHTTP/1.1 201 Created\r\n\r\n")
    assert faulty_proxy.post("/payments", "switching", {"amount": 1}).status_code == 502
    again = faulty_proxy.post("/payments", "switching", {"amount": 1})
    assert again.headers["semel-code"] == "IDEMPOTENCY_OUTCOME_UNKNOWN"


@pytest.mark.parametrize(
    "request_text",
    [
        'POST /payments HTTP/1.0\r\nAuthorization: a\r\nIdempotency-Key: "old"\r\nContent-Length: 2\r\n\r\n{}',
        'POST /payments HTTP/1.1\nHost: x\nAuthorization: a\nIdempotency-Key: "lf"\nContent-Length: 2\n\n\r\n\r\n',
        "POST /payments HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nIdempotency-Key:\r\n folded\r\n"
        "Content-Length: 2\r\n\r\n{}",
        'POST /payments HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nIdempotency-Key: "expecting"\r\n'
        "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
        'POST /payments HTTP/1.1\r\nHost: x\r\nAuthorization: a\r\nIdempotency-Key: "trailing"\r\n'
        'Transfer-Encoding: Chunked\r\nTrailer: Idempotency-Key\r\n\r\n2\r\n{}\r\n0\r\nIdempotency-Key: "b"\r\n\r\n',
    ],
    ids=["HTTP/1.0", "line feeds", "folded", "expect", "trailer"],
)
def test_an_odd_form_of_a_command_has_one_effect_or_none(
    faulty_proxy: Proxy, breaking: Breaking, request_text: str
) -> None:
    breaking.answers[:] = [b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"]
    count = len(breaking.requests)
    answers = [faulty_proxy.send(request_text) for _ in range(2)]
    ran = len(breaking.requests) - count
    assert ran == (b"\r\n\r\nok" in answers[0])
    assert ran <= 1
    assert ran == 0 or b"idempotency-replayed: true" in answers[1].lower()
    assert b"folded" not in b"".join(breaking.requests[count:]) or b"idempotency-key: folded" in breaking.requests[-1]
    breaking.answers.clear()


def test_compressed_bytes_are_stored_unchanged(faulty_proxy: Proxy, breaking: Breaking) -> None:
    kept = b"\x1f\x8bno gzip at all"
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(kept)
    breaking.answers.append(head + kept)
    fields = ["Host: x", "Authorization: a", 'Idempotency-Key: "zip"', "Content-Length: 2"]
    body = "\r\n".join(["POST /payments HTTP/1.1", *fields, "", "{}"])
    assert faulty_proxy.send(body).endswith(kept)
    assert faulty_proxy.send(body).endswith(kept)


def test_a_second_proxy_replays_and_an_unreachable_upstream_frees_the_key(
    node: Proxy, store: str, tmp_path: Path
) -> None:
    first = node.post("/payments", "second-proxy", {"amount": 5})
    spare = Proxy(tmp_path, 9, store)  # whose upstream cannot be reached: a replay does not need it
    try:
        assert spare.post("/payments", "second-proxy", {"amount": 5}).content == first.content
        for _ in range(2):  # nothing was sent, so that the key stays free
            lost = spare.post("/payments", "unreachable", {"amount": 5})
            assert (lost.status_code, lost.json()["retryable"]) == (502, True)
    finally:
        spare.process.kill()
        spare.end()
    assert node.post("/payments", "unreachable", {"amount": 5}).status_code == 201


def test_check_shows_the_operations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", "--config", str(EXAMPLE / "operations.toml"), "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["operations"][0]["operation"] == "pay"


def test_a_proxy_in_front_of_itself_is_refused(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--upstream", "http://localhost:8099", "--port", "8099"]
    for command in (["proxy", "--store", store], ["gate"]):
        assert main([*command, "--config", str(EXAMPLE / "operations.toml"), *arguments]) == 2
        assert "each request would come back to it; name the service's address" in capsys.readouterr().err


def test_a_memory_store_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["proxy", "--config", str(EXAMPLE / "operations.toml"), "--upstream", "http://127.0.0.1:9"]
    assert main([*arguments, "--store", "memory://"]) == 2
    assert "exists only within its own process" in capsys.readouterr().err
