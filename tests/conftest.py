import os
from pathlib import Path

import pytest
from hypothesis import settings

# Cold imports and a loaded machine make single examples slow; the test's own timeout bounds them.
settings.register_profile("skindx", deadline=None, max_examples=50)
settings.load_profile("skindx")


@pytest.fixture(scope="session")
def real() -> Path:
    """Return the folder of real pictures, or skip: they are never part of the project."""
    where = os.environ.get("SKINDX_REAL", "")
    if not where or not Path(where).is_dir():
        pytest.skip("SKINDX_REAL does not point at a folder of real pictures")
    return Path(where)
