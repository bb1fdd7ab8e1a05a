"""The service's startup message: its address, and commands to copy and try."""

from __future__ import annotations

from semel.reference.settings import DEMO_LEASE_SECONDS, Settings

_TRY = """
  # the same payment, submitted twice: one charge, the same answer, the second one marked as replayed
  KEY=$(uuidgen 2>/dev/null || date +%s%N)
  curl -i {url}/payments -H 'Authorization: Bearer alice' -H "Idempotency-Key: $KEY" \\
       -H 'Content-Type: application/json' -d '{{"customerId": "c-1", "amount": "10.00", "currency": "EUR"}}'
  curl -i {url}/payments -H 'Authorization: Bearer alice' -H "Idempotency-Key: $KEY" \\
       -H 'Content-Type: application/json' -d '{{"customerId": "c-1", "amount": "10.00", "currency": "EUR"}}'

  # the same key for another payment: refused
  curl -i {url}/payments -H 'Authorization: Bearer alice' -H "Idempotency-Key: $KEY" \\
       -H 'Content-Type: application/json' -d '{{"customerId": "c-1", "amount": "99.00", "currency": "EUR"}}'

  # what was really charged, and the state of the command
  curl {url}/payments -H 'Authorization: Bearer alice'
  curl "{url}/operations?operation=payments.create&key=$KEY" -H 'Authorization: Bearer alice'

  # a supplier's file, known by its content: sent again, under whatever name, it is the same import
  printf 'sku,quantity\\nA-1,2\\nB-2,1\\n' | curl -i {url}/suppliers/ACME/imports -H 'Authorization: Bearer alice' \\
       -H 'Content-Type: text/csv' --data-binary @-
"""
_DEMO = """
  # a worker killed after the charge, before its answer was stored: send it, and again when its lease is over,
  # {lease:g} s later, to see what Semel can prove; sooner, the answer says that the first may still be running
  curl -i {url}/payments -H 'Authorization: Bearer alice' -H "Idempotency-Key: crash-$KEY" \\
       -H 'Content-Type: application/json' \\
       -d '{{"customerId": "c-1", "amount": "5.00", "currency": "EUR", "simulate": {{"crash": "after"}}}}'
"""


def commands(url: str, settings: Settings) -> str:
    """Return commands to try, as lines for a shell."""
    return _TRY.format(url=url) + (_DEMO.format(url=url, lease=DEMO_LEASE_SECONDS) if settings.demo else "")


def greeting(url: str, settings: Settings, metrics: str | None = None) -> list[str]:
    """Return the lines to print."""
    return [
        f"semel: serving on {url} (store {settings.url}{', demo mode' if settings.demo else ''})",
        f"semel: a page to begin with: {url}/; the API is described at {url}/docs; stop with Ctrl-C",
        *([] if metrics is None else [f"semel: metrics for Prometheus: {metrics}"]),
        "",
        "Try it (copy and paste):",
        *commands(url, settings).splitlines(),
    ]
