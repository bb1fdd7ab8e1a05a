"""What a Redis URL may say, and the errors for one that cannot be parsed. No error repeats a password."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from semel.errors import StoreUnavailable, UrlError
from semel.stores.redis.connections import RedisServer
from semel.stores.redis.driver import RedisDriver
from semel.stores.redis.errors import cannot_connect
from semel.stores.redis.routes import Node
from semel.stores.redis.store import RedisStore
from semel.stores.urls import connect_backend
from tests.engine.shells import MADE, Mode, Shell, command
from tests.servers import needed
from tests.servers import redis as servers
from tests.servers.running import free_port, stop


def server(url: str) -> RedisServer:
    driver = connect_backend(url).driver
    assert isinstance(driver, RedisDriver)
    return driver.server


@pytest.mark.parametrize(
    ("url", "nodes", "options"),
    [
        ("redis://localhost", (Node("localhost", 6379),), {"db": 0}),
        ("redis://localhost:7/3", (Node("localhost", 7),), {"db": 3}),
        ("redis://joe:p%40ss@[::1]:7", (Node("::1", 7),), {"username": "joe", "password": "p@ss", "db": 0}),
        ("redis://:pw@h", (Node("h", 6379),), {"password": "pw", "db": 0}),
        ("redis+cluster://a:1,b:2,c", (Node("a", 1), Node("b", 2), Node("c", 6379)), {"db": 0}),
        (
            "redis+sentinel://:pw@a,b:1/shop/2",
            (Node("a", 26379), Node("b", 1)),
            {"password": "pw", "db": 2},
        ),
        ("redis+unix://:pw@/run/redis.sock?db=2", (Node("/run/redis.sock", 0),), {"password": "pw", "db": 2}),
        (f"rediss://h?ssl_ca_certs={__file__}", (Node("h", 6379),), {"ssl_ca_certs": __file__, "db": 0}),
    ],
)
def test_a_url_is_parsed_into_its_parts(url: str, nodes: tuple[Node, ...], options: dict[str, Any]) -> None:
    found = server(url)
    assert (found.nodes, found.options) == (nodes, options)
    assert found.cluster is ("cluster" in url)
    assert found.service == ("shop" if "sentinel" in url else "")
    assert found.tls is url.startswith("rediss")


def test_options_of_a_url() -> None:
    made = connect_backend(
        "redis://h?prefix=shop&wait_replicas=2&wait_seconds=0.5&connections_max=3&patience_seconds=2&persistence=none"
    )
    found = made.driver.server
    assert (found.connections_max, found.patience_seconds, made.accepts_loss) == (3, 2.0, True)
    assert (found.terms.wait_replicas, found.terms.wait_seconds) == (2, 0.5)
    assert isinstance(made.store, RedisStore)
    assert made.store.keys.meta == b"shop:meta"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://", "the server in a Redis URL is host:port, for example redis://localhost:6379/0"),
        ("redis://h:x", "the server in a Redis URL is host:port"),
        ("redis://h:0", "the server in a Redis URL is host:port"),
        ("redis://:secret@:x", "the server in a Redis URL is host:port"),
        ("redis://a,b", "several servers are for redis\\+cluster:// and redis\\+sentinel:// only"),
        ("redis+sentinel://a,b", "the path of this URL begins with the name that the Sentinels monitor"),
        ("redis+sentinel://a/my shop", "the path of this URL begins with the name that the Sentinels monitor"),
        ("redis+sentinel://a/shop/x", "the path of a Redis URL is the number of a database"),
        ("redis+sentinel://a/shop?sentinel_auth=yes", "sentinel_auth must be none or same \\(as the servers'\\)"),
        ("redis://h?sentinel_auth=same", "unknown option 'sentinel_auth'"),
        ("redis://h/shop", "the path of a Redis URL is the number of a database"),
        ("redis+cluster://h/1", "a cluster has one database"),
        ("redis+unix://h/run.sock", "needs the absolute path of a socket"),
        ("redis+unix://", "needs the absolute path of a socket"),
        ("redis://h?prefix=a{b}", "prefix must be 1 to 40 letters"),
        ("redis://h?wait_replicas=x", "wait_replicas must be a number from 0 to 100"),
        ("redis://h?wait_seconds=6", "wait_seconds must be more than 0 and less than patience_seconds \\(5\\)"),
        ("redis://h?patience_seconds=0", "patience_seconds must be more than 0"),
        ("redis://h?connections_max=0", "connections_max must be a number from 1 to 1000"),
        ("redis://h?persistence=maybe", "persistence must be required or none"),
        ("redis://h?ssl_ca_certs=/x", "unknown option 'ssl_ca_certs'"),
        ("redis://h?retry_on_timeout=yes", "unknown option 'retry_on_timeout'"),
        ("redi://h", "did you mean 'redis'"),
    ],
)
def test_a_malformed_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(UrlError, match=said) as told:
        connect_backend(url)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_socket_of_this_machine(mode: Mode, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    own = servers.start(tmp_path / "own", "appendonly yes", f"unixsocket {path}")
    try:
        shell = Shell(mode, connect_backend(f"redis+unix://{path}?db=1"))
        shell.open()
        assert shell.run(command(), lambda permit: MADE).answer == MADE
        assert shell.run(command(), lambda permit: MADE).replayed
        shell.close()
        with Redis(port=own.port, db=1) as plain:
            assert plain.exists("semel:meta")
    finally:
        stop(own)


@needed.needs("redis")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_encrypted_connection(mode: Mode, tmp_path: Path) -> None:
    """The server's certificate is checked against the authority that the URL names, and without one refused."""
    cert, key, port = tmp_path / "cert.pem", tmp_path / "key.pem", free_port()
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(cert),
        *subject,
    ]
    subprocess.run(made, check=True, capture_output=True)
    tls = (f"tls-port {port}", f"tls-cert-file {cert}", f"tls-key-file {key}", f"tls-ca-cert-file {cert}")
    settings = ("appendonly yes", "tls-auth-clients no", *tls)
    own = servers.start(tmp_path / "own", *settings, of=needed.program("redis"))
    try:
        shell = Shell(mode, connect_backend(f"rediss://localhost:{port}?ssl_ca_certs={cert}"))
        shell.open()
        assert shell.run(command(), lambda permit: MADE).answer == MADE
        shell.close()
        stranger = Shell(mode, connect_backend(f"rediss://localhost:{port}"))
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            stranger.run(command(), lambda permit: MADE)
        stranger.close()
    finally:
        stop(own)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
            "check ssl_ca_certs and the server's certificate",
        ),
        ("Connection reset by peer", "rediss:// where it speaks TLS"),
    ],
)
def test_tls_on_one_side_only_is_refused_with_the_remedy(text: str, said: str) -> None:
    assert said in str(cannot_connect(Node("h", 1), OSError(text)))
