"""The shop in FastAPI."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, FastAPI, File, Form, HTTPException, Request, Response, UploadFile
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.orm import Session

from semel import AsyncBulk, AsyncEngine, Permit
from semel.http.caller import Caller
from semel.integrations.fastapi import Semel
from tests.frameworks.suite import shop


class Asked(BaseModel):
    what: str
    do: str = ""


def caller(request: Request) -> Caller | None:
    user = shop.user_of(request.headers.get("authorization"))
    return None if user is None else Caller("shop", user)


def authenticate(request: Request) -> None:
    user = shop.user_of(request.headers.get("authorization"))
    if user is None:
        raise HTTPException(401)
    if user == shop.BARRED:
        raise HTTPException(403)


async def swallow(request: Request, error: Exception) -> Response:
    return PlainTextResponse(shop.PAGE)


def make() -> FastAPI:
    app = FastAPI(dependencies=[Depends(authenticate)], exception_handlers={shop.Swallowed: swallow})
    engine = AsyncEngine.connect(shop.store())
    semel = Semel(engine, caller=caller)

    @app.post("/pay", status_code=201)
    @semel.command("pay")
    async def pay(asked: Asked, response: Response, permit: Permit = semel.permit) -> dict[str, Any]:
        paid = shop.pay(asked.model_dump(), permit)
        if asked.do == "refuse":
            raise HTTPException(409, "sold out")
        if asked.do == "cookie":
            response.set_cookie("session", "secret")
        response.headers["Location"] = f"/paid/{asked.what}"
        return paid

    @app.post("/book", status_code=201)
    @semel.command("book", effects="atomic")
    async def book(asked: Asked, session: Session = semel.atomic_session) -> dict[str, str]:
        session.execute(text("INSERT INTO effect (what) VALUES (:what)"), {"what": asked.what})
        shop.end(asked.model_dump())
        if asked.do == "refuse":
            raise HTTPException(409, "sold out")
        return {"by": type(session).__module__}

    @app.post("/stream", status_code=201)
    @semel.command("stream", answer_bytes_max=shop.STREAM_BYTES_MAX)
    async def stream(asked: Asked) -> StreamingResponse:
        shop.note(asked.what)
        return StreamingResponse(shop.pieces(asked.model_dump()), 201)

    @app.post("/upload", status_code=201)
    @semel.command("upload")
    async def upload(what: Annotated[str, Form()], file: Annotated[UploadFile, File()]) -> dict[str, int]:
        shop.note(what)
        return {"bytes": len(await file.read())}

    @app.post("/orders/{number}/close", status_code=201)
    @semel.command("orders.close", key_from="path:number")
    async def close(number: int) -> dict[str, int]:
        shop.note(f"close {number}")
        return {"number": number}

    @app.put("/orders", status_code=201)
    @semel.command("orders.put", key_from="body:/what")
    async def put(asked: Asked) -> dict[str, str]:
        shop.note(asked.what)
        return {"what": asked.what}

    @app.post("/ship", status_code=201)
    @semel.command("ship", shop.SHIP)
    async def ship(asked: Asked, permit: Permit = semel.permit) -> str:
        return await shop.ship_async(asked.model_dump(), permit)

    approvals = semel.bulk(AsyncBulk(engine, operation="approve"), shop.approve_async)
    app.post("/approvals")(approvals.answer)
    semel.imports(app, shop.stock(engine), path=shop.IMPORTS, supplier="path:supplier", may=shop.may_upload)
    semel.install(app)
    return app


def document(app: FastAPI) -> Any:
    return app.openapi()
