from collections.abc import Iterator

import pytest
from opening import Opener


@pytest.fixture(scope="session")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Return a process that opens what people pass around, under limits."""
    started = Opener(tmp_path_factory.mktemp("home"))
    yield started
    started.close()
