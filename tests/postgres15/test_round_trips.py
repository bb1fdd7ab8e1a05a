"""The round trips of ``tests/postgres``, counted on PostgreSQL 15."""

from tests.postgres import test_round_trips
from tests.servers.postgres import MARK_15

globals().update({name: value for name, value in vars(test_round_trips).items() if not name.startswith("__")})
pytestmark = MARK_15
