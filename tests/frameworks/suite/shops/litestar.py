"""The shop in Litestar."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from litestar import Litestar, Request, Response, post, put
from litestar.connection import ASGIConnection
from litestar.datastructures import UploadFile
from litestar.exceptions import HTTPException, NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, JSONBody, MultipartBody
from litestar.response import Stream
from sqlalchemy import text
from sqlalchemy.orm import Session

from semel import AsyncBulk, AsyncEngine, Permit
from semel.http.caller import Caller
from semel.integrations.litestar import Semel
from tests.frameworks.suite import shop


@dataclass
class Asked:
    what: str
    do: str = ""


@dataclass
class Upload:
    what: str
    file: UploadFile


def caller(request: Request[Any, Any, Any]) -> Caller | None:
    user = shop.user_of(request.headers.get("authorization"))
    return None if user is None else Caller("shop", user)


def authenticate(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    user = shop.user_of(connection.headers.get("authorization"))
    if user is None:
        raise NotAuthorizedException
    if user == shop.BARRED:
        raise PermissionDeniedException


def swallow(request: Request[Any, Any, Any], error: Exception) -> Response[str]:
    return Response(shop.PAGE, status_code=200)


def make() -> Litestar:
    engine = AsyncEngine.connect(shop.store())
    semel = Semel(engine, caller=caller)

    @post("/pay")
    @semel.command("pay")
    async def pay(data: JSONBody[Asked], permit: Permit = semel.permit) -> Response[dict[str, Any]]:
        response = Response(shop.pay(asdict(data), permit), headers={"Location": f"/paid/{data.what}"})
        if data.do == "refuse":
            raise HTTPException("sold out", status_code=409)
        if data.do == "cookie":
            response.set_cookie("session", "secret")
        return response

    @post("/book")
    @semel.command("book", effects="atomic")
    async def book(data: JSONBody[Asked], session: Session = semel.atomic_session) -> dict[str, str]:
        session.execute(text("INSERT INTO effect (what) VALUES (:what)"), {"what": data.what})
        shop.end(asdict(data))
        if data.do == "refuse":
            raise HTTPException("sold out", status_code=409)
        return {"by": type(session).__module__}

    @post("/stream")
    @semel.command("stream", answer_bytes_max=shop.STREAM_BYTES_MAX)
    async def stream(data: JSONBody[Asked]) -> Stream:
        shop.note(data.what)
        return Stream(shop.pieces(asdict(data)))

    @post("/upload")
    @semel.command("upload")
    async def upload(data: MultipartBody[Upload]) -> dict[str, int]:
        shop.note(data.what)
        return {"bytes": len(await data.file.read())}

    @post("/orders/{number:int}/close")
    @semel.command("orders.close", key_from="path:number")
    async def close(number: FromPath[int]) -> dict[str, int]:
        shop.note(f"close {number}")
        return {"number": number}

    @put("/orders", status_code=201)
    @semel.command("orders.put", key_from="body:/what")
    async def put_order(data: JSONBody[Asked]) -> dict[str, str]:
        shop.note(data.what)
        return {"what": data.what}

    @post("/ship")
    @semel.command("ship", shop.SHIP)
    async def ship(data: JSONBody[Asked], permit: Permit = semel.permit) -> str:
        return await shop.ship_async(asdict(data), permit)

    approvals = semel.bulk(AsyncBulk(engine, operation="approve"), shop.approve_async)
    app = Litestar(
        [pay, book, stream, upload, close, put_order, ship, post("/approvals")(approvals.answer)],
        plugins=[semel],
        guards=[authenticate],
        exception_handlers={shop.Swallowed: swallow},
    )
    semel.imports(app, shop.stock(engine), path=shop.IMPORTS, supplier="path:supplier", may=shop.may_upload)
    return app


def document(app: Litestar) -> Any:
    return app.openapi_schema.to_schema()
