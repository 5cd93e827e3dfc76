"""The certificate names the copies of two datasets, by kind, and what it could not compare."""

import csv
import dataclasses
import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from tiny_bundle import pack_tiny
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core.errors import UserError
from skindx.data.copies.describe import describe_bytes
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, write_manifest
from skindx.evaluation.leak import BOUND_FILE, leak, most_false
from skindx.models.fingerprints import Fingerprints


def picture(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    coarse = random.normal(128, 50, (9, 12, 3)).clip(0, 255).astype(np.uint8)
    return cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC)


def jpeg(pixels: np.ndarray, quality: int = 90) -> bytes:
    return cv2.imencode(".jpg", pixels, [1, quality])[1].tobytes()


def dataset(folder: Path, files: dict[str, bytes]) -> list[Record]:
    """Write a dataset of group -> bytes."""
    folder.mkdir()
    records = []
    for group, data in files.items():
        sha256, path = store_bytes(folder, data, ".jpg")
        records.append(Record(path, sha256, "0", 160, 120, "nevus", group, "train"))
    write_manifest(folder, records)
    return records


@pytest.fixture
def pair(tmp_path: Path) -> tuple[list[Record], list[Record]]:
    first = jpeg(picture(1))
    a = {f"a{seed}": jpeg(picture(seed)) for seed in range(5)} | {"lesion": jpeg(picture(9))}
    b = {
        "same": a["a0"],
        "pixels": first[:2] + b"\xff\xfe\x00\x06note" + first[2:],  # a comment in the JPEG
        "turned": jpeg(picture(2)[:, ::-1], 70),
        "stranger": jpeg(picture(20)),
        "lesion": jpeg(picture(21)),
    }
    return dataset(tmp_path / "a", a), dataset(tmp_path / "b", b)


def test_each_kind_is_counted_and_listed(
    pair: tuple[list[Record], list[Record]], tmp_path: Path
) -> None:
    a, b = pair
    certificate = leak(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    kinds = {(p.kind, p.a_sha256, p.b_sha256) for p in certificate.pairs}
    turned = "other encoding, size or turn"
    assert kinds == {
        ("same bytes", a[0].sha256, b[0].sha256),
        ("same pixels", a[1].sha256, b[1].sha256),
        (turned, a[2].sha256, b[2].sha256),
        ("same group", a[5].sha256, b[4].sha256),
    }
    assert (certificate.copied_a, certificate.copied_b, certificate.searched) == (3, 3, 5)
    back = leak(tmp_path / "b", tmp_path / "a", tmp_path / "back")
    assert {(p.kind, p.b_sha256, p.a_sha256) for p in back.pairs} == kinds
    with (tmp_path / "out/pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["kind"] for row in rows) == Counter(kind for kind, _, _ in kinds)
    assert rows[0]["a_path"] == a[0].path
    written = json.loads((tmp_path / "out/leak.json").read_text())
    assert written["copied_a"] == 3
    assert len(written["a"]["sha256"]) == 64
    assert written["versions"]["skindx"]
    page = (tmp_path / "out/leak.html").read_text()
    assert "3 images of 6 of" in page
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert leak(tmp_path / "a", tmp_path / "b", tmp_path / "out").copied_a == 3  # replaces it


def test_a_bundle_and_an_older_one(pair: tuple[list[Record], list[Record]], tmp_path: Path) -> None:
    a, _ = pair
    prints = Fingerprints.from_images(
        (record.sha256, describe_bytes((tmp_path / "a" / record.path).read_bytes())) for record in a
    )
    bundle = pack_tiny(tmp_path / "bundle", seen=a, fingerprints=prints).path
    older = pack_tiny(tmp_path / "older", seen=a).path
    certificate = leak(bundle, tmp_path / "b", tmp_path / "out")
    assert (certificate.a.what, certificate.copied_a, certificate.copied_b) == ("bundle", 3, 3)
    assert ["names of lesions" in note for note in certificate.not_compared] == [True]
    certificate = leak(tmp_path / "b", older, tmp_path / "old")
    assert (certificate.copied_a, certificate.searched, certificate.false_links) == (1, 0, 0)
    assert "no fingerprints" in certificate.not_compared[0]
    # Images that only measured a bundle did not make it.
    held = [a[0], *(dataclasses.replace(record, split="test") for record in a[1:])]
    measured = pack_tiny(tmp_path / "measured", seen=held).path
    assert leak(measured, tmp_path / "b", tmp_path / "held").a.images == 1
    with pytest.raises(UserError, match="both bundles"):
        leak(bundle, older, tmp_path / "none")
    with pytest.raises(UserError, match="neither a dataset"):
        leak(bundle, tmp_path, tmp_path / "none")
    with pytest.raises(UserError, match="the same dataset"):
        leak(tmp_path / "a", tmp_path / "a", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_verb_fails_only_if_asked(
    pair: tuple[list[Record], list[Record]], tmp_path: Path
) -> None:
    arguments = ["leak", *(str(tmp_path / name) for name in ("a", "b", "--out", "c"))]
    arguments[3] = "--out"
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "same pixels: 1 pairs" in done.output
    assert CliRunner().invoke(app, [*arguments, "--fail"]).exit_code == 1


def test_the_bound_grows_with_images_and_fingerprints() -> None:
    bound = json.loads(BOUND_FILE.read_text())
    once = most_false(100, 1000, bound)
    assert 0 < once < 5
    assert most_false(200, 1000, bound) == pytest.approx(2 * once)
    assert most_false(100, 2000, bound) == pytest.approx(2 * once)
    assert most_false(0, 1000, bound) == 0
