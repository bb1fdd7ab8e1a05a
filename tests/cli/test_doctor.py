"""What `semel doctor` finds around a file: its file system, who may write it, what waits for a purge, the settings."""

from __future__ import annotations

import os
import sqlite3
import stat
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import Answer
from semel.admin.doctor.settings import VARIABLES, look_at_settings
from semel.core.contract import DoctorFinding
from semel.stores.sqlite import doctor as doctor_sqlite
from semel.stores.sqlite import file as sqlite_file
from semel.stores.sqlite.doctor import mount_of
from semel.stores.sqlite.store import SqliteStore
from tests.cli.conftest import HOUR_US, Ran, Shelf

Run = Callable[..., Ran]
ROOT_LINE = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw"


def found(ran: Ran, check: str) -> dict[str, Any]:
    [finding] = [finding for finding in ran.document["findings"] if finding["check"] == check]
    assert isinstance(finding, dict)
    return finding


MOUNTS = {
    "a local disk": ("ext4 /dev/sdb1 rw", "ok"),
    "NFS": ("nfs4 server:/share rw,vers=4.2", "problem"),
    "9p": ("9p host rw,trans=virtio", "problem"),
    "CIFS": ("cifs //server/share rw", "problem"),
    "a container's layer": ("overlay overlay rw,lowerdir=/l,upperdir=/u", "warning"),
    "overlay without fsync": ("overlay overlay rw,lowerdir=/l,upperdir=/u,volatile", "problem"),
    "memory": ("tmpfs tmpfs rw", "warning"),
    "no barriers": ("ext4 /dev/sdb1 rw,nobarrier", "warning"),
}


@pytest.mark.parametrize(("mount", "level"), MOUNTS.values(), ids=MOUNTS)
def test_the_file_system_is_reported(
    semel: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, level: str
) -> None:
    place = str(tmp_path.resolve()).replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"{ROOT_LINE}\n40 22 8:2 / {place} rw,noatime shared:1 - {mount}\n", "utf-8")
    monkeypatch.setattr(sqlite_file, "MOUNTS", mounts)
    ran = semel("doctor", "--json")
    finding = found(ran, "filesystem")
    assert finding["level"] == level
    assert ran.code == (0 if level == "ok" else 1)
    assert (finding["remedy"] is None) is (level == "ok")


def test_the_innermost_and_latest_mount_counts() -> None:
    text = "\n".join(
        (
            ROOT_LINE,
            "30 22 8:2 / /srv rw - nfs server:/srv rw",
            "31 22 8:3 / /srv/my\\040data rw - xfs /dev/sdc1 rw",
            "32 22 8:4 / /srv/my\\040data rw - btrfs /dev/sdd1 rw",
            "this is no mount",
        )
    )
    kinds = {path: mount_of(Path(path), text) for path in ("/srv/x", "/srv/my data/x", "/srvx/y", "/")}
    assert {path: mount and mount.kind for path, mount in kinds.items()} == {
        **{"/srv/x": "nfs", "/srv/my data/x": "btrfs", "/srvx/y": "ext4", "/": "ext4"}
    }
    assert mount_of(Path("/x"), "") is None


def test_without_a_mount_table_the_file_system_is_only_noted(
    semel: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "MOUNTS", tmp_path / "none")
    assert found(semel("doctor", "--json"), "filesystem")["level"] == "note"


@pytest.mark.parametrize(("mode", "level"), [(0o600, "ok"), (0o644, "note"), (0o666, "warning")])
def test_rights_are_reported(semel: Run, shelf: Shelf, mode: int, level: str) -> None:
    shelf.path.chmod(mode)
    assert found(semel("doctor", "--json"), "permissions")["level"] == level


def test_companions_of_another_owner_are_a_problem(semel: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.stat

    def strange(path: Path, **options: Any) -> os.stat_result:
        seen = real(path, **options)
        if not path.name.endswith("-wal"):
            return seen
        return os.stat_result((*seen[:4], seen.st_uid + 1, *seen[5:]))

    with shelf.engine() as engine:  # the log exists while a connection has the file open
        engine.run(shelf.command("one"), lambda permit: Answer(201, (), b"paid"))
        monkeypatch.setattr(Path, "stat", strange)
        finding = found(semel("doctor", "--json"), "permissions")
    assert finding["level"] == "problem"
    assert "semel.db-wal" in finding["detail"]


def test_a_file_that_may_not_be_written_is_a_problem(semel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    finding = found(semel("doctor", "--json"), "writable")
    assert finding["level"] == "problem"
    assert "owner" in finding["remedy"]


def test_expired_records_that_were_not_purged_are_overdue(semel: Run, shelf: Shelf) -> None:
    shelf.succeed("fresh")
    shelf.succeed("just over", ago_us=HOUR_US, answer_seconds=60, tombstone_seconds=60)
    assert found(semel("doctor", "--json"), "purge")["level"] == "ok"
    shelf.succeed("answer", ago_us=5 * HOUR_US, answer_seconds=60)
    shelf.succeed("tombstone", ago_us=10 * HOUR_US, answer_seconds=60, tombstone_seconds=60)
    finding = found(semel("doctor", "--json"), "purge")
    assert finding["level"] == "warning"
    assert "1 tombstones and 1 answers are overdue, the oldest for 10 h" in finding["detail"]
    assert "semel purge" in finding["remedy"]
    assert semel("purge").code == 0
    assert found(semel("doctor", "--json"), "purge")["level"] == "ok"


def test_a_large_file_is_checked_when_asked(semel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_sqlite, "CHECKED_BYTES_MAX", 0)
    assert found(semel("doctor", "--json"), "integrity")["level"] == "note"
    assert found(semel("doctor", "--json", "--full"), "integrity")["level"] == "ok"


def test_a_pending_migration_is_found(semel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("0001_first", "0002_many_effects", "0003_imports", "0004_fourth")
    monkeypatch.setattr(SqliteStore, "migrations", names)
    finding = found(semel("doctor", "--json"), "schema")
    assert (finding["level"], finding["detail"], finding["remedy"]) == (
        "warning",
        "pending: 0004_fourth",
        "run: semel migrate",
    )


def test_a_schema_of_a_newer_semel_is_refused(semel: Run, shelf: Shelf) -> None:
    with closing(sqlite3.connect(shelf.path)) as connection, connection:
        connection.execute("UPDATE semel_meta SET schema_version = 99")
    ran = semel("doctor", "--json")
    assert ran.code == 3
    assert "upgrade" in found(ran, "identity")["detail"]


# --- settings -----------------------------------------------------------------------------------


def settings(environment: dict[str, str], **options: Any) -> list[DoctorFinding]:
    return list(look_at_settings(Namespace(**options), environment))


def test_a_misspelt_variable_is_found() -> None:
    [_, misspelt, _] = settings({"SEMEL_ULR": "x"})
    assert (misspelt.level, "SEMEL_URL" in misspelt.detail) == ("warning", True)
    assert len(settings(dict.fromkeys(VARIABLES, ""))) == 2
    assert len(settings({"SEMEL_TEST_OWNER": "x", "URL": "y"})) == 2


def test_the_source_of_the_url_is_reported_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEMEL_URL", raising=False)
    assert settings({})[0].detail == "sqlite:///semel.db (by default)"
    monkeypatch.setenv("SEMEL_URL", "postgresql://shop:hunter2@db/x?password=hunter2&a=b")
    detail = settings({})[0].detail
    assert detail == "postgresql://shop:***@db/x?password=***&a=b (by $SEMEL_URL)"
    assert settings({}, url="sqlite:///x.db")[0].detail == "sqlite:///x.db (by --url)"


def test_a_secret_that_others_may_read_is_noted(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(32))
    secret.chmod(0o600)
    assert settings({"SEMEL_ID_SECRET_FILE": str(secret)})[-1].level == "ok"
    secret.chmod(stat.S_IRUSR | stat.S_IRGRP)
    assert settings({"SEMEL_ID_SECRET_FILE": str(secret)})[-1].remedy == f"chmod 600 {secret}"
