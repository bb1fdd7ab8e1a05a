"""Every scheme of store URLs: its store, its error messages, a package's own store, and no password in any output."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from semel import Engine
from semel.admin.failures import UsageFailed
from semel.cli.main import main
from semel.cli.open_store import require_shared
from semel.errors import ConfigurationError, SemelError, UrlError
from semel.extras import install_command
from semel.stores.backend import hide_password
from semel.stores.memory.store import MemoryStore
from semel.stores.urls import OPTIONS, connect_backend
from tests.engine.shells import MADE, command
from tests.servers.running import free_port

Capture = pytest.CaptureFixture[str]
SECRET = "hunter2"
PLACES = {
    **dict.fromkeys([scheme for scheme in OPTIONS if scheme.startswith(("mysql", "mariadb", "postgresql"))], "/shop"),
    **dict.fromkeys(("redis", "rediss"), "/0"),
    **dict.fromkeys(("redis+cluster", "rediss+cluster"), ""),
    **dict.fromkeys(("redis+sentinel", "rediss+sentinel"), "/shop/0"),
}
VALUES = {
    "busy_seconds": "3",
    "charset": "utf8mb4",
    "connections_max": "3",
    "db": "1",
    "patience_seconds": "3",
    "persistence": "none",
    "prefix": "shop",
    "prepared": "no",
    "schema": "shop",
    "sentinel_auth": "same",
    "socket": "/run/db.sock",
    "synchronous": "NORMAL",
    "tls": "no",
    "unix_socket": "/run/db.sock",
    "wait_replicas": "1",
    "wait_seconds": "0.5",
}
WRONG = {
    "busy_seconds": ("soon", "from 0 to 3600"),
    "connections_max": ("0", "from 1 to 1000"),
    "db": ("shop", "number of a database"),
    "patience_seconds": ("0", "more than 0"),
    "persistence": ("maybe", "required or none"),
    "prefix": ("a{b}", "1 to 40 letters"),
    "prepared": ("maybe", "yes or no"),
    "schema": ("No!", "lower-case name"),
    "sentinel_auth": ("maybe", "none or same"),
    "synchronous": ("OFF", "FULL, NORMAL"),
    "tls": ("maybe", "yes or no"),
    "tls_ca": ("/nowhere/ca.pem", "a file of certificates"),
    **{
        f"ssl_{part}": ("/nowhere", "there is no '/nowhere'") for part in ("ca_certs", "ca_path", "certfile", "keyfile")
    },
    "wait_replicas": ("-1", "from 0 to 100"),
    "wait_seconds": ("9", "less than patience_seconds"),
}
PLACES_HERE = {"tls_ca", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"}
ANY_VALUE = {"charset", "socket", "unix_socket"}
PAIRS = [(scheme, option) for scheme, options in OPTIONS.items() for option in options]


def url_of(scheme: str, *, user: str = "app:hunter2@", port: int = 7) -> str:
    """A URL of the scheme with no server behind it."""
    if scheme == "memory":
        return "memory://"
    if scheme == "sqlite":
        return "sqlite:////nowhere/semel.db"
    if scheme == "redis+unix":
        return f"redis+unix://{user}/nowhere/redis.sock"
    return f"{scheme}://{user}127.0.0.1:{port}{PLACES[scheme]}"


@pytest.mark.parametrize("scheme", OPTIONS)
def test_every_scheme_connects_without_opening_anything(scheme: str) -> None:
    with closing(Engine.connect(url_of(scheme))) as engine:
        assert engine.backend.url == url_of(scheme)


@pytest.mark.parametrize(("scheme", "option"), PAIRS)
def test_every_url_option_is_applied(scheme: str, option: str) -> None:
    if option in VALUES:
        made = connect_backend(f"{url_of(scheme)}?{option}={VALUES[option]}")
        assert made.accepts_loss is (option == "persistence")
    else:
        assert option in ANY_VALUE | PLACES_HERE
    if option in WRONG:
        value, allowed = WRONG[option]
        with pytest.raises(UrlError, match=allowed) as told:
            connect_backend(f"{url_of(scheme)}?{option}={value}")
        assert option in str(told.value) or option == "db"
    else:
        assert option in ANY_VALUE


@pytest.mark.parametrize("scheme", OPTIONS)
def test_an_unknown_option_is_refused_before_anything_is_opened(scheme: str) -> None:
    with pytest.raises(UrlError, match="unknown option 'conections_max' in the store URL; "):
        connect_backend(f"{url_of(scheme)}?conections_max=3")
    with pytest.raises(UrlError, match="unknown option 'x' in the store URL; "):
        connect_backend(f"{url_of(scheme)}?x={SECRET}")


def test_an_option_is_given_once() -> None:
    with pytest.raises(UrlError, match="'prefix' is in the store URL twice"):
        connect_backend("redis://h?prefix=a&prefix=b")


def test_the_scheme_of_most_hosts_database_urls_is_postgresql() -> None:
    assert connect_backend("postgres://app@h/db").name == connect_backend("postgresql://app@h/db").name == "postgresql"
    with pytest.raises(UrlError, match="unknown option 'conections_max' in the store URL; did you mean"):
        connect_backend("postgres://h/db?conections_max=3")


def test_a_similar_scheme_is_suggested_and_otherwise_all_are_listed() -> None:
    with pytest.raises(UrlError, match="did you mean 'postgresql'"):
        connect_backend("postgers://h/db")
    with pytest.raises(UrlError, match="did you mean 'busy_seconds'"):
        connect_backend("sqlite:///semel.db?busy_second=3")
    with pytest.raises(UrlError) as told:
        connect_backend("acme://h")
    assert all(scheme in str(told.value) for scheme in OPTIONS)
    assert "group 'semel.stores'" in str(told.value)


@pytest.mark.parametrize("place", ["h:x", "h:0", "h:1,i:x"])
def test_a_port_is_a_number(place: str) -> None:
    with pytest.raises(UrlError, match="the port of the store URL must be a number from 1 to 65535"):
        connect_backend(f"postgresql://app:{SECRET}@{place}/shop")


@pytest.mark.parametrize(
    ("scheme", "library", "extra"),
    [
        ("postgresql", "psycopg", "postgresql"),
        ("postgresql+asyncpg", "asyncpg", "asyncpg"),
        ("mysql", "pymysql", "mariadb"),
        ("mariadb", "asyncmy", "mariadb"),
        ("redis", "redis", "redis"),
        ("redis+cluster", "redis", "redis"),
    ],
)
def test_a_missing_library_is_named_with_what_to_install(scheme: str, library: str, extra: str) -> None:
    """In a process of its own, where the library cannot be imported."""
    program = f"import sys; sys.modules[{library!r}] = None; from semel.cli.main import main; sys.exit(main())"
    said = subprocess.run(
        [sys.executable, "-c", program, "list", "--url", url_of(scheme)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert install_command(extra) in said.stderr
    assert len(said.stderr.splitlines()) == 1
    assert SECRET not in said.stderr


# --- stores of other packages -------------------------------------------------------------------


@pytest.fixture
def install_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install a package as pip does: its module, and the metadata with its entry point."""

    def install(module: str, target: str) -> None:
        (tmp_path / "acme_semel.py").write_text(module)
        metadata = tmp_path / "acme_semel-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-semel\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[semel.stores]\nacme = {target}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "acme_semel", raising=False)
        importlib.invalidate_caches()

    return install


ACME = """
from dataclasses import replace
from semel.stores.urls import connect_backend

def connect(url):
    return replace(connect_backend("memory://"), name="acme")
"""


def test_a_packages_store_is_reached_by_its_scheme(install_package: Callable[[str, str], None]) -> None:
    install_package(ACME, "acme_semel:connect")
    with Engine.connect("acme://app:hunter2@h/shop") as engine:
        assert (engine.backend.name, engine.backend.url) == ("acme", "acme://app:hunter2@h/shop")
        assert engine.run(command(), lambda permit: MADE).answer == MADE
        assert engine.run(command(), lambda permit: MADE).replayed
    with pytest.raises(UrlError, match="did you mean 'acme'"):
        connect_backend("acne://h")


@pytest.mark.parametrize(
    ("module", "target", "said"),
    [
        ("import no_such_library", "acme_semel:connect", "the package acme-semel cannot be loaded"),
        ("", "acme_semel:connect", "the package acme-semel cannot be loaded"),
        ("def connect(url): return url", "acme_semel:connect", "returned a str instead of a Backend"),
    ],
)
def test_a_package_that_is_broken_is_named(
    module: str, target: str, said: str, install_package: Callable[[str, str], None]
) -> None:
    install_package(module, target)
    with pytest.raises(ConfigurationError, match=said) as told:
        connect_backend(f"acme://app:{SECRET}@h")
    assert SECRET not in str(told.value)


# --- passwords ----------------------------------------------------------------------------------

COMMANDS = (
    ("doctor",), ("migrate",), ("list",), ("config",), ("show", "k"), ("explain", "k"),
    ("watch", "--count", "1", "--every", "1"),
    ("export", "-"), ("purge",), ("doctor", "--json"), ("config", "--json"),
)  # fmt: skip


@pytest.mark.parametrize("scheme", [scheme for scheme in OPTIONS if scheme not in ("memory", "sqlite")])
@pytest.mark.parametrize("place", ["user", "parameter"])
def test_no_command_shows_a_password(
    scheme: str, place: str, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither if the server is unreachable nor if the URL is wrong."""
    caplog.set_level(logging.DEBUG)
    plain = url_of(scheme, user=f"app:{SECRET}@" if place == "user" else "app@", port=free_port())
    parameter = f"password={SECRET}" if place == "parameter" else "patience_seconds=2"
    for arguments in COMMANDS:
        code = main([*arguments, "--url", f"{plain}?{parameter}"])
        said = capsys.readouterr()
        assert code != 0, arguments
        assert said.out + said.err, arguments
        assert SECRET not in said.out + said.err + caplog.text, arguments
    for broken in (
        f"{plain}?{parameter}&nonsense=1",
        plain.replace("127.0.0.1", "127.0.0.1:x"),
        f"x{plain}?{parameter}",
    ):
        with pytest.raises(SemelError) as told, Engine.connect(broken):
            raise AssertionError("it opened")
        assert SECRET not in str(told.value)


@pytest.mark.parametrize("scheme", [scheme for scheme in OPTIONS if scheme not in ("memory", "sqlite")])
def test_no_object_shows_a_password(scheme: str) -> None:
    """What a log line or a debugger may show of an engine."""
    engine = Engine.connect(url_of(scheme))
    driver = engine.backend.driver
    seen = [engine, engine.backend, driver, engine.store, *vars(driver).values()]
    assert not [each for each in seen if SECRET in repr(each) or SECRET in str(each)]
    engine.close()


@pytest.mark.parametrize(
    "password", ["hun@ter2", "hun/ter2", "hun:ter2", "hun#ter2", "hun?ter2", "@/:#?ter2", "hun ter2"]
)
@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "redis", "redis+cluster", "acme"])
def test_a_password_that_was_not_encoded_is_not_shown_either(scheme: str, password: str, capsys: Capture) -> None:
    """The password changes what the URL means; the error message must not contain it."""
    url = f"{scheme}://app:{password}@127.0.0.1:{free_port()}/shop"
    assert "ter2" not in hide_password(url)
    for arguments in (("doctor",), ("config", "--json"), ("move", "--to", "sqlite:///x.db"), ("serve",)):
        assert main([*arguments, "--url", url]) != 0
        said = capsys.readouterr()
        assert "ter2" not in said.out + said.err, arguments


def test_a_url_without_a_password_is_shown_unchanged() -> None:
    for url in ("sqlite:////var/lib/a@b/x.db", "redis://h:7/0?prefix=a", "memory://", "postgresql:///shop?host=/run"):
        assert hide_password(url) == url
    assert hide_password("redis+cluster://a:pw@h:1,i:2") == "redis+cluster://a:***@h:1,i:2"


def test_a_store_that_only_its_process_sees_is_named_by_its_own_scheme() -> None:
    with pytest.raises(UsageFailed, match="vault:// exists only within its own process"):
        require_shared(MemoryStore(), "vault://cell")


def test_a_file_whose_name_is_no_text_is_named_in_the_hint_and_found_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list", "--url", "sqlite:///shop\udcff.db"]) == 3
    hint = capsys.readouterr().err.rpartition("--url ")[2].strip()
    assert hint == "sqlite:///shop%FF.db"
    assert main(["migrate", "--url", hint]) == 0
    assert [file.name for file in tmp_path.glob("*.db")] == ["shop\udcff.db"]
    assert main(["list", "--url", "sqlite:///shop\udcff.db"]) == 0
    assert main(["migrate", "--url", "sqlite:///new\udcff.db"]) == 0
    assert main(["move", "--from", hint, "--to", "sqlite:///new\udcff.db"]) == 0
