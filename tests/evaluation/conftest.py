from pathlib import Path

import pytest
from whole_evaluation import write_whole_evaluation


@pytest.fixture(scope="session")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One evaluation for all tests that only read it."""
    folder = tmp_path_factory.mktemp("evaluation")
    write_whole_evaluation(folder)
    return folder
