"""The artifacts of kit.doors, once for all files here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.doors import World, world_in


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_in(tmp_path_factory.mktemp("world")) as found:
        yield found
