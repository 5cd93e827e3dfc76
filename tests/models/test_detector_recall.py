"""Recall by size: counted by hand, and kept in a bundle that older ones lack."""

import math
from pathlib import Path

import pytest
from painted_bodies import WHEN
from tiny_bundle import pack_tiny

from skindx.data.box import Box
from skindx.data.origin import ImageOrigin
from skindx.diagnosis.bundle_statement import bundle_version, source_of
from skindx.models.bundle.bundle import open_bundle, write_index
from skindx.models.bundle.bundle_changes import put_folder
from skindx.models.bundle.bundle_index import (
    DETECTORS_MANIFEST,
    MANIFEST_SHA256,
    origin_beside,
    origin_of_detector,
)
from skindx.models.bundle.model_card import model_card
from skindx.models.detector import EDGES_PX, SizedTruth, recall_by_size
from skindx.scan.outputs.scan_result import missed_sentence
from skindx.scan.scan_run import result_of


def box(x: float, side: float, score: float | None = None) -> Box:
    return Box(x, 0, x + side, side, "lesion", "", score)


def test_found_lesions_are_counted_by_the_size_that_the_detector_sees() -> None:
    images = [
        # Shrunk to a half: sides of 15, 30 and 4 pixels; the last is too small to count.
        SizedTruth([box(0, 30), box(100, 60), box(300, 8)], [box(2, 30), box(300, 8)], 0.5),
        # One box stands for one lesion; one that overlaps by a third is no find.
        SizedTruth([box(0, 30), box(10, 30)], [box(5, 30), box(200, 30)], 1.0),
        SizedTruth([], [box(0, 50)], 1.0),
    ]
    found = recall_by_size(images, 0.25)
    assert found is not None
    assert (found.images, found.confidence) == (3, 0.25)
    assert [(band.found, band.lesions) for band in found.bands] == [
        (1, 1),
        (1, 3),
        (0, 0),
        (0, 0),
        (0, 0),
    ]
    assert [band.least_px for band in found.bands] == list(EDGES_PX)
    assert found.bands[0].most_px == found.bands[1].least_px
    assert found.bands[-1].most_px is None
    # All of one lesion were found: the exact interval still is wide (Clopper and Pearson).
    assert found.bands[0].recall.low == pytest.approx(0.025)
    assert found.bands[0].recall.high == 1
    assert math.isnan(found.bands[2].recall.value)


def test_without_a_lesion_nothing_is_measured() -> None:
    assert recall_by_size([], 0.25) is None
    assert recall_by_size([SizedTruth([box(0, 5)], [], 1.0)], 0.25) is None


def test_a_bundle_keeps_it_and_its_version_stays(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "bundle", detector=True)
    assert bundle.spec.detector_recall is None
    assert "was not measured" in missed_sentence(None, [20.0], ImageOrigin())
    recall = recall_by_size([SizedTruth([box(0, 30)], [box(0, 30)], 1.0)], 0.25)
    write_index(bundle.path, bundle.spec.model_copy(update={"detector_recall": recall}))
    kept = open_bundle(bundle.path)
    assert kept.spec.detector_recall == recall
    assert kept.spec.detector_recall is not None
    bands = kept.spec.detector_recall.bands
    assert bands[-1].most_px is None
    said = missed_sentence(bands, [30.0], ImageOrigin(painted="none", modality="clinical"))
    assert said.startswith("The detector missed")
    # What was measured decides no answer.
    assert bundle_version(kept) == bundle_version(bundle)


ALL, SOME, NONE = (ImageOrigin(painted=share) for share in ("all", "some", "none"))


def test_a_detector_of_paintings_is_one_in_every_bundle(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "bundle", detector=True)
    assert bundle.spec.detector_images == ImageOrigin()  # as its detector's run says
    export = tmp_path / "export"
    export.mkdir()
    (export / "model.onnx").write_bytes(b"x")
    index = {"images": NONE, "detector_images": ALL}
    write_index(bundle.path, bundle.spec.model_copy(update=index))
    taken = open_bundle(bundle.path)
    assert taken.images.warning == ""
    assert taken.warning.startswith("The detector learned from synthetic images")
    assert source_of(taken, "eager").limits.startswith(taken.warning)
    assert bundle_version(taken) != bundle_version(bundle)  # of other images
    assert result_of(taken, [], WHEN).measured_on == ALL
    assert f"**{taken.warning}**" in model_card(taken.spec, taken.taxonomy, None)
    put_folder(taken.path, "exports/onnx", export)  # as an export does
    assert open_bundle(taken.path).spec.detector_images == ALL
    assert open_bundle(pack_tiny(tmp_path / "bare").path).warning == ""


def test_an_older_bundle_says_what_it_recorded(tmp_path: Path) -> None:
    spec = pack_tiny(tmp_path / "bundle", detector=True).spec
    older = spec.model_copy(update={"detector_images": None, "images": NONE})
    for provenance, origin in (
        ({}, NONE),
        ({MANIFEST_SHA256: "a", DETECTORS_MANIFEST: "a"}, NONE),
        ({MANIFEST_SHA256: "a", DETECTORS_MANIFEST: "b"}, ImageOrigin()),
        ({DETECTORS_MANIFEST: "b"}, ImageOrigin()),
    ):
        assert origin_of_detector(older.model_copy(update={"provenance": provenance})) == origin
    demo = older.model_copy(update={"images": None, "name": "skindx-demo"})
    assert origin_of_detector(demo) == ALL
    assert origin_of_detector(older.model_copy(update={"images": None})) == ImageOrigin()


def test_weights_bring_along_what_they_learned_from(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "run/bundle", detector=True)
    write_index(bundle.path, bundle.spec.model_copy(update={"images": ALL}))
    (tmp_path / "run/members/a").mkdir(parents=True)
    for file in ("bundle/members/a/model.safetensors", "members/a/model.safetensors"):
        assert origin_beside(tmp_path / "run" / file) == ALL
    assert origin_beside(tmp_path / "elsewhere.safetensors") == ImageOrigin()
    modality = ImageOrigin(painted="none", modality="clinical")
    assert modality.joined(ALL) == ImageOrigin(painted="some", modality="clinical")
    for mine, start, together in (
        (NONE, ImageOrigin(), NONE),
        (ImageOrigin(), NONE, ImageOrigin()),
        (ImageOrigin(), ALL, SOME),
        (ALL, NONE, SOME),
        (ALL, ALL, ALL),
        (NONE, SOME, SOME),
    ):
        assert mine.joined(start) == together
