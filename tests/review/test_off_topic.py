"""How unusual images are by their embeddings: robust against those that do not belong."""

from pathlib import Path

import numpy as np
import pytest
from command_line import Skindx
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_dataset import tiny_dataset

from skindx.core.errors import UserError
from skindx.data.decisions import Flag, read_flags, write_flags
from skindx.data.embedding_files import (
    EMBEDDINGS,
    Embeddings,
    write_embeddings,
)
from skindx.models.ood.ood_detectors import unusual_scores
from skindx.review.image_embeddings import THRESHOLD, off_topic


def usual(rng: np.random.Generator, n: int, dimensions: int = 32) -> np.ndarray:
    """Return vectors around two centres, as two classes are, with some directions wider."""
    spread = np.linspace(0.3, 0.02, dimensions)
    centres = np.zeros((2, dimensions))
    centres[:, 0], centres[1, 1] = 1, 0.4
    return (centres[rng.integers(0, 2, n)] + rng.normal(0, spread, (n, dimensions))).astype(
        np.float32
    )


@pytest.mark.parametrize("alike", [0.3, 0.01])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.2])
def test_a_batch_that_does_not_belong_stands_out_however_alike_it_is(
    share: float, alike: float
) -> None:
    rng = np.random.default_rng(1)
    good = usual(rng, 600)
    strange = np.zeros((int(600 * share), 32))
    strange[:, 20:] = 0.5
    strange = (strange + rng.normal(0, alike, strange.shape)).astype(np.float32)
    scores = unusual_scores(np.concatenate([good, strange]))
    assert scores[600:].min() > scores[:600].max()
    assert scores[600:].min() > THRESHOLD


@given(st.integers(0, 1000))
@example(929)  # rounding in 32 bits chose other images at the border of the share
def test_the_order_of_images_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = usual(rng, 200, 12)
    order = rng.permutation(200)
    np.testing.assert_allclose(
        unusual_scores(vectors[order]), unusual_scores(vectors)[order], atol=0.02
    )


def test_the_median_image_scores_nothing_and_few_usual_ones_are_high() -> None:
    scores = unusual_scores(usual(np.random.default_rng(2), 2000))
    assert np.median(scores) == pytest.approx(0, abs=1e-6)
    assert (scores > THRESHOLD).mean() < 0.01


def planted(dataset: Path, count: int = 60) -> str:
    records = tiny_dataset(dataset, count)
    vectors = usual(np.random.default_rng(3), count, 16)
    vectors[7] = 0
    vectors[7, 9] = 4
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    shas = tuple(record.sha256 for record in records)
    write_embeddings(dataset / EMBEDDINGS, Embeddings(shas, vectors, "a net, 01"))
    return shas[7]


def test_the_verb_flags(skindx: Skindx, tmp_path: Path) -> None:
    odd = planted(tmp_path)
    write_flags(tmp_path, [Flag(odd, "face", 0.5)], ["face"])
    code, out, err = skindx("audit", str(tmp_path), "--off-topic")
    assert code == 0, err
    assert "of 60 images are unusual" in out
    assert {flag.reason for flag in read_flags(tmp_path) if flag.sha256 == odd} == {
        "face",
        "off-topic",
    }
    code, out, _ = skindx("audit", str(tmp_path), "--off-topic", "--threshold", "1000")
    assert code == 0
    assert {flag.reason for flag in read_flags(tmp_path)} == {"face"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--off-topic", "--labels"), "cannot be given together"),
        (("--threshold", "3"), "add --off-topic"),
        (("--embeddings", "e.parquet"), "works only with --labels or --off-topic"),
        (("--off-topic", "--threshold", "0"), "must be above 0"),
        (("--off-topic",), "does not exist"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    skindx: Skindx, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    tiny_dataset(tmp_path, 4)
    code, _, err = skindx("audit", str(tmp_path), *options)
    assert code == 2
    assert said in err


def test_too_few_or_too_equal_images_say_so(tmp_path: Path) -> None:
    records = tiny_dataset(tmp_path, 4)
    shas = tuple(record.sha256 for record in records)
    few = Embeddings(shas, np.eye(4, dtype=np.float32), "m")
    with pytest.raises(UserError, match="has 4 images"):
        off_topic(tmp_path, few, 5)
    larger = tmp_path / "larger"
    tiny_dataset(larger, 40)
    with pytest.raises(UserError, match="only 4 of the 40 images"):
        off_topic(larger, few, 5)
    with pytest.raises(UserError, match="have the same embedding"):
        unusual_scores(np.ones((100, 8), np.float32))
