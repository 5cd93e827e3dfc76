"""Case books whose database does not wait until a page is on the disk."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event


@pytest.fixture(autouse=True)
def hasty_database() -> Iterator[None]:
    """Let SQLite leave what it wrote to the system: a test ends processes, never the machine."""

    def hasten(connection: Any, _: object) -> None:
        if type(connection).__module__ == "sqlite3":
            connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", hasten)
    yield
    event.remove(Engine, "connect", hasten)
