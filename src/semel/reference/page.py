"""The service's first page: what it protects, what to try, and where to look. One document, without scripts."""

from __future__ import annotations

from html import escape
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from semel.reference.greeting import commands
from semel.reference.settings import Settings

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Semel reference service</title>
<style>
:root {{ color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
pre {{ overflow-x: auto; padding: 1rem; border: 1px solid var(--line); border-radius: .5rem; font-size: .85rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); }}
</style>
</head>
<body>
<main>
<h1>Semel reference service</h1>
<p>Send a command twice with the same <code>Idempotency-Key</code>: it happens once, and both answers are the same.
The store is <code>{store}</code>.</p>
<table>
<thead><tr><th scope="col">Command</th><th scope="col">Effects</th>
<th scope="col">When its worker dies</th></tr></thead>
<tbody>
<tr><td><code>POST /payments</code></td><td>external: a provider is charged</td>
<td>the outcome is unknown until it is settled; the handler never runs again on a guess</td></tr>
<tr><td><code>POST /orders</code></td><td>atomic: the order and its record commit together</td>
<td>everything is rolled back; a retry runs it</td></tr>
<tr><td><code>POST /notes</code></td><td>idempotent: the other side deduplicates by a derived key</td>
<td>a retry runs it again with the same derived key</td></tr>
</tbody>
</table>
<h2>Try it</h2>
<pre tabindex="0">{commands}</pre>
<h2>Look closer</h2>
<ul>
<li><a href="docs">The API</a>, with the header, the refusals and the promise of each command</li>
<li><code>GET /operations?key=…</code>: where a command of yours is</li>
<li><code>.venv/bin/semel list</code>, <code>semel explain</code>, <code>semel doctor</code>: what an operator sees</li>
<li><code>.venv/bin/semel demo</code>: workers killed in the middle of a payment, and what each client received</li>
</ul>
</main>
</body>
</html>
"""


def add(app: FastAPI, settings: Settings) -> None:
    """Serve the page at ``/``."""

    @app.get("/", include_in_schema=False)
    async def first_page(request: Request) -> HTMLResponse:
        shown = commands(str(request.base_url).rstrip("/"), settings).strip("\n")
        store = settings.url.partition("://")[0]
        text = _PAGE.format(store=escape(store), commands=escape(shown))
        return HTMLResponse(text, headers={"Content-Security-Policy": _POLICY})
