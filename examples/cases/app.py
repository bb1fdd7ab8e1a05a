"""The bulk command over HTTP: ``POST /cases/approvals`` takes the list, as a JSON array or as JSON lines.

``uvicorn examples.cases.app:app --port 8000`` serves it. A bearer token names the approver, which a real
application would check.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from examples.cases import register
from semel import AsyncBulk, AsyncEngine, BulkItem
from semel.http import Caller
from semel.integrations.fastapi import Semel

BODY_BYTES_MAX = 16 * 1024 * 1024


def approver(request: Request) -> Caller | None:
    """Return the approver that the token names; None without a token."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return Caller("default", token) if scheme == "Bearer" and token else None


async def approve(item: BulkItem) -> str:
    """Approve one case, in the transaction of its outcome."""
    return register.approve(item.connection, item.id, item.scope.caller)


engine = AsyncEngine.connect(register.URL)
semel = Semel(engine, caller=approver)
approvals = semel.bulk(
    AsyncBulk(engine, operation="cases.approve", effects="atomic", member="case", chunk_items=25, items_max=10_000),
    approve,
    body_bytes_max=BODY_BYTES_MAX,
)
app = FastAPI(title="cases")


@app.post("/cases/approvals")
async def approve_cases(request: Request) -> Response:
    """Approve a list of cases. Every case has its outcome in the answer."""
    return await approvals.answer(request)


semel.install(app)
