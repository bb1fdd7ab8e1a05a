"""CORS for pages of another origin: the headers that they may send, and those that they may read.

Any CORS middleware takes them, such as Starlette's::

    app.add_middleware(
        CORSMiddleware,
        allow_origins=["https://shop.example"],
        allow_methods=["POST"],
        allow_headers=[*ALLOW_HEADERS, "Authorization"],
        expose_headers=EXPOSE_HEADERS,
    )
"""

from __future__ import annotations

from typing import Final

ALLOW_HEADERS: Final = ("Content-Type", "Idempotency-Key", "Prefer")
"""Request headers of a protected command (``Access-Control-Allow-Headers``)."""

EXPOSE_HEADERS: Final = (
    "Idempotency-Key-Lifetime",
    "Idempotency-Replayed",
    "Link",
    "Location",
    "Retry-After",
    "Semel-Code",
    "Semel-Unprotected",
)
"""Response headers that a client reads (``Access-Control-Expose-Headers``); without them a page sees none."""
