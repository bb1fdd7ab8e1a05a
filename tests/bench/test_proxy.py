"""The figures of `python -m bench.proxy`: medians, and ratios to the plain proxy of the same round."""

from __future__ import annotations

from bench.load import Report, end_of_answer
from bench.proxy import figures


def report(requests: int) -> Report:
    return Report(
        requests=requests,
        replayed=0,
        seconds=2.0,
        p50_ms=float(requests),
        p99_ms=0.0,
        generator_share=0.0,
        server_cpu_seconds=None,
        wrong="",
    )


def test_each_subject_is_compared_with_the_plain_proxy_of_its_round() -> None:
    rounds = [{"front": report(front), "proxy-fresh": report(fresh)} for front, fresh in ((10, 5), (40, 10), (20, 20))]
    found = {each.way: (each.per_second, each.of_front, each.p50_ms) for each in figures(rounds)}
    assert found == {"front": (10.0, 1.0, 20.0), "proxy-fresh": (5.0, 0.5, 10.0)}


def test_a_server_may_write_the_names_of_headers_in_any_case() -> None:
    assert end_of_answer(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok") == 45
