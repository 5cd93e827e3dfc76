import random
from collections import Counter
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.taxonomy import SkinClass, Taxonomy
from skindx_bench.honesty.ood import fold_view, refold


def _records() -> list[Record]:
    rng = random.Random(0)
    return [
        Record(f"store/{n}", f"{n:064x}", "", 9, 9, rng.choice("ab"), f"g{n // 2}", "train")
        for n in range(200)
    ]


def test_test_splits_are_disjoint_and_make_up_the_dataset() -> None:
    records = _records()
    seen: Counter[str] = Counter()
    for fold in range(5):
        view = refold(records, fold, 5)
        assert [image.sha256 for image in view] == [record.sha256 for record in records]
        sides: dict[str, set[str]] = {}
        for image in view:
            sides.setdefault(image.group, set()).add(image.split)
        assert all(len(side) == 1 for side in sides.values())  # whole groups only
        counts = Counter(image.split for image in view)
        assert counts == {
            "train": pytest.approx(140, abs=6),
            "val": pytest.approx(20, abs=4),
            "test": pytest.approx(40, abs=4),
        }
        seen.update(image.sha256 for image in view if image.split == "test")
        assert view == refold(records, fold, 5)
    assert set(seen.values()) == {1}
    assert len(seen) == len(records)


def test_the_view_is_a_dataset_of_the_same_images(tmp_path: Path) -> None:
    records = []
    for n in range(12):
        sha256, path = store_bytes(tmp_path / "data", bytes([n]), ".png")
        records.append(Record(path, sha256, "", 9, 9, "a", sha256, "train"))
    write_manifest(tmp_path / "data", records)
    Taxonomy(name="t", title="T", classes=(SkinClass(key="a", name="a"),)).save(
        tmp_path / "data" / "taxonomy.yaml"
    )
    view = fold_view(tmp_path / "data", tmp_path / "views" / "1", 1, 3)
    for record in read_manifest(view):
        assert (view / record.path).read_bytes() == (tmp_path / "data" / record.path).read_bytes()
    assert Taxonomy.load(view / "taxonomy.yaml").keys == ("a",)


@pytest.mark.parametrize(("fold", "folds"), [(5, 5), (-1, 5), (0, 1), (0, 150)])
def test_a_fold_that_is_not_there(fold: int, folds: int) -> None:
    with pytest.raises(UserError, match="fold"):
        refold(_records(), fold, folds)
