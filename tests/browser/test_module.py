"""The rules of ``semel.js`` one by one, in a real browser, with answers that a test has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.servers.needed import needs
from tests.service.served import Served

pytestmark = needs("chromium")

# Scripted answers, one an attempt: [status, headers, body], or null for a connection that is lost. What was sent is
# remembered; the last answer is repeated.
PREPARE = """
async () => {
  const semel = await import("/semel/semel.js");
  window.semel = semel;
  window.play = async (answers, { name = crypto.randomUUID(), options = {}, init = { body: "a" } } = {}) => {
    const keys = [], states = [];
    const scripted = async (url, init) => {
      keys.push(init.headers.get("Idempotency-Key"));
      const answer = answers[Math.min(keys.length, answers.length) - 1];
      if (!answer) throw new TypeError("lost");
      const [status, headers = {}, body = ""] = answer;
      return new Response(typeof body === "string" ? body : JSON.stringify(body), { status, headers });
    };
    const onState = (each) => states.push(each.state);
    const intent = new semel.Intent(name, { fetch: scripted, seconds: 60, onState, ...options });
    await intent.ready;
    const report = await intent.fetch("/payments", init);
    const { state, replayed, code = null } = report;
    const stored = localStorage.getItem(`semel:${intent.name}`);
    const text = (await report.response?.text()) ?? null;
    return { state, replayed, code, keys, states, key: intent.key, isOpen: intent.isOpen, stored, text };
  };
}
"""


@pytest.fixture(scope="module")
def page(chromium: Any, service: Served) -> Iterator[Page]:
    context: BrowserContext = chromium.new_context()
    page = context.new_page()
    page.goto(f"{service.url}/checkout")
    page.evaluate(PREPARE)
    yield page
    context.close()


PROBLEM = {"Content-Type": "application/problem+json"}
NOW = {"Retry-After": "0"}


def problem(status: int, code: str, *, retryable: bool = False) -> list[Any]:
    return [status, PROBLEM, {"code": code, "retryable": retryable, "status": status}]


def play(page: Page, answers: list[Any], extra: str = "{}") -> Any:
    return page.evaluate(f"(answers) => play(answers, {extra})", answers)


@pytest.mark.parametrize(
    ("answers", "state", "attempts"),
    [
        ([[201, {}, "first"]], "done", 1),
        ([None, [201, {}, "first"]], "done", 2),
        ([[503, NOW], [201, {}, "first"]], "done", 2),
        ([problem(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", retryable=True), [201]], "done", 2),
        ([problem(503, "ODD", retryable=False)], "notyet", 1),
        ([[500]], "notyet", 1),
        ([[402]], "refused", 1),
        ([[422, PROBLEM, {"detail": "no"}]], "refused", 1),
        ([[401]], "refused", 1),
        ([None, [401]], "notyet", 2),  # which says nothing about the attempt that was lost
        ([None, [404]], "notyet", 2),
        ([None, [402]], "notyet", 2),
        ([None, [402, {"Idempotency-Key-Lifetime": "600"}]], "refused", 2),  # the operation's own word
        ([None, [422]], "refused", 2),
        (
            [problem(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", retryable=True), [401]],
            "notyet",
            2,
        ),  # the first may succeed
        ([None, problem(400, "IDEMPOTENCY_OPERATION_NOT_DECLARED")], "notyet", 2),
        ([problem(400, "IDEMPOTENCY_OPERATION_NOT_DECLARED")], "refused", 1),
        ([[504, {"Idempotency-Replayed": "true", "Idempotency-Key-Lifetime": "600"}]], "refused", 1),
        ([[500, {"Idempotent-Replayed": "true"}]], "unknown", 1),  # stored, and it may have happened
        ([[409, {**PROBLEM, "Idempotency-Replayed": "true"}, {"code": "IDEMPOTENCY_OUTCOME_UNKNOWN"}]], "unknown", 1),
        ([problem(409, "IDEMPOTENCY_OUTCOME_UNKNOWN")], "unknown", 1),
        ([problem(409, "IDEMPOTENCY_RECORD_EXPIRED")], "expired", 1),
        ([problem(409, "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE")], "done", 1),
        ([problem(500, "IDEMPOTENCY_RECORD_UNREADABLE")], "unknown", 1),
        ([problem(422, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST")], "changed", 1),
    ],
)
def test_an_answer_is_mapped_to_an_outcome(page: Page, answers: list[Any], state: str, attempts: int) -> None:
    seen = play(page, answers)
    assert (seen["state"], len(seen["keys"])) == (state, attempts)
    assert set(seen["keys"]) == {seen["key"]}
    is_over = state in ("done", "refused")
    assert (seen["isOpen"], seen["stored"] is None) == (not is_over, is_over)


def test_a_replay_is_reported_and_its_body_is_there(page: Page) -> None:
    seen = play(page, [None, [201, {"Idempotency-Replayed": "true"}, "first"]])
    assert (seen["state"], seen["replayed"], seen["text"]) == ("done", True, "first")


def test_a_retry_after_beyond_the_budget_ends_the_submission_and_keeps_the_key(page: Page) -> None:
    seen = play(page, [[503, {"Retry-After": "3600"}]])
    assert (seen["state"], len(seen["keys"])) == ("notyet", 1)
    assert seen["key"] in seen["stored"]


def test_nothing_is_sent_after_the_keys_lifetime(page: Page) -> None:
    seen = page.evaluate(
        """async () => {
          const name = crypto.randomUUID();
          const first = await play([[503, { "Retry-After": "99", "Idempotency-Key-Lifetime": "600" }]], { name });
          const real = Date.now;
          const later = async (seconds) => {
            Date.now = () => real() + seconds * 1000;
            try { return await play([[201]], { name }); } finally { Date.now = real; }
          };
          return [first, await later(700), await later(500)];
        }"""
    )
    assert [(each["state"], len(each["keys"])) for each in seen] == [("notyet", 1), ("expired", 0), ("done", 1)]
    assert len({each["key"] for each in seen}) == 1


@pytest.mark.parametrize(("answer", "state", "same"), [("false", "changed", True), ("true", "done", False)])
def test_the_user_is_asked_about_another_payload_while_the_first_is_open(
    page: Page, answer: str, state: str, same: bool
) -> None:
    first, second = page.evaluate(
        f"""async () => {{
          const name = crypto.randomUUID();
          const options = {{ ask: () => {answer} }};
          const first = await play([[503, {{ "Retry-After": "99" }}]], {{ name }});
          return [first, await play([[201]], {{ name, options, init: {{ body: "b" }} }})];
        }}"""
    )
    assert (first["state"], second["state"], first["key"] == second["key"]) == ("notyet", state, same)
    assert second["keys"] == ([] if same else [second["key"]])


@pytest.mark.parametrize("status", [201, 402])
def test_a_corrected_or_second_command_has_a_new_key(page: Page, status: int) -> None:
    same, other = page.evaluate(
        f"""async () => {{
          const keys = [];
          const ask = () => {{ throw new Error("there is nothing to ask"); }};
          const fetch = async (url, init) => {{
            keys.push(init.headers.get("Idempotency-Key"));
            return new Response("", {{ status: {status} }});
          }};
          const intent = await semel.intent(crypto.randomUUID(), {{ fetch, ask }});
          for (const body of ["a", "a", "b"]) await intent.fetch("/payments", {{ body }});
          return [keys[0] === keys[1], keys[2] !== keys[0]];
        }}"""
    )
    assert same
    assert other


def test_an_unknown_outcome_is_polled_and_then_fetched(page: Page) -> None:
    states = ["UNKNOWN", "SUCCEEDED"]
    page.route(
        "**/operations/watched",
        lambda route: route.fulfill(json={"state": states.pop(0), "running": False}, headers=NOW),
    )
    link = {"Link": '</problems>; rel="describedby", </operations/watched>; rel="status"', **PROBLEM}
    seen = play(page, [[409, link, {"code": "IDEMPOTENCY_OUTCOME_UNKNOWN", "retryable": False}], [201, {}, "first"]])
    assert (seen["state"], seen["text"], states) == ("done", "first", [])
    assert seen["states"].count("unknown") == 2
    states[:] = ["FAILED_NOT_REPLAYABLE"]
    seen = play(page, [[409, link, {"code": "IDEMPOTENCY_OUTCOME_UNKNOWN", "retryable": False}], [201]])
    assert (seen["state"], len(seen["keys"])) == ("notyet", 1)  # it did not happen: a person decides
    states[:] = ["SUCCEEDED"]
    seen = play(page, [[202, link], [201, {"Idempotency-Replayed": "true"}]])
    assert (seen["state"], seen["states"].count("pending")) == ("done", 1)
    page.unroute("**/operations/watched")


def test_a_permanent_failure_is_retried_after_a_pause_and_not_for_ever(page: Page) -> None:
    link = {"Link": '</operations/released>; rel="status"', "Retry-After": "1"}
    page.route("**/operations/released", lambda route: route.fulfill(json={"state": "PROCESSING", "running": False}))
    seen = play(page, [[500, link]], "{ options: { seconds: 1 } }")
    assert (seen["state"], len(seen["keys"])) == ("notyet", 1)  # the pause is longer than the time that is left
    page.unroute("**/operations/released")
    page.route("**/operations/released", lambda route: route.fulfill(json={"state": "SUCCEEDED", "running": False}))
    seen = play(page, [[500, link]], "{ options: { seconds: 1 } }")
    assert (seen["state"], len(seen["keys"])) == ("notyet", 2)  # the answer was not there
    page.unroute("**/operations/released")


def test_a_pause_too_long_for_a_timer_does_not_end_at_once(page: Page) -> None:
    answers = ["UNKNOWN", "SUCCEEDED"]
    page.route(
        "**/operations/late",
        lambda route: route.fulfill(json={"state": answers.pop(0)}, headers={"Retry-After": "99999999"}),
    )
    waits = page.evaluate(
        """async () => {
          const real = window.setTimeout, waits = [];
          window.setTimeout = (call, ms, ...more) => { waits.push(ms); return real(call, Math.min(ms, 1), ...more); };
          const link = { Link: '</operations/late>; rel="status"', "Content-Type": "application/problem+json" };
          const doubt = [409, link, { code: "IDEMPOTENCY_OUTCOME_UNKNOWN" }];
          try { await play([doubt, [201]]); } finally { window.setTimeout = real; }
          return waits;
        }"""
    )
    page.unroute("**/operations/late")
    assert max(waits) == 2**31 - 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("600", 600), ("PT10M", 600), ("P1W", 604_800), ("P1DT12H", 129_600), ("P", None), ("x", None)],
)
def test_a_lifetime_is_seconds_or_a_period(page: Page, text: str, seconds: int | None) -> None:
    seen = play(page, [[503, {"Retry-After": "99", "Idempotency-Key-Lifetime": text}]])
    assert json.loads(seen["stored"]).get("lifetime") == seconds


def test_a_status_link_to_another_origin_is_not_followed(page: Page) -> None:
    link = {"Link": '<https://elsewhere.test/operations/1>; rel="status"', **PROBLEM}
    seen = play(page, [[409, link, {"code": "IDEMPOTENCY_OUTCOME_UNKNOWN"}]])
    assert (seen["state"], len(seen["keys"])) == ("unknown", 1)


def test_a_redirect_is_followed_only_if_a_function_judges_its_target(page: Page, service: Served) -> None:
    page.route(
        "**/redirecting", lambda route: route.fulfill(status=303, headers={"Location": f"{service.url}/healthz"})
    )
    seen = page.evaluate(
        """async () => {
          const states = [];
          for (const follow of [undefined, (url) => url.pathname === "/healthz", () => false]) {
            const intent = await semel.intent(crypto.randomUUID(), { follow });
            states.push((await intent.fetch("/redirecting", { body: "a" })).state);
          }
          return states;
        }"""
    )
    page.unroute("**/redirecting")
    assert seen == ["unknown", "done", "unknown"]


def test_bodies_are_distinguished_and_a_stream_is_refused(page: Page) -> None:
    told = page.evaluate(
        """async () => {
          const form = (name, value) => { const data = new FormData(); data.append(name, value); return data; };
          const bodies = ["a", "b", undefined, form("a", "b"), form("a", "c"), new URLSearchParams("a=1"),
                          new Uint8Array([1]), new Uint8Array([2]), new Blob(["x"]), new Blob(["xy"]),
                          form("f", new File(["x"], "a.txt", { lastModified: 1 })),
                          form("f", new File(["x"], "a.txt", { lastModified: 2 }))];
          const fetch = async () => new Response("", { status: 503, headers: { "Retry-After": "99" } });
          const intents = await Promise.all(bodies.map(async (body) => {
            const intent = await semel.intent(crypto.randomUUID(), { fetch });
            await intent.fetch("/payments", { body });
            return bodies.map((other) => intent.isSame("/payments", { body: other }));
          }));
          const stream = await semel.intent(crypto.randomUUID(), { fetch });
          const refused = await stream.fetch("/payments", { body: new ReadableStream() }).catch(String);
          return [intents, refused];
        }"""
    )
    same, refused = told
    assert same == [[row == column for column in range(len(same))] for row in range(len(same))]
    assert "cannot be sent twice" in refused


def test_an_aborted_submission_is_left_open(page: Page) -> None:
    seen = page.evaluate(
        """async () => {
          const controller = new AbortController();
          const fetch = (url, { signal }) => new Promise((_, reject) => {
            signal.addEventListener("abort", () => reject(signal.reason));
            controller.abort();
          });
          const intent = await semel.intent(crypto.randomUUID(), { fetch });
          const sent = intent.fetch("/payments", { body: "a", signal: controller.signal });
          const failed = await sent.catch((error) => error.name);
          return [failed, intent.isOpen];
        }"""
    )
    assert seen == ["AbortError", True]


FILL = """
async () => {
  const fill = (size) => {
    try {
      for (let n = 0; ; n++) localStorage.setItem(`fill-${size}-${n}`, "x".repeat(size));
    } catch { /* it is full */ }
  };
  for (const size of [1000000, 10000, 100, 1]) fill(size);
  localStorage.removeItem("fill-1-0");
  try {
    const first = await semel.intent("full");
    const again = await semel.intent("full");
    const told = [first.persistent, first.report.persistent, again.persistent, first.key === again.key];
    first.renew();
    return [...told, (await semel.intent("full")).key === first.key];
  } finally {
    localStorage.clear();
  }
}
"""


def test_a_full_storage_is_reported_and_the_page_keeps_one_key(page: Page) -> None:
    assert page.evaluate(FILL) == [False, False, False, True, True]
    assert page.evaluate("async () => (await semel.intent('room')).persistent")


def test_nothing_of_the_payload_is_stored(page: Page) -> None:
    seen = play(page, [[503, {"Retry-After": "99"}]], "{ init: { body: 'a-secret-of-mine' } }")
    assert "secret" not in seen["stored"]
    assert page.evaluate("() => semel.newKey()").count("-") == 4
