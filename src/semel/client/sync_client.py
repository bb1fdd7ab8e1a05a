"""The blocking client, on httpx: performs the actions of the conversation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import httpx

from semel.client.answers import Answered
from semel.client.deadline import DeadlineOver, within
from semel.client.intents import (
    ClientCore,
    Conversation,
    IntentBody,
    Keep,
    KeptIntent,
    Progress,
    Sleep,
    Transmit,
    no_answer,
    to_answered,
)
from semel.client.journal import Journal, JournalEntry, SendingClaim
from semel.client.limits import Breaker, Budget
from semel.client.plan import NoAnswer, Outcome


class Intent(KeptIntent["Client"]):
    """A command to perform once. Made by :meth:`Client.intent`; its representation does not show the key."""

    def send(self, *, seconds: float | None = None) -> Outcome:
        """Send until there is an outcome or the budget is used up. Call it again to continue, with the same key.

        Parameters: ``seconds`` shortens the budget's deadline for this call. An intent that has ended sends nothing.

        Raises JournalError if the journal cannot be written (then nothing is sent).
        """
        return self._client._send(self._entry, self._body, seconds)

    def child(self, name: str, method: str, url: str, *, ordinal: int = 0, **body: Unpack[IntentBody]) -> Intent:
        """Create a separate intent under a derived key: ``intent.child("mail", "POST", "/mails", json={...})``."""
        return self._client._intent(method, url, None, self.key_for(name, ordinal), self.key, body)


class Client:
    """A client that retries commands safely, each under one key that the journal stores before the first byte is sent.

    Parameters:
        base_url: the prefix of relative URLs.
        budget: attempts, deadline, pauses, and the origin's token bucket for retries.
        journal: the store of intents; by default the file ``intents.db`` in the current folder.
        breaker: stops calls to an origin that keeps failing; None for no breaker.
        bare: send keys without quotes, for servers that do not read the quoted form.
        headers, auth: as in ``httpx.Client``. They are never written to the journal.
        http: an ``httpx.Client`` of your own, in place of ``headers`` and ``auth``; you close it.
        progress: called with a :class:`Progress` before and after each attempt.

    Raises ConfigurationError if all requests would carry one key, a header cannot be sent, or the base URL is not a
    string.

    >>> import httpx
    >>> server = httpx.MockTransport(lambda request: httpx.Response(201))
    >>> with Client("https://shop.example", journal=Journal("memory://"), http=httpx.Client(transport=server)) as api:
    ...     api.intent("POST", "/payments", json={"amount": "5.00"}).send()
    Done(answer=Answered(status=201), replayed=False)
    """

    def __init__(
        self,
        base_url: str = "",
        *,
        budget: Budget | None = None,
        journal: Journal | None = None,
        breaker: Breaker | None = None,
        bare: bool = False,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        http: httpx.Client | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.core = ClientCore(base_url, budget or Budget(), journal, breaker, bare, progress)
        self.core.check_headers(headers or {})
        self._own = http is None
        self._http = http if http is not None else httpx.Client(headers=headers, auth=auth)
        self.core.check_headers(self._http.headers)
        self._sleep: Callable[[float], None] = time.sleep

    def __repr__(self) -> str:
        return f"Client({self.core.safe_url(self.core.base_url)!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The journal stays."""
        if self._own:
            self._http.close()

    def intent(
        self,
        method: str,
        url: str,
        *,
        name: str | None = None,
        key: str | None = None,
        json: Any = None,
        content: bytes | str | None = None,
        data: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Intent:
        """Store a new intent in the journal, or find the one with this name. Nothing is sent yet.

        Parameters: ``name`` is your own reference, such as ``"invoice-42"``: after a crash the same call finds the same
        intent and its key. ``key`` is a key that you made yourself. The rest is as in ``httpx.request``; bodies are
        bytes, text, JSON or form fields.

        Raises PayloadMismatch if the name or key belongs to another request; ConfigurationError for a request that
        cannot be repeated; JournalError if the journal cannot be written.
        """
        body = {"json": json, "content": content, "data": data, "params": params, "headers": headers}
        return self._intent(method, url, name, key, None, body)

    def resume(self, *, limit: int = 1000) -> list[tuple[Intent, Outcome]]:
        """Send the journal's open intents, oldest first, each with its own key and within the key's lifetime.

        Returns each intent with its outcome. One whose payload was not kept has the outcome NotYet, with the code
        ``PAYLOAD_NEEDED``.
        """
        intents = [Intent(self, entry, None) for entry in self.core.journal.open(limit)]
        return [(intent, intent.send()) for intent in intents]

    # --- doing it ---

    def _intent(
        self, method: str, url: str, name: str | None, key: str | None, parent: str | None, body: Mapping[str, Any]
    ) -> Intent:
        wanted = self.core.make_request(method, url, **body)
        entry = self.core.journal.add(self.core.entry(wanted, name, key, parent))
        return Intent(self, entry, wanted.body)

    def _send(self, entry: JournalEntry, body: bytes | None, seconds: float | None) -> Outcome:
        held: list[SendingClaim | None] = [None]
        conversation = self.core.converse(entry, body, self._build, seconds, lambda claim: held.__setitem__(0, claim))
        try:
            return self._run(conversation)
        finally:
            if held[0] is not None:  # interrupted: release the claim, so that the next send() need not wait for it
                self.core.journal.release(held[0])

    def _run(self, conversation: Conversation) -> Outcome:
        result: Any = None
        while True:
            try:
                step = conversation.send(result)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            match step:
                case Keep(call=call):
                    result = call()
                case Sleep(seconds=pause):
                    self._sleep(pause)
                case Transmit():
                    result = self._transmit(step)

    def _transmit(self, step: Transmit) -> Answered | NoAnswer:
        step.request.extensions["timeout"] = httpx.Timeout(step.seconds).as_dict()
        try:
            response = within(step.seconds, lambda: self._http.send(step.request, follow_redirects=False))
        except DeadlineOver:
            return NoAnswer(f"no whole answer within {step.seconds:.1f} s")
        except httpx.RequestError as error:
            return no_answer(error)
        return to_answered(response, time.time())

    def _build(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> httpx.Request:
        return self._http.build_request(method, url, headers=dict(headers), content=body)
