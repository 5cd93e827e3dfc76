import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_bundle import measured, pack_tiny, pack_whole

from skindx.core.errors import UserError
from skindx.data.blocklist import Blocked
from skindx.data.manifest import Record
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import (
    Forgotten,
    add_metrics,
    add_provenance,
    clear_leftovers,
    forget,
    record_removal,
    uses,
    would_forget,
)
from skindx.models.bundle.bundle_index import (
    CARD,
    FOLD_TRAINED_IMAGES,
    MANIFEST_SHA256,
    OLD_KEYS,
    REMOVED_MAYBE_TRAINED_ON,
    REMOVED_TRAINED_ON,
    TRAINING_IMAGES,
)
from skindx.models.embedding_index import ROWS, TENSORS
from skindx.models.ood.stored_check import CHECK, FEATURES
from skindx.models.ood.stored_check import ROWS as OOD_ROWS

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
    add_provenance(path, {MANIFEST_SHA256: MANIFEST, TRAINING_IMAGES: 9})
    add_metrics(path, measured(0.5))
    return path


def test_a_bundle_says_what_it_did_with_an_image(bundle: Path) -> None:
    assert uses(bundle, ENTRIES) == {TRAIN: "train", TEST: "test", ELSEWHERE: None, UNKNOWN: None}


def test_a_bundle_that_lists_its_images_leaves_no_doubt(tmp_path: Path) -> None:
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
        REMOVED_TRAINED_ON: [TRAIN],
        REMOVED_MAYBE_TRAINED_ON: [ELSEWHERE, UNKNOWN],
    }
    assert after.metrics() == before.metrics()
    same = {n: h for n, h in before.spec.files.items() if n != CARD}
    assert same == {n: h for n, h in after.spec.files.items() if n != CARD}
    card = (bundle / CARD).read_text()
    assert f"- removed from the dataset after training: {TRAIN}\n" in card
    assert "top-1" in card
    stamp = (bundle / CARD).stat().st_mtime_ns
    record_removal(bundle, uses(bundle, ENTRIES))
    assert (bundle / CARD).stat().st_mtime_ns == stamp
    # The dataset was built again since: what the bundle once wrote down still counts.
    assert uses(bundle, [Blocked(TRAIN)])[TRAIN] == "train"
    record_removal(bundle, {"0" * 64: "train"})
    assert open_bundle(bundle).spec.provenance[REMOVED_TRAINED_ON] == ["0" * 64, TRAIN]


def test_the_keys_of_version_0_1_are_read_and_replaced(tmp_path: Path) -> None:
    path = pack_tiny(tmp_path / "bundle").path
    old = OLD_KEYS[REMOVED_TRAINED_ON]
    add_provenance(path, {OLD_KEYS[MANIFEST_SHA256]: MANIFEST, old: ["0" * 64]})
    assert uses(path, [*ENTRIES[:2], Blocked("0" * 64)]) == {
        TRAIN: "train",
        TEST: "test",
        "0" * 64: "train",
    }
    record_removal(path, uses(path, ENTRIES[:1]))
    provenance = open_bundle(path).spec.provenance
    assert provenance[REMOVED_TRAINED_ON] == ["0" * 64, TRAIN]
    assert old not in provenance


def test_what_is_no_bundle_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a bundle"):
        uses(tmp_path, ENTRIES)


def test_folds_learn_from_validation_images_too(bundle: Path) -> None:
    entries = [Blocked(TRAIN, manifests={MANIFEST: "val"})]
    assert uses(bundle, entries) == {TRAIN: "val"}
    add_provenance(bundle, {FOLD_TRAINED_IMAGES: 3})
    assert uses(bundle, entries) == {TRAIN: "train"}
    record_removal(bundle, uses(bundle, entries))
    assert open_bundle(bundle).spec.provenance[REMOVED_TRAINED_ON] == [TRAIN]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = pack_whole(tmp_path / "bundle").path
    add_metrics(path, measured(0.5))
    return path


def shas(path: Path) -> list[str]:
    gallery = open_bundle(path).gallery()
    assert gallery is not None
    return [row.sha256 for row in gallery.rows]


def test_a_gallery_loses_an_image_and_what_shows_the_same(whole: Path) -> None:
    before, gallery = open_bundle(whole), open_bundle(whole).gallery()
    assert gallery is not None
    gone = f"{6:064x}"
    needle = gallery.thumbnail(6)[-200:]
    embedding = gallery.embeddings_ND[6].numpy().tobytes()
    assert needle in (whole / TENSORS).read_bytes()
    assert would_forget(whole, [gone]).gallery == 2
    assert forget(whole, [gone]).gallery == 2  # the other one is of the same lesion
    assert shas(whole) == [f"{n:064x}" for n in range(40) if n // 2 != 3]
    after = open_bundle(whole)
    assert after.spec.gallery is not None
    assert (after.spec.gallery.pictures, after.spec.gallery.shown) == (38, 19)
    for file in (path for path in whole.rglob("*") if path.is_file()):
        data = file.read_bytes()
        assert needle not in data
        assert embedding not in data
        assert gone.encode() not in data
    assert after.metrics() == before.metrics()
    changed = {CARD, ROWS, TENSORS, CHECK, FEATURES, OOD_ROWS}
    assert before.spec.files.keys() == after.spec.files.keys()
    assert changed >= {n for n, h in before.spec.files.items() if after.spec.files[n] != h}
    stamp = (whole / CARD).stat().st_mtime_ns
    assert forget(whole, [gone]) == Forgotten()
    assert (whole / CARD).stat().st_mtime_ns == stamp


def test_all_of_a_gallery_may_go(whole: Path) -> None:
    assert forget(whole, shas(whole)).gallery == 40
    assert shas(whole) == []
    gallery = open_bundle(whole).gallery()
    assert gallery is not None
    assert gallery.nearest(np.zeros(gallery.embeddings_ND.shape[1], np.float32), 3) == []


def test_an_older_bundle_has_nothing_to_lose(bundle: Path) -> None:
    assert would_forget(bundle, [TRAIN]) == forget(bundle, [TRAIN]) == Forgotten()


KILLED = """
import os, signal, sys
from pathlib import Path
from skindx.models.bundle.bundle_changes import clear_leftovers, forget
path, calls = Path(sys.argv[1]), int(sys.argv[2])
def counted(real):
    def call(*given, **named):
        global calls
        calls -= 1
        if calls < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **named)
    return call
import skindx.models.bundle.bundle, shutil
Path.replace = counted(Path.replace)
shutil.rmtree = counted(shutil.rmtree)
clear_leftovers(path)
forget(path, ["%064x" % 6])
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_anywhere_it_is_finished_by_asking_again(whole: Path, tmp_path: Path) -> None:
    wanted = [f"{n:064x}" for n in range(40) if n // 2 != 3]
    saved = tmp_path / "saved"
    shutil.copytree(whole, saved)
    for calls in range(20):
        shutil.rmtree(whole)
        shutil.copytree(saved, whole)
        command = [sys.executable, "-c", KILLED, str(whole), str(calls)]
        code = subprocess.run(command, check=False).returncode
        clear_leftovers(whole)
        forget(whole, [f"{6:064x}"])
        assert shas(whole) == wanted
        assert {path.name for path in tmp_path.iterdir()} == {"bundle", "saved"}
        if code == 0:
            break
    assert code == 0
    assert calls > 3


def test_what_a_kill_left_goes_and_a_lost_bundle_comes_back(whole: Path) -> None:
    old, new = (whole.with_name(f"bundle.tmp-ab12cd_9{end}") for end in (".old", ""))
    whole.rename(old)
    new.mkdir()
    mine = whole.with_name("bundle.tmp-not made by a kill")
    mine.mkdir()
    clear_leftovers(whole)
    assert len(shas(whole)) == 40
    assert {path.name for path in whole.parent.iterdir()} == {"bundle", mine.name}
    shutil.copytree(whole, old)
    clear_leftovers(whole)
    assert not old.exists()
    clear_leftovers(whole.parent / "nowhere" / "bundle")


def test_the_check_forgets_removed_images_of_both_splits(whole: Path) -> None:
    """It is then the check that the images which are left would have given."""
    before = open_bundle(whole)
    images, spec = before.ood_images(), before.spec.ood
    assert images is not None
    assert spec is not None
    gone = [f"{6:064x}", f"{101:064x}"]  # one for training, with its twin; one for calibration
    left = images.without(gone)
    assert len(left) == len(images) - 3
    vector = images.features.pooled_MND[0][6].astype(np.float16).tobytes()
    assert vector in (whole / FEATURES).read_bytes()
    assert would_forget(whole, gone) == Forgotten(gallery=2, ood=3, refitted=True)
    forget(whole, gone)
    after = open_bundle(whole)
    check, expected = after.ood(), left.fit(spec.detectors)
    assert check is not None
    assert expected is not None
    assert after.spec.ood is not None
    assert (after.spec.ood.images, check.images) == (39, 39)
    np.testing.assert_allclose(check.scores_NK, expected.scores_NK, rtol=1e-5)
    for file in (path for path in whole.rglob("*") if path.is_file()):
        assert vector not in file.read_bytes()
    # Of too few calibration images no rate can be promised: the check goes, the bundle stays.
    many = [f"{n:064x}" for n in range(102, 125)]
    expected_loss = would_forget(whole, many)
    assert (expected_loss.ood, expected_loss.refitted) == (len(many), False)
    forget(whole, many)
    assert open_bundle(whole).ood() is None
    assert not (whole / "ood").exists()
