"""The model card: the sections of Mitchell et al. 2019, from an evaluation with every part."""

import json
from pathlib import Path

from skindx.data.manifest import COUNTED, count_images, read_manifest
from skindx.models.bundle.bundle_index import TRAINING_COUNTS, BundleSpec
from skindx.models.bundle.model_card import model_card
from skindx.taxonomy import Taxonomy

SECTIONS = (
    "Model details",
    "Intended use",
    "Training data",
    "Thresholds, set on calibration images",
    "What could not be fitted",
    "Measured on the test images",
    "Ethical considerations",
    "Caveats and recommendations",
)


def _read(evaluation: Path) -> tuple[BundleSpec, Taxonomy, dict[str, object]]:
    settings = json.loads((evaluation / "predictions.json").read_text())
    spec = BundleSpec.model_validate_json((evaluation / "bundle/bundle.json").read_text())
    taxonomy = Taxonomy.model_validate({"name": "t", "title": "T", "classes": settings["classes"]})
    return spec, taxonomy, json.loads((evaluation / "metrics.json").read_text())


def test_a_card_has_every_section_and_names_what_a_person_writes(evaluation: Path) -> None:
    spec, taxonomy, metrics = _read(evaluation)
    counts = count_images(read_manifest(evaluation / "data"))
    counts["source"] = {"<b>|clinic\n": 3}
    facts = {field: counts[field] for field in COUNTED}
    spec = spec.model_copy(update={"provenance": {TRAINING_COUNTS: facts}})
    card = model_card(spec, taxonomy, metrics)
    titles = [line[3:] for line in card.splitlines() if line.startswith("## ")]
    assert titles == list(SECTIONS)
    assert "- skin type: I 75, III 75, VI 75, not known 75\n" in card
    assert "skin type II (0)" in card
    assert "&lt;b>\\|clinic" in card
    assert "<b>" not in card
    # Both errors, and by group with the unknown.
    assert "urgent images missed" in card
    assert "images of other classes urgent" in card
    assert "| skin type not known | 60 | " in card
    assert f"manifest with SHA-256 {metrics['origin']['manifest_sha256']}" in card  # type: ignore[index]
    assert card.count("*for a person to write*") == 3


def test_a_bundle_of_an_older_version_says_what_it_does_not_know(evaluation: Path) -> None:
    spec, taxonomy, _ = _read(evaluation)
    card = model_card(spec, taxonomy, None)
    assert "people, sources and licences: not recorded in this bundle" in card
    assert "Not yet: run `skindx evaluate`." in card
