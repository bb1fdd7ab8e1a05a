"""As much of psql as the examples use: ``psql URL -c STATEMENT``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import psycopg


def main(arguments: Sequence[str]) -> int:
    url, option, statement = arguments
    assert option == "-c", arguments
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
