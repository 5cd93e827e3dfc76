"""A scan by a detector that stands alone, with a bundle that has none."""

from functools import partial
from pathlib import Path

import pytest
import spots
from shipped_folder import PLANTED, shipped
from spots import photo_with, save
from whole_photo import ThisProcess

from skindx.core.errors import UserError
from skindx.models.shipped_detector import PlantedRecall, open_shipped
from skindx.scan.outputs.scan_result import read_summary
from skindx.scan.scan_run import run_scan
from skindx.scan.tile_search import ScanSettings
from skindx.scan.work.scan_worker import ScanPlan, ScanTaskRunner, load_networks

HERE = partial(ThisProcess, make_runner=partial(ScanTaskRunner, load=spots.load))


def test_it_lists_each_lesion_once_and_promises_the_bound_alone(
    tmp_path: Path, whole_bundle: Path
) -> None:
    places = [(48.0, 48.0, 9.0), (200.0, 60.0, 14.0), (150.0, 250.0, 7.0)]
    photo = save(photo_with(places, 400, 300), tmp_path / "back.png")
    out, settings = tmp_path / "out", ScanSettings(least_side=4)
    with pytest.raises(UserError, match="add --detector models/lesion-detector"):
        run_scan([photo], whole_bundle, out, settings, make_workers=HERE)
    detector = shipped(tmp_path / "tiny")
    scanned = run_scan([photo], whole_bundle, out, settings, make_workers=HERE, detector=detector)
    found = sorted(
        ((one.box.x1 + one.box.x2) / 2, (one.box.y1 + one.box.y2) / 2)
        for one in scanned.photos[0].lesions
    )
    assert found == [pytest.approx((x, y), abs=2) for x, y, _ in sorted(places)]
    promise = PlantedRecall.model_validate(PLANTED).promise
    summary = read_summary(out)
    assert summary.planted is not None
    assert summary.planted.promise == promise
    assert summary.recall is None
    assert promise.partition(". ")[0] in (out / "scan.html").read_text()


def test_its_workers_load_it_and_refuse_another(tmp_path: Path, whole_bundle: Path) -> None:
    folder = shipped(tmp_path / "tiny")
    opened = open_shipped(folder)
    plan = ScanPlan(
        token="t",
        bundle=whole_bundle,
        digest=open_digest(whole_bundle),
        detector=folder,
        detector_digest=opened.digest,
        tile=64,
        photos=(),
        settings=ScanSettings(),
    )
    assert load_networks(plan, "cpu")[1].spec == opened.index.spec
    other = plan.model_copy(update={"detector_digest": "0" * 64})
    assert other.fingerprint != plan.fingerprint
    with pytest.raises(UserError, match="not the one that this scan began with"):
        load_networks(other, "cpu")


def open_digest(bundle: Path) -> str:
    from skindx.models.bundle.bundle import open_bundle

    return open_bundle(bundle).digest
