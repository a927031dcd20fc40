"""Where conftest.py keeps the tests that were collected, before options choose among them."""

import pytest

COLLECTED = pytest.StashKey[list[pytest.Item]]()
