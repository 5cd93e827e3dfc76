from pathlib import Path

import pytest
from tiny_bundle import measured, pack_tiny

from skindx.data.manifest import Record
from skindx.data.removal.blocklist import Blocked
from skindx.errors import UserError
from skindx.models.bundle import CARD, add_metrics, add_provenance, open_bundle
from skindx.models.removal import FOLDED, LEARNED, MANIFEST_KEY, PERHAPS, record_removal, uses

MANIFEST = "c" * 64
TRAIN, TEST, ELSEWHERE, UNKNOWN = ("1" * 64, "2" * 64, "3" * 64, "4" * 64)
ENTRIES = [
    Blocked(TRAIN, manifests={"d" * 64: "train", MANIFEST: "train"}),
    Blocked(TEST, manifests={MANIFEST: "test"}),
    Blocked(ELSEWHERE, manifests={"d" * 64: "train"}),
    Blocked(UNKNOWN),
]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = pack_tiny(tmp_path / "bundle").path
    add_provenance(path, {MANIFEST_KEY: MANIFEST, "training pictures": 9})
    add_metrics(path, measured(0.5))
    return path


def test_a_bundle_says_what_it_did_with_a_picture(bundle: Path) -> None:
    assert uses(bundle, ENTRIES) == {TRAIN: "train", TEST: "test", ELSEWHERE: None, UNKNOWN: None}


def test_a_bundle_that_lists_its_pictures_leaves_no_doubt(tmp_path: Path) -> None:
    records = [
        Record("p", TRAIN, "", 9, 9, "a", "g", "train"),
        Record("q", ELSEWHERE, "", 9, 9, "a", "h", "val"),
    ]
    path = pack_tiny(tmp_path / "bundle", seen=records).path
    assert open_bundle(path).seen() == {TRAIN: "train", ELSEWHERE: "val"}
    assert uses(path, ENTRIES) == {TRAIN: "train", TEST: "", ELSEWHERE: "val", UNKNOWN: ""}
    add_metrics(path, measured(0.5))
    assert open_bundle(path).seen() == {TRAIN: "train", ELSEWHERE: "val"}


def test_the_card_says_it_once_and_nothing_else_changes(bundle: Path) -> None:
    before = open_bundle(bundle)
    record_removal(bundle, uses(bundle, ENTRIES))
    after = open_bundle(bundle)
    assert after.spec.provenance == {
        **before.spec.provenance,
        LEARNED: [TRAIN],
        PERHAPS: [ELSEWHERE, UNKNOWN],
    }
    assert after.metrics() == before.metrics()
    same = {n: h for n, h in before.spec.files.items() if n != CARD}
    assert same == {n: h for n, h in after.spec.files.items() if n != CARD}
    card = (bundle / CARD).read_text()
    assert f"- taken down since, but learned from: {TRAIN}\n" in card
    assert "top-1" in card
    stamp = (bundle / CARD).stat().st_mtime_ns
    record_removal(bundle, uses(bundle, ENTRIES))
    assert (bundle / CARD).stat().st_mtime_ns == stamp
    # The dataset was built again since: what the bundle once wrote down still counts.
    assert uses(bundle, [Blocked(TRAIN)])[TRAIN] == "train"
    record_removal(bundle, {"0" * 64: "train"})
    assert open_bundle(bundle).spec.provenance[LEARNED] == ["0" * 64, TRAIN]


def test_what_is_no_bundle_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no bundle"):
        uses(tmp_path, ENTRIES)


def test_folds_learn_from_validation_pictures_too(bundle: Path) -> None:
    entries = [Blocked(TRAIN, manifests={MANIFEST: "val"})]
    assert uses(bundle, entries) == {TRAIN: "val"}
    add_provenance(bundle, {FOLDED: 3})
    assert uses(bundle, entries) == {TRAIN: "train"}
    record_removal(bundle, uses(bundle, entries))
    assert open_bundle(bundle).spec.provenance[LEARNED] == [TRAIN]
