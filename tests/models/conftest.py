from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting import export_dataset
from opening import Opener


@pytest.fixture(scope="session")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Return a process that opens what people pass around, under limits."""
    started = Opener(tmp_path_factory.mktemp("home"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def export_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 24 images, 12 of them for validation; do not change it."""
    return export_dataset(tmp_path_factory.mktemp("export-data"))
