"""Which lesion comes first, and how much one differs from the person's others."""

import dataclasses

import numpy as np
import pytest
from found_lesions import alike, lesion, photo
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.box import Box
from skindx.scan.scanned_lesions import (
    LEAST_LESIONS,
    STANDS_OUT,
    RankedLesion,
    ScannedLesion,
    diameter,
    differences,
    rank,
)

SEEDS = st.integers(0, 10_000)


def sizes(lesions: list[ScannedLesion]) -> np.ndarray:
    return np.array([diameter(found) for found in lesions])


def boxes(ranked: tuple[RankedLesion, ...]) -> list[Box]:
    return [found.lesion.box for found in ranked]


def scaled(found: ScannedLesion, factor: float) -> ScannedLesion:
    box = found.box
    corners = {name: factor * getattr(box, name) for name in ("x1", "y1", "x2", "y2")}
    return dataclasses.replace(found, box=dataclasses.replace(box, **corners))


def test_the_threshold_comes_before_the_risk_and_the_risk_before_the_difference() -> None:
    rng = np.random.default_rng(0)
    ordinary = alike(rng, 8)
    odd = lesion(900, 900, 300, embedding=(0, 0, 1, 1, 0, 0), colour=(-50, 30, -20))
    riskier = lesion(50, 50, 40, risk=0.3, embedding=(1, 0, 0, 0, 0, 0))
    # A threshold of another skin type may call a smaller risk urgent.
    urgent = lesion(500, 50, 40, risk=0.2, urgent=True, embedding=(1, 0, 0, 0, 0, 0))
    first = boxes(rank([photo([*ordinary, odd, riskier, urgent])]))[:3]
    assert first == [urgent.box, riskier.box, odd.box]


@given(SEEDS, st.randoms(use_true_random=False))
def test_the_order_of_the_input_decides_nothing(seed: int, random: object) -> None:
    rng = np.random.default_rng(seed)
    lesions = alike(rng, int(rng.integers(0, 12)))
    lesions = [dataclasses.replace(one, urgent_risk=float(rng.uniform())) for one in lesions]
    lesions += [dataclasses.replace(one, urgent_risk=0.5) for one in lesions[:3]]
    shuffled = list(lesions)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    ranked, other = rank([photo(lesions)]), rank([photo(shuffled)])
    assert boxes(ranked) == boxes(other)
    assert [one.difference for one in ranked] == [one.difference for one in other]
    assert [one.rank for one in ranked] == list(range(1, len(lesions) + 1))


@given(SEEDS, st.floats(0.01, 100), st.integers(5, 30))
def test_units_of_size_do_not_matter(seed: int, factor: float, count: int) -> None:
    lesions = alike(np.random.default_rng(seed), count)
    here = rank([photo(lesions)])
    there = rank([photo([scaled(one, factor) for one in lesions])])
    for one, other in zip(here, there, strict=True):
        assert one.difference is not None
        assert other.difference is not None
        assert one.difference.score == pytest.approx(other.difference.score, rel=1e-6, abs=1e-9)


@given(SEEDS, st.integers(LEAST_LESIONS, 40))
def test_a_turn_of_the_space_of_embeddings_does_not_matter(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    lesions = alike(rng, count)
    turn_DD = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    turned = [
        dataclasses.replace(one, embedding_D=(turn_DD @ one.embedding_D).astype(np.float32))
        for one in lesions
    ]
    for one, other in zip(
        differences(lesions, sizes(lesions)), differences(turned, sizes(lesions)), strict=True
    ):
        assert one is not None
        assert other is not None
        assert one.appearance == pytest.approx(other.appearance, abs=1e-3)


# Among fewer a chance outlier may come first, and a planted one need not stand out.
@given(SEEDS, st.integers(12, 60), st.sampled_from(["size", "colour", "appearance"]))
def test_a_planted_ugly_duckling_comes_first_and_says_why(seed: int, count: int, how: str) -> None:
    lesions = alike(np.random.default_rng(seed), count)
    plain = np.array([1, 0, 0, 0, 0, 0])
    odd = {
        "size": lesion(30, 30, 1200, embedding=plain),
        "colour": lesion(30, 30, 40, embedding=plain, colour=(-60, 4, 2)),
        "appearance": lesion(30, 30, 40, embedding=(0, 0, 0, 0, 1, 0)),
    }[how]
    first = rank([photo([*lesions, odd])])[0]
    assert first.lesion.box == odd.box
    assert first.difference is not None
    assert first.difference.mostly == how
    assert first.difference.compared_with == count
    assert first.difference.score > STANDS_OUT


@given(SEEDS)
def test_half_of_the_lesions_being_odd_still_leaves_a_middle(seed: int) -> None:
    """Medians hold until every second lesion is of another kind."""
    lesions = alike(np.random.default_rng(seed), 11)
    clear = [lesion(30 * k, 30, 400, embedding=(1, 0, 0, 0, 0, 0)) for k in range(1, 5)]
    everyone = [*lesions, *clear]
    found = differences(everyone, sizes(everyone))
    grown = [one.size for one in found if one is not None]
    assert min(grown[11:]) > max(3, *grown[:11])


@pytest.mark.parametrize("count", range(LEAST_LESIONS))
def test_too_few_lesions_have_no_score(count: int) -> None:
    lesions = alike(np.random.default_rng(1), count)
    assert all(found.difference is None for found in rank([photo(lesions)]))


def test_equal_lesions_differ_in_nothing() -> None:
    lesions = [lesion(50 * place, 60, embedding=(0.3, 0.9, 0.2, 0.1)) for place in range(1, 9)]
    ranked = rank([photo(lesions)])
    assert [found.difference.score for found in ranked if found.difference] == [0] * 8
    assert [found.lesion.box.x1 for found in ranked] == sorted(one.box.x1 for one in lesions)


def test_photos_without_a_scale_are_compared_each_with_its_own_sizes() -> None:
    rng = np.random.default_rng(2)
    lesions = alike(rng, 8)
    near = [scaled(one, 5) for one in lesions]
    apart = rank([photo(lesions), photo(near, "near.jpg", sha256="cd" * 32)])
    assert max(abs(found.difference.size) for found in apart if found.difference) < 3
    # With scales the same boxes are of lesions five times as large.
    measured = [photo(lesions, mm_per_pixel=0.1), photo(near, sha256="cd" * 32, mm_per_pixel=0.1)]
    assert sorted(found.diameter_mm for found in rank(measured)) == pytest.approx(
        sorted(0.1 * diameter(one) for one in [*lesions, *near])
    )


def test_risks_that_read_the_same_are_ordered_by_the_difference() -> None:
    lesions = [lesion(60 * k, 60, risk=0.0299, embedding=(1, 0, 0, 0, 0, 0)) for k in range(1, 8)]
    odd = lesion(60, 600, 200, risk=0.0301, embedding=(1, 0, 0, 0, 0, 0))
    odd_but_riskless = lesion(900, 600, 200, risk=0.001, embedding=(1, 0, 0, 0, 0, 0))
    ranked = boxes(rank([photo([*lesions, odd_but_riskless, odd])]))
    assert ranked[0] == odd.box
    assert ranked[-1] == odd_but_riskless.box
