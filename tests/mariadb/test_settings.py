"""What the server's settings make of the promise is read from the server, and said with a remedy."""

from __future__ import annotations

import pytest

from semel import Policy
from semel.stores.mariadb.settings import judge
from tests.servers.mariadb import MARK

pytestmark = MARK

SOUND = {"innodb_flush_log_at_trx_commit": "1", "max_allowed_packet": "16777216", "log_bin": "OFF", "read_only": "OFF"}


@pytest.mark.parametrize(
    ("changed", "check", "level"),
    [
        ({"log_bin": "ON", "sync_binlog": "0"}, "binlog", "note"),
        ({"read_only": "ON"}, "role", "warning"),
        ({"wsrep_on": "ON", "wsrep_sync_wait": "7"}, "galera", "warning"),
        ({"max_allowed_packet": "1048576"}, "packet", "warning"),
        ({"innodb_rollback_on_timeout": "ON"}, "locks", "note"),
        ({"innodb_flush_method": "nosync"}, "flush", "warning"),
    ],
)
def test_each_doubtful_setting_has_a_remedy(changed: dict[str, str], check: str, level: str) -> None:
    assert [found.check for found in judge(SOUND)] == ["durability"]
    [_, found] = judge({**SOUND, **changed})
    assert (found.check, found.level) == (check, level)
    assert found.remedy


@pytest.mark.parametrize("waits", ["0", "1", "6"])
def test_a_galera_node_reports_its_sync_wait(waits: str) -> None:
    found = {each.check: each for each in judge({**SOUND, "wsrep_on": "ON", "wsrep_sync_wait": waits})}
    assert found["galera reads"].level == "note"
    assert "wsrep_sync_wait=7" in found["galera reads"].remedy
    assert "galera reads" not in {each.check for each in judge({**SOUND, "wsrep_sync_wait": waits})}


def test_the_default_answer_fits_a_default_packet() -> None:
    assert not [
        found for found in judge({**SOUND, "max_allowed_packet": str(4 * Policy().answer_bytes_max)}) if found.remedy
    ]
