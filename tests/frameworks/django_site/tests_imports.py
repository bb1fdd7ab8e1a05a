"""Files that are sent to the project: over both of Django's handlers, by whom the project lets in."""

from __future__ import annotations

import json
import time
from typing import Any

from asgiref.sync import async_to_sync
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import AsyncClient, Client, SimpleTestCase

from semel import Engine
from tests.frameworks.django_site import imported

PATH = "/suppliers/ACME/imports"
FILE = b"n\r\n1\r\n2\r\n"


class ImportTests(SimpleTestCase):  # type: ignore[misc]  # Django ships no types
    """One story on one store."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        engine = Engine.connect(imported.STORE)
        engine.migrate()
        engine.close()

    def headers(self, caller: str = "alice") -> dict[str, Any]:
        return {"headers": {"Authorization": f"Bearer {caller}"}}

    def test_the_same_bytes_are_one_import_however_they_are_sent(self) -> None:
        client = Client()
        first = client.post(PATH, FILE, content_type="text/csv", **self.headers())
        assert (first.status_code, first.headers["Semel-Import"]) == (202, "created")
        job = first.headers["Location"]
        form = {"file": SimpleUploadedFile("b.csv", FILE, "text/csv")}
        assert client.post(PATH, form, **self.headers()).json()["id"] == first.json()["id"]

        async def ask() -> Any:
            return await AsyncClient().post(PATH, FILE, content_type="text/csv", **self.headers())

        again = async_to_sync(ask)()
        assert (again.status_code, json.loads(again.content)["id"]) == (200, first.json()["id"])
        ends, found = time.monotonic() + 30, first.json()
        while found["state"] in ("QUEUED", "RUNNING") and time.monotonic() < ends:
            found = client.get(job, **self.headers()).json()
        assert (found["state"], found["counts"]["booked"]) == ("DONE", 2)
        assert len(client.get(f"{job}/rows", **self.headers()).json()["rows"]) == 2
        assert client.get(f"/imports?key={found['key']}", **self.headers()).json()["imports"][0]["id"] == found["id"]

    def test_an_upload_that_may_refuses_is_refused(self) -> None:
        client = Client()
        for path, body, caller, status in (
            (PATH, FILE, "bob", 403),
            ("/suppliers/BETA/imports", FILE, "alice", 403),
            (PATH, FILE, "", 401),
            (PATH, b"", "alice", 415),  # Django's client sends no type with it
        ):
            answer = client.post(path, body, content_type="text/csv", **self.headers(caller))
            assert answer.status_code == status, (path, caller, answer.content)
        assert client.delete(PATH, **self.headers()).status_code == 405
        assert client.post("/imports", **self.headers()).status_code == 405
