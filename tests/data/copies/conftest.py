import pytest


@pytest.fixture(scope="module", autouse=True)
def describing() -> None:
    """Describe images in sandboxed processes, as a user's builds do."""
