"""Ports for servers are given once, also between processes, and never one with a listener."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from tests.house.sources import ROOT
from tests.servers import ports

ASKS = """
import json, sys
from tests.servers import ports
ports.FIRST, ports.LAST = map(int, sys.argv[1:])
ports.TRIES = 2000
print(json.dumps([ports.free_port() for _ in range(8)]), flush=True)
sys.stdin.read()
"""


def test_processes_that_ask_at_once_are_given_different_ports() -> None:
    """Sixteen of two dozen: looking for a free one alone would give some of them twice."""
    bounds = [str(ports.LAST + 1), str(ports.LAST + 24)]
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASKS, *bounds], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    given = [json.loads(each.stdout.readline()) for each in asking if each.stdout is not None]
    for each in asking:
        each.communicate()
    assert len({port for mine in given for port in mine}) == 16


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST", taken)
        monkeypatch.setattr(ports, "LAST", taken)
        monkeypatch.setattr(ports, "TRIES", 3)
        with pytest.raises(AssertionError, match=f"no port from {taken} to {taken} is free"):
            ports.free_port()


def test_ports_are_outside_the_ephemeral_range() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        lowest = int(file.read().split()[0])
    assert ports.FIRST <= ports.free_port() <= ports.LAST
    assert lowest > ports.LAST, (
        "this system gives its connections ports from our range: a server may find its own taken"
    )
