from collections.abc import Iterator
from pathlib import Path

import pytest
from exporting import export_dataset
from opening import Opener
from tiny_bundle import pack_tiny


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


@pytest.fixture(scope="session")
def exported(export_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle with both exports at fp32; do not change it."""
    from skindx.models.exports.bundle_export import export_bundle

    bundle = pack_tiny(tmp_path_factory.mktemp("exported") / "bundle").path
    for to in ("onnx", "openvino"):
        export_bundle(bundle, to, "fp32", export_data)
    return bundle
