"""`semel proxy` or `semel gate` as a process, and an upstream that breaks the line on purpose."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading

import httpx


class Breaking:
    """An upstream on a raw socket: it notes every request that it has read, and answers with the given bytes."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                data = b""
                while b"\r\n\r\n" not in data and (piece := connection.recv(65536)):
                    data += piece
                if not data:
                    continue  # a probe, which sends nothing
                head, _, body = data.partition(b"\r\n\r\n")
                found = re.search(rb"(?i)content-length: (\d+)", head)
                while found and len(body) < int(found[1]):
                    body += connection.recv(65536)
                while b"\r\ntransfer-encoding: chunked" in head.lower() and not body.endswith(b"0\r\n\r\n"):
                    body += connection.recv(65536)
                self.requests.append(head + b"\r\n\r\n" + body)
                connection.sendall(self.answers.pop(0))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)


class Running:
    """A command that serves HTTP: ``client`` speaks to it, ``log`` has all that it wrote once it has ended."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", "semel.cli", *arguments], stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        self.log = b""
        while (found := re.search(rb"running on http://127.0.0.1:(\d+)", self.log)) is None:
            line = self.process.stderr.readline()
            assert line, self.log.decode()
            self.log += line
        self.port = int(found[1])
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def send(self, request: str) -> bytes:
        """Send a request as it is written; the whole answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1).encode())
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        return answer

    def end(self) -> None:
        """End it by SIGTERM."""
        self.client.close()
        self.process.terminate()
        assert self.process.stderr is not None
        with self.process.stderr as rest:
            self.log += rest.read()
        self.process.wait(60)
