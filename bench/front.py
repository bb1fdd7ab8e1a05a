"""A plain reverse proxy of `semel proxy`'s own parts, without operations: ``python -m bench.front UPSTREAM-PORT``."""

from __future__ import annotations

import sys

from semel.proxy.application import Front, serve
from semel.proxy.configuration import UpstreamOrigin
from semel.proxy.upstream import Upstream


class PlainFront(Front):
    """Nothing is declared: everything streams through."""

    def declares(self, method: str, path: str) -> bool:
        """No."""
        return False


if __name__ == "__main__":
    passing = Upstream(UpstreamOrigin("http", "127.0.0.1", int(sys.argv[1])), {})
    serve(PlainFront(passing, passing), "127.0.0.1", 0)
