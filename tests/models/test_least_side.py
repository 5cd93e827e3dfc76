"""How small a photo a bundle may judge."""

from pathlib import Path

import pytest
from tiny_bundle import pack_tiny

from skindx.data.manifest import Record
from skindx.models.bundle.bundle_changes import add_provenance
from skindx.models.bundle.bundle_index import (
    LEAST_SIDE_PX,
    OLD_KEYS,
    BundleSpec,
    calibration_side,
    least_side,
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> BundleSpec:
    return pack_tiny(tmp_path_factory.mktemp("least") / "bundle").spec


def member_sizes(spec: BundleSpec, *sizes: int) -> BundleSpec:
    members = []
    for member, size in zip(spec.members, sizes, strict=True):
        preprocess = member.classifier.preprocess.model_copy(update={"size": size})
        classifier = member.classifier.model_copy(update={"preprocess": preprocess})
        members.append(member.model_copy(update={"classifier": classifier}))
    return spec.model_copy(update={"members": tuple(members)})


def test_the_smallest_member_decides(spec: BundleSpec) -> None:
    # 160 px out of the middle 90 % of the photo; photos of 180 px were what it was checked on.
    assert least_side(member_sizes(spec, 160, 208)) == 178
    assert least_side(member_sizes(spec, 384, 224)) == 249


@pytest.mark.parametrize(
    ("checked", "least"), [(180, 180), (400, 249), (None, 249), (True, 249), (-4, 249), ("9", 249)]
)
def test_smaller_calibration_images_lower_it(spec: BundleSpec, checked: object, least: int) -> None:
    for key in (LEAST_SIDE_PX, OLD_KEYS[LEAST_SIDE_PX]):
        provenance = {} if checked is None else {key: checked}
        large = member_sizes(spec, 384, 224).model_copy(update={"provenance": provenance})
        assert least_side(large) == least


def test_few_small_calibration_images_do_not(tmp_path: Path) -> None:
    def record(n: int, side: int, split: str = "calibration") -> Record:
        return Record(f"{n}", f"{n:064}", "0" * 16, side, 300, "a", f"g{n}", split)  # type: ignore[arg-type]

    records = [record(n, 200) for n in range(97)] + [record(n, 90) for n in range(97, 100)]
    assert calibration_side([*records, record(100, 10, "train")]) == {LEAST_SIDE_PX: 200}
    assert calibration_side(records[-9:]) == {LEAST_SIDE_PX: 90}
    assert calibration_side([record(0, 10, "train")]) == {}
    bundle = pack_tiny(tmp_path / "bundle")
    add_provenance(bundle.path, calibration_side(records))
    card = (bundle.path / "MODEL_CARD.md").read_text()
    assert "shorter side that 95 % of the calibration images reach (px): 200" in card
