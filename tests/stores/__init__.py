"""The stores' tests: one suite for all of them, random histories, and interleavings."""

import pytest

pytest.register_assert_rewrite("semel.testing.bench", "semel.testing.cases")
