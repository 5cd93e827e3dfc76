"""How much a split that tears groups apart would flatter: test images with a sibling in train."""

from collections.abc import Sequence

import numpy as np

from skindx.data.manifest import Record

DRAWS = 20


def siblings_in_train(records: Sequence[Record]) -> float:
    """Return the share of test images whose group has an image in train, as the dataset is."""
    train = {record.group for record in records if record.split == "train"}
    test = [record.group for record in records if record.split == "test"]
    return sum(group in train for group in test) / len(test) if test else 0.0


def siblings_by_chance(records: Sequence[Record], seed: int = 0) -> float:
    """Return the same for a random split of images of the same sizes: the mean of 20 draws."""
    random = np.random.default_rng(seed)
    groups = np.array([record.group for record in records])
    splits = np.array([record.split for record in records])
    shares = []
    for _ in range(DRAWS):
        drawn = random.permutation(splits)
        test = groups[drawn == "test"]
        shares.append(float(np.isin(test, groups[drawn == "train"]).mean()) if len(test) else 0.0)
    return float(np.mean(shares))
