"""A detector that stands alone is data, and promises no more than was measured."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped_folder import PLANTED, shipped

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.metrics import proportion_interval
from skindx.models.detector import MODEL_WEIGHTS, MODEL_YAML
from skindx.models.shipped_detector import INDEX, PlantedRecall, open_shipped
from skindx.texts.catalogue import percent


def test_it_loads_and_has_the_digest_of_its_index(tmp_path: Path) -> None:
    folder = shipped(tmp_path / "tiny")
    opened = open_shipped(folder)
    assert opened.digest == sha256_file(folder / INDEX)
    assert opened.load().spec.confidence == 0.3
    assert open_shipped(folder, opened.digest).index == opened.index
    with pytest.raises(UserError, match="not the one that this scan began with"):
        open_shipped(folder, "0" * 64)


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"has no {INDEX}"):
        open_shipped(tmp_path)


@pytest.mark.parametrize("name", [MODEL_YAML, MODEL_WEIGHTS])
def test_a_changed_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = shipped(tmp_path / "tiny")
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match="is not the file that"):
        open_shipped(folder)


def test_a_pickle_is_refused_and_not_opened(tmp_path: Path) -> None:
    """Its hash is right in the index: only the reader stands between it and this process."""
    folder, target = shipped(tmp_path / "tiny"), tmp_path / "owned"

    class Attack:
        def __reduce__(self) -> Any:
            return (Path.touch, (target,))

    (folder / MODEL_WEIGHTS).write_bytes(pickle.dumps(Attack()))
    with pytest.raises(UserError):
        open_shipped(shipped(folder)).load()
    assert not target.exists()


def test_a_network_file_runs_no_code(tmp_path: Path) -> None:
    folder, target = shipped(tmp_path / "tiny"), tmp_path / "owned"
    attack = f"activation: __import__('pathlib').Path({str(target)!r}).touch() or nn.SiLU()\n"
    with (folder / MODEL_YAML).open("a") as file:
        file.write(attack)
    with pytest.raises(UserError, match="activation"):
        open_shipped(shipped(folder)).load()
    assert not target.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../tiny"},
        {"format": 2},
        {"spec": {"size": 63}},
        {"planted": {**PLANTED, "found": 201}},
        {"files": {"../model.yaml": ""}},
        {"more": 1},
    ],
)
def test_a_forged_index_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        open_shipped(shipped(tmp_path / "tiny", **changes))


@given(st.integers(1, 400), st.data())
def test_the_promise_is_the_lower_bound_and_of_that_kind_of_photo_alone(
    lesions: int, data: st.DataObject
) -> None:
    found = data.draw(st.integers(0, lesions))
    planted = PlantedRecall(photos=10, lesions=lesions, found=found, least_px=20, most_px=200)
    low = proportion_interval(found / lesions, lesions).low
    least = percent(math.floor(100 * low) / 100)
    assert f"lists at least {least} of such lesions" in planted.promise
    assert f"found {found} of {lesions} dermoscopic lesions" in planted.promise
    assert "20 to 200 pixels" in planted.promise
    assert "No such figure is known for any other photo" in planted.promise
    assert low <= found / lesions
