"""As much of curl as the examples use: ``curl [-s] [-i] [-X METHOD] [-H FIELD]... [-d BODY] URL``."""

from __future__ import annotations

import argparse
import http.client
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

NOT_CONNECTED = 7


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="curl", allow_abbrev=False)
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-i", action="store_true")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    parser.add_argument("-X")
    parser.add_argument("url")
    options = parser.parse_args(arguments)
    parts = urlsplit(options.url)
    fields = dict(line.split(": ", 1) for line in options.H)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        method = options.X or ("GET" if options.d is None else "POST")
        connection.request(method, target, None if options.d is None else options.d.encode(), fields)
        answer = connection.getresponse()
        body = answer.read()
    except OSError:
        return NOT_CONNECTED
    finally:
        connection.close()
    out = sys.stdout.buffer
    if options.i:
        out.write(f"HTTP/1.1 {answer.status} {answer.reason}\r\n".encode())
        out.writelines(f"{name.lower()}: {value}\r\n".encode("latin-1") for name, value in answer.getheaders())
        out.write(b"\r\n")
    out.write(body)
    out.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
