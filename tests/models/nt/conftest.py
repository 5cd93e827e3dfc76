from collections.abc import Iterator
from pathlib import Path

import pytest

from skindx.models.nt_product import bound


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and nothing that this process has read before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with bound(None):
        yield tmp_path / "cache" / "skindx" / "gemm"
