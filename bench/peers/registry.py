"""Which peers there are, and what each says about itself. Imports none of them.

``documented`` quotes the peer's own README or source, in the locked version, where a finding of ``bench.correctness``
is something that it says beforehand; ``remarks`` are ours, read from its source. Both by the name of the case, or
``case/store`` where they are about one store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One package. ``stores`` are the kinds it offers that can run here: memory, sqlite, redis.

    ``lease_seconds`` is the shortest lease its settings allow, in whole seconds, or None where it has no lease.
    ``not_offered`` names cases it does not claim
    to serve, with the reason; ``bare`` is what its speed is compared with.
    """

    name: str
    stores: tuple[str, ...]
    lease_seconds: float | None
    bare: str = "bare"
    not_offered: Mapping[str, str] = field(default_factory=dict)
    documented: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """Its adapter."""
        return f"bench.peers.{self.name.replace('-', '_')}"


PEERS: Final = (
    Peer(
        name="idemkit",
        stores=("memory", "redis"),
        lease_seconds=1.0,
        documented={
            "killed": "A function that does two side effects and crashes between them re-runs both on retry.",
            "slow": "HTTP does not renew the lease.",
            "callers": "Without `scope`, idemkit runs single-tenant and warns once.",
            "error": "A non-2xx HTTP response re-executes on retry.",
            "refusal": "A non-2xx HTTP response re-executes on retry.",
            "raised": "A non-2xx HTTP response re-executes on retry.",
            "stream": "Incremental response: don't buffer (it would stall delivery).",
            "reply-3mb": "Don't cache it — release the claim so a retry can re-execute.",
            "body-5mb": "an oversized request is streamed through WITHOUT idempotency rather than buffered whole.",
            "body-20mb": "an oversized request is streamed through WITHOUT idempotency rather than buffered whole.",
            "lines": "ASGI headers list → case-insensitive lowercase dict (last wins).",
        },
        remarks={
            "stream": "The stream is cut short: after the body its `receive` reports a disconnect, at which "
            "Starlette's StreamingResponse stops.",
        },
    ),
    Peer(
        name="idemgate",
        stores=("redis",),
        lease_seconds=3.0,
        bare="bare-fastapi",
        documented={
            "killed": "If the owner crashes, its processing lease eventually expires. "
            "… the application side effect may already have happened.",
            "stream": "Streaming responses … are unsupported.",
            "callers": "For authenticated or personalized endpoints, pass `namespace=`.",
            "error": "Non-2xx responses and handler exceptions are not cached as successes.",
            "raised": "Non-2xx responses and handler exceptions are not cached as successes.",
            "refusal": "Non-2xx responses and handler exceptions are not cached as successes.",
            "reply-3mb": "max_response_bytes … 1 MiB",
            "body-5mb": "Request body exceeds the configured limit.",
            "body-20mb": "Request body exceeds the configured limit.",
            "nonascii": "Keys must contain 1–255 visible ASCII characters.",
            "key-10kb": "Keys must contain 1–255 visible ASCII characters.",
        },
    ),
    Peer(
        name="fastapi-idempotency",
        stores=("memory", "sqlite"),
        lease_seconds=1.0,
        documented={
            "killed": "It cannot make your endpoint's own side effects … atomic with that bookkeeping.",
            "callers": "By default, requests are grouped by client IP.",
            "error": "5xx responses and responses that set cookies are never stored.",
            "raised": "5xx responses and responses that set cookies are never stored.",
            "body-20mb": "max_request_body_bytes=8 * 1024 * 1024,",
        },
    ),
    Peer(
        name="fastapi-idempotency-key",
        stores=("memory", "sqlite", "redis"),
        lease_seconds=None,
        documented={
            "error": "Upstream handler failed; lock is released to allow client retry.",
            "raised": "Upstream handler failed; lock is released to allow client retry.",
        },
        remarks={
            "retry/redis": "Its Redis backend stores the answer without the fingerprint that a retry is compared with, "
            "so that every retry after the answer reads as another payload.",
            "killed": "The lock lives as long as an answer, 24 hours by default: so long the key reads as busy.",
            "killed-before": "The lock lives as long as an answer, 24 hours by default: so long the key reads as busy.",
            "slow": "The lock lives as long as an answer, 24 hours by default.",
            "scoped": "It has no way to tell callers apart.",
            "reply-3mb/redis": "The answer leaves before it is stored: a retry at once may find it in progress.",
            "lines": "The first line is used.",
        },
    ),
    Peer(
        name="exactly-once",
        stores=("memory", "sqlite", "redis"),
        lease_seconds=1.0,
        not_offered={
            "binary": "A result is JSON, so bytes need a codec of one's own.",
            "stream": "It guards functions; a stream is no result.",
        },
        remarks={
            "error": "The adapter's function returns the 500, so that it is a result; an exception is the next row.",
            "empty": "Which keys are valid is the endpoint's business; the adapter refuses an empty one.",
            "quoted": "What a key may look like is the endpoint's business.",
            "payload": "By its `fingerprint=`, which is optional.",
        },
        documented={
            "killed-before": "a crash mid-effect is quarantined, never silently re-fired.",
            "killed": "a crash mid-effect is quarantined, never silently re-fired.",
            "slow": "a crash mid-effect is quarantined, never silently re-fired.",
            "parallel": "a concurrent second caller never runs in parallel;",
            "callers": "Key on business identity (order_id), never a mutable value",
            "reply-3mb": "DEFAULT_MAX_BYTES = 1_048_576 (exactly_once/codec.py)",
        },
    ),
)


def find_peer(name: str) -> Peer:
    """The peer of this name; raises KeyError."""
    return {peer.name: peer for peer in PEERS}[name]
