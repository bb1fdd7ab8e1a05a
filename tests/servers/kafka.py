"""librdkafka's own mock cluster: brokers of Kafka's protocol on real sockets, in threads of this process.

It is what the client library of C, C++, Go and Python is tested with: topics, partitions, idempotent producers and
consumer groups, and any error wanted. Its log is in memory, and there is one of it: how Kafka itself replicates, elects
and flushes is not shown by it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import files
from typing import Any, Final

PRODUCE: Final = 0  # the protocol's own numbers of requests
UNKNOWN_TOPIC: Final = 3  # ... and of errors
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER: Final = 6
NOT_ENOUGH_REPLICAS: Final = 19
_PRODUCER: Final = 0


@cache
def _library() -> Any:
    """The shared library that confluent-kafka's wheel brings."""
    [path] = [each for each in files("confluent-kafka") or () if each.name.startswith("librdkafka-")]
    library = ctypes.CDLL(str(path.locate()))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, *takes in (
        ("rd_kafka_conf_new", pointer),
        ("rd_kafka_conf_set", ctypes.c_int, pointer, text, text, text, ctypes.c_size_t),
        ("rd_kafka_new", pointer, ctypes.c_int, pointer, text, ctypes.c_size_t),
        ("rd_kafka_destroy", None, pointer),
        ("rd_kafka_mock_cluster_new", pointer, pointer, ctypes.c_int),
        ("rd_kafka_mock_cluster_destroy", None, pointer),
        ("rd_kafka_mock_cluster_bootstraps", text, pointer),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, pointer, ctypes.c_int32),
        ("rd_kafka_mock_topic_create", ctypes.c_int, pointer, text, ctypes.c_int, ctypes.c_int),
        ("rd_kafka_mock_topic_set_error", None, pointer, text, ctypes.c_int),
        ("rd_kafka_mock_broker_set_down", ctypes.c_int, pointer, ctypes.c_int32),
        ("rd_kafka_mock_broker_set_up", ctypes.c_int, pointer, ctypes.c_int32),
        ("rd_kafka_mock_partition_set_leader", ctypes.c_int, pointer, text, ctypes.c_int32, ctypes.c_int32),
        ("rd_kafka_mock_push_request_errors_array", None, pointer, ctypes.c_int16, ctypes.c_size_t, pointer),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, takes
    return library


class Cluster:
    """Brokers, numbered from 1, until it is left."""

    def __init__(self, handle: int, brokers: int) -> None:
        self._handle = handle
        self._brokers = brokers
        self.servers: str = _library().rd_kafka_mock_cluster_bootstraps(handle).decode()

    def make(self, topic: str, partitions: int = 2) -> None:
        """Make a topic."""
        assert _library().rd_kafka_mock_topic_create(self._handle, topic.encode(), partitions, self._brokers) == 0

    def say(self, topic: str, error: int) -> None:
        """The error for a topic in every metadata reply; 0: none."""
        _library().rd_kafka_mock_topic_set_error(self._handle, topic.encode(), error)

    def down(self) -> None:
        """Every broker closes its connections and takes no other."""
        for number in range(1, self._brokers + 1):
            assert _library().rd_kafka_mock_broker_set_down(self._handle, number) == 0

    def up(self) -> None:
        """They are back, with what they had."""
        for number in range(1, self._brokers + 1):
            assert _library().rd_kafka_mock_broker_set_up(self._handle, number) == 0

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Another broker leads a partition; -1: none does."""
        given = (self._handle, topic.encode(), partition, broker)
        assert _library().rd_kafka_mock_partition_set_leader(*given) == 0

    def fail(self, request: int, *errors: int) -> None:
        """The next requests of a kind end so."""
        _library().rd_kafka_mock_push_request_errors_array(
            self._handle, request, len(errors), (ctypes.c_int * len(errors))(*errors)
        )


@contextmanager
def cluster(*topics: str, brokers: int = 2) -> Iterator[Cluster]:
    """A cluster with these topics. It creates no others."""
    library, said = _library(), ctypes.create_string_buffer(512)
    conf = library.rd_kafka_conf_new()
    for name, value in (("bootstrap.servers", "127.0.0.1:1"), ("log_level", "0")):  # its own client connects nowhere
        assert library.rd_kafka_conf_set(conf, name.encode(), value.encode(), said, len(said)) == 0, said.value
    client = library.rd_kafka_new(_PRODUCER, conf, said, len(said))
    assert client, said.value
    handle = library.rd_kafka_mock_cluster_new(client, brokers)
    assert handle
    try:
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(handle, 0)
        made = Cluster(handle, brokers)
        for topic in topics:
            made.make(topic)
        yield made
    finally:
        library.rd_kafka_mock_cluster_destroy(handle)
        library.rd_kafka_destroy(client)
