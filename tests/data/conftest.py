"""Fixtures of several files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from described_once import described_here
from published import settings
from small_dataset import SmallDataset, free_dataset

from skindx.data.publish import assemble, croissant
from skindx.data.publish.assemble import publish
from skindx.data.publish.publish_formats import FORMATS, Format


@pytest.fixture(scope="module", autouse=True)
def describing() -> Iterator[None]:
    with described_here():
        yield


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out plots and mlcroissant, most of a small publish, where a test looks elsewhere."""
    monkeypatch.setattr(assemble, "write_plots", lambda *_: [])
    monkeypatch.setattr(croissant, "_validate", lambda *_: None)


@pytest.fixture(scope="session")
def free(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallDataset, dict[Format, Path]]:
    """Return a dataset that is free throughout, published in every format; do not change them."""
    folder = tmp_path_factory.mktemp("free")
    small = free_dataset(folder / "data")
    small.write()
    for form in FORMATS:
        done = publish(small.folder, folder / form, settings(form))
        assert (done.kept, done.published, done.withheld, done.reencoded) == (16, 16, {}, 0)
    return small, {form: folder / form for form in FORMATS}
