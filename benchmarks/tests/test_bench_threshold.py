from pathlib import Path

import pytest
from tiny_dataset import class_vectors, jpeg, skin, tiny_dataset

from skindx.core.errors import UserError
from skindx.data.layout import store_bytes
from skindx.data.manifest import Issue, Record, read_manifest, write_issues, write_manifest
from skindx.metrics import Interval
from skindx.review.image_embeddings import stored_duplicates
from skindx_bench.data import threshold
from skindx_bench.data.threshold import Config, Sweep, SweepPoint, choose, lines, run, sweep

FEW = Config(
    radii=(4, 0, 24), hashes=(("perceptual", "difference"), ("average",)), seeds=2, draws=50
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with three near duplicates in its store, one of them under another label."""
    folder = tmp_path_factory.mktemp("sweep") / "data"
    records = tiny_dataset(folder, 40)
    train = [record for record in records if record.split == "train"][:3]
    issues = []
    for n, record in enumerate(train):
        pixels = skin(int(record.source_url))
        sha256, path = store_bytes(folder, jpeg(pixels, quality=60), ".jpg")
        label = record.label if n else "ab"[record.label == "a"]
        if n:
            issues.append(Issue(f"t{n}", sha256, label, "near-duplicate", "", record.sha256))
        else:  # what a build at a smaller radius would have kept
            twin = Record(path, sha256, "0" * 16, 120, 96, label, record.group, "train")
            records.append(twin)
    write_manifest(folder, records)
    write_issues(folder, issues)
    return folder


@pytest.fixture(scope="module")
def found(dataset: Path) -> Sweep:
    records = read_manifest(dataset)
    every = [*records, *stored_duplicates(dataset, records)]
    return sweep(dataset, class_vectors(every, noise=0.4), FEW)


def test_each_point_counts_what_a_build_would_keep(found: Sweep, dataset: Path) -> None:
    train = sum(record.split == "train" for record in read_manifest(dataset)) + 2
    assert found.train == train
    at = {(point.hashes, point.radius): point for point in found.points}
    assert list(at)[:2] == [("perceptual+difference", 0), ("perceptual+difference", 4)]
    strict = at["perceptual+difference", 4]
    # Two twins go, and both sides of the contradiction.
    assert (strict.duplicates, strict.contradicted, strict.kept) == (2, 2, train - 4)
    for point in found.points:
        assert point.kept + point.duplicates + point.contradicted == train
        assert len(point.random) == 2
        assert point.accuracy.low <= point.accuracy.value <= point.accuracy.high
        loss = found.accuracy.value - point.accuracy.value
        assert point.loss.value == pytest.approx(loss)
    for name in {point.hashes for point in found.points}:
        kept = [point.kept for point in found.points if point.hashes == name]
        assert kept == sorted(kept, reverse=True)


def test_the_test_images_are_left_alone(found: Sweep, dataset: Path) -> None:
    assert found.test == sum(record.split == "test" for record in read_manifest(dataset))


def test_the_same_again(found: Sweep, dataset: Path) -> None:
    records = read_manifest(dataset)
    every = [*records, *stored_duplicates(dataset, records)]
    assert sweep(dataset, class_vectors(every, noise=0.4), FEW) == found


def point(kept: int, accuracy: float, loss: float) -> SweepPoint:
    def exact(value: float) -> Interval:
        return Interval(value, value - 0.02, value + 0.02)

    return SweepPoint("average", 4, kept, 1, 100 - 1 - kept, exact(accuracy), exact(loss), (0.9,))


def test_the_smallest_set_within_the_loss_is_chosen() -> None:
    points = [point(90, 0.80, 0.0), point(50, 0.795, 0.005), point(20, 0.6, 0.2)]
    assert choose(points, 0.01) == points[1]
    assert choose(points, 0.0) == points[0]
    assert choose(points, 0.5) == points[2]
    assert choose(points[2:], 0.01) is None
    chosen = Sweep(100, 10, points[0].accuracy, tuple(points), points[1], 0.01, "m")
    reported = " ".join(lines(chosen))
    assert "average within 4 bits, 50 of 100 images" in reported
    assert "cannot promise it" in reported
    assert "taken at random can do as well" in reported
    assert "no longer finds duplicates" in reported
    none = Sweep(100, 10, points[0].accuracy, tuple(points[2:]), None, 0.01, "m")
    assert "keep all images" in " ".join(lines(none))


def test_the_figures_are_those_of_the_curve(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, found: Sweep
) -> None:
    monkeypatch.setattr(threshold, "read_embeddings", lambda path: path)
    monkeypatch.setattr(threshold, "sweep", lambda *_: found)
    result = run(FEW.model_copy(update={"dataset": dataset}))
    assert len(result.models) == len(found.points)
    assert result.figures["accuracy"].value == found.accuracy.value
    assert str(found.train) in result.notes[0]


def test_what_cannot_be_swept_is_reported(dataset: Path, tmp_path: Path) -> None:
    records = [r for r in read_manifest(dataset) if r.split == "train"]
    write_manifest(tmp_path, records)
    write_issues(tmp_path, [])
    with pytest.raises(UserError, match="in train and in test"):
        sweep(tmp_path, class_vectors(records), FEW)
    with pytest.raises(UserError, match="0 to 32 bits"):
        Config.load(None, ["radii=[40]"])
    with pytest.raises(UserError, match="average"):
        Config.load(None, ["hashes=[[avrage]]"])
