"""The ATOMIC units of ``tests/postgres`` on PostgreSQL 15, through one client library."""

import pytest

from tests.postgres import test_units
from tests.postgres.conftest import Kind
from tests.servers.postgres import MARK_15

globals().update({name: value for name, value in vars(test_units).items() if not name.startswith("__")})
pytestmark = MARK_15


@pytest.fixture
def kind() -> Kind:
    """Instead of each."""
    return "psycopg"
