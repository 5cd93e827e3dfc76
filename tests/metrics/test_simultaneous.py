"""Intervals that hold together, and the permutation test of the largest gap: by simulation."""

import numpy as np
import pytest

from skindx.metrics import Statistic, gap_test, share_interval, simultaneous_levels


def test_intervals_of_all_parts_hold_together() -> None:
    """Eight parts: of intervals of 95 % each, some part of every third sample would stand out."""
    random = np.random.default_rng(0)
    rows = [np.arange(part, 400, 8) for part in range(8)]
    groups_N = np.arange(400) // 16 * 8 + np.arange(400) % 8  # two images a group, in one part
    together = alone = 0
    for sample in range(60):
        hits_N = random.random(400) < 0.7
        parts = [(Statistic.share(hits_N[places]), places) for places in rows]
        (level,) = simultaneous_levels({"a": parts}, groups_N, draws=150, seed=sample).values()
        assert 0.95 <= level < 1
        for figure, counted in ((level, "together"), (0.95, "alone")):
            intervals = [share_interval(hits_N[p], groups_N[p], level=figure) for p in rows]
            holds = all(one.low <= 0.7 <= one.high for one in intervals)
            together += holds and counted == "together"
            alone += holds and counted == "alone"
    assert together / 60 > 0.9
    assert alone / 60 < together / 60 - 0.1


def test_a_single_part_needs_no_more_than_its_own_level() -> None:
    hits_N = np.random.default_rng(1).random(200) < 0.5
    parts = [(Statistic.share(hits_N), np.arange(200))]
    levels = simultaneous_levels({"one": parts, "none": []}, np.arange(200), draws=400)
    assert levels["none"] == 0.95
    assert levels["one"] == pytest.approx(0.95, abs=0.02)
    same = [(Statistic.share(np.ones(50, dtype=bool)), np.arange(50))] * 3
    assert simultaneous_levels({"all hits": same}, np.arange(50), draws=20)["all hits"] == 0.95


def test_p_values_are_even_where_parts_tell_nothing() -> None:
    """Hits differ by class and are alike in a group; parts are drawn by class, a group in one."""
    random = np.random.default_rng(2)
    group_N = np.repeat(np.arange(60), 2)
    class_N = (group_N % 2).astype(np.intp)
    p_values = []
    for sample in range(120):
        easy_G = random.random(60) < np.where(np.arange(60) % 2, 0.9, 0.4)
        part_G = random.random(60) < np.where(np.arange(60) % 2, 0.8, 0.2)  # more of one class
        test = gap_test(
            easy_G[group_N], part_G[group_N], class_N, group_N, permutations=99, seed=sample
        )
        assert test is not None
        p_values.append(test.p)
    assert 0.38 < np.mean(p_values) < 0.62
    assert np.mean(np.array(p_values) <= 0.1) < 0.2


def test_a_gap_beyond_the_classes_is_seen_and_one_by_classes_alone_is_not() -> None:
    random = np.random.default_rng(3)
    class_N = random.integers(2, size=400)
    part_N = np.where(random.random(400) < 0.9, class_N, 1 - class_N)
    by_class = random.random(400) < np.where(class_N, 0.95, 0.5)
    by_part = random.random(400) < np.where(part_N, 0.95, 0.5)
    groups_N = np.arange(400) // 2 * 2 + class_N
    only_class, of_part = (
        gap_test(hits_N, part_N, class_N, groups_N, permutations=199)
        for hits_N in (by_class, by_part)
    )
    assert only_class is not None
    assert of_part is not None
    assert only_class.p > 0.05
    assert (of_part.p, of_part.permutations) == (1 / 200, 199)
    assert of_part.gap > only_class.gap
    assert gap_test(by_class, np.zeros(400), class_N, groups_N) is None
