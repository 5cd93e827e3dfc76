"""Heads within and across hosts: a code of each host's own is found out, a common one is not."""

import dataclasses
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.manifest import Record, read_image, read_manifest, write_manifest
from skindx_bench.subjects import run_bench
from skindx_bench.train.host import (
    Config,
    HostHeads,
    comparable,
    host_of,
    judge_heads,
    level,
    matched_folds,
)

DATASET = Path(__file__).parents[2] / "tests" / "fixtures" / "v0_1" / "dataset"
SOURCES = ("files:index.csv @ www.large.org", "files:index.csv @ small.org.br")
HOSTS = ("large", "small")


def image(label: str, group: str, host: int) -> Record:
    return Record("", "", "", 1, 1, label, group, "train", source=SOURCES[host])


def images(of_large: int, of_small: int) -> list[Record]:
    """Return images of the classes a and b, each of a group of its own."""
    return [
        image(label, f"{host}{label}{number}", host)
        for host, count in enumerate((of_large, of_small))
        for label in "ab"
        for number in range(count)
    ]


def test_a_group_on_both_hosts_stays_with_the_smaller_one() -> None:
    records = [*images(5, 3), image("a", "both", 0), image("a", "both", 1), image("c", "g", 0)]
    hosts, kept = comparable(records, 3)
    assert hosts == HOSTS
    assert Counter((host_of(record), record.label) for record in kept) == {
        ("large", "a"): 5,
        ("large", "b"): 5,
        ("small", "a"): 4,
        ("small", "b"): 3,
    }
    assert [host_of(record) for record in kept if record.group == "both"] == ["small"]
    with pytest.raises(UserError, match="1 classes of 4 images or more in common"):
        comparable(records, 4)
    with pytest.raises(UserError, match="one host only"):
        comparable(images(3, 0), 1)


def numbers(records: list[Record]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    host_N = np.array([HOSTS.index(host_of(record)) for record in records])
    return host_N, np.array(["ab".index(record.label) for record in records])


def test_both_hosts_train_on_as_many_images_of_each_class() -> None:
    records = images(30, 12)
    host_N, truth_N = numbers(records)
    tested = np.zeros(len(records), int)
    for parts_N in matched_folds(records, host_N, truth_N, Config(folds=3)):
        tested += parts_N == "test"
        for part in ("train", "val"):
            counts = Counter(zip(host_N[parts_N == part], truth_N[parts_N == part], strict=True))
            assert len(counts) == 4
            assert {counts[0, label] - counts[1, label] for label in (0, 1)} == {0}
    assert (tested == 1).all()


def judged(shift: float, flip: bool, seed: int = 0) -> HostHeads:
    """Test heads on features that hold the class and, by `shift`, the host.

    With `flip` the same feature means the other class on the other host.
    """
    records = images(24, 24)
    host_N, truth_N = numbers(records)
    sign_N = np.where(flip & (host_N == 1), -1, 1) * (2 * truth_N - 1)
    features_ND = np.random.default_rng(seed).normal(size=(len(records), 3)) / 4
    features_ND[:, 0] += sign_N
    features_ND[:, 1] += shift * host_N
    return judge_heads(features_ND.astype(np.float32), records, HOSTS, Config(folds=2))


def test_what_is_the_same_on_both_hosts_holds_across_them() -> None:
    figures = judged(0, flip=False, seed=2).figures()
    assert figures["within_balanced"].value == figures["across_balanced"].value == 100
    assert figures["across_minus_within_balanced"].value == 0
    low, high = figures["host_auroc"].spread
    assert low < 0.5 < high


def test_a_host_that_can_be_told_and_decides_is_found_out() -> None:
    figures = judged(4, flip=True).figures()
    assert figures["host_auroc"].value == 1
    assert figures["within_balanced"].value == 100
    assert figures["across_balanced_small"].value < 5
    assert figures["across_minus_within_balanced"].spread[1] < -50


def two_hosts(folder: Path) -> list[Record]:
    shutil.copytree(DATASET, folder)
    records = [
        dataclasses.replace(record, source=SOURCES[number % 5 > 2])
        for number, record in enumerate(read_manifest(folder))
    ]
    write_manifest(folder, records)
    return records


def test_levelled_images_have_the_same_shorter_side(tmp_path: Path) -> None:
    records = two_hosts(tmp_path / "data")[:3]
    levelled = level(tmp_path / "data", records, tmp_path / "levelled", 20)
    for before, after in zip(records, levelled, strict=True):
        pixels_HWC = read_image(tmp_path / "levelled", after)
        assert min(pixels_HWC.shape[:2]) == 20
        assert pixels_HWC.shape[:2] == (after.height, after.width)
        assert (before.group, before.label) == (after.group, after.label)


@pytest.mark.lab
def test_the_smallest_setting_of_hosts(tmp_path: Path) -> None:
    two_hosts(tmp_path / "data")
    sets = [f"dataset={tmp_path / 'data'}", f"out={tmp_path / 'out'}"]
    result = run_bench("host", tmp_path / "host.json", sets, smallest=True)
    assert {"host_auroc", "levelled_host_auroc"} < set(result.figures)
    assert len(result.figures) == 2 * 10 + 1
    assert sum(result.models["large"]["images"].values()) == 66
