"""An image that was changed behind an unchanged manifest is no image of the dataset."""

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx.data.layout import store_bytes
from skindx.data.loader.source import Files, InMemory
from skindx.data.manifest import Record, check_sample


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, list[Record]]:
    records = []
    for number in range(3):
        pixels = np.full((300 + number, 400, 3), 40 * number, np.uint8)
        sha256, path = store_bytes(tmp_path, cv2.imencode(".jpg", pixels)[1].tobytes(), ".jpg")
        records.append(Record(path, sha256, "0" * 16, 400, 300 + number, "a", sha256, "train"))
    return tmp_path, records


def test_a_changed_image_is_noticed_before_the_work(stored: tuple[Path, list[Record]]) -> None:
    folder, records = stored
    check_sample(folder, records)
    first, second = (folder / record.path for record in records[:2])
    second.chmod(0o644)
    shutil.copyfile(first, second)
    with pytest.raises(UserError, match=rf"{second.name} was changed"):
        check_sample(folder, records)
    second.unlink()
    with pytest.raises(UserError, match=f"{second.name} cannot be read"):
        check_sample(folder, records)


@pytest.mark.parametrize("source", [Files, InMemory])
def test_an_image_of_another_size_ends_the_reading(
    stored: tuple[Path, list[Record]], source: type[Files]
) -> None:
    folder, records = stored
    for number, record in enumerate(records):
        images = source(folder, records)
        assert images.image(number).shape == (record.height, 400, 3)
        for side in (20, 80, 140, 250, 290):
            assert min(images.image(number, (side, side)).shape[:2]) >= side
    turned = source(folder, [replace(record, width=300, height=400) for record in records])
    for at_least in (None, (80, 80)):
        with pytest.raises(UserError, match=r"says 300 x 400, so the file was changed"):
            turned.image(0, at_least)
