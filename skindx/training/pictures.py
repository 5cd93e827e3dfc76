"""The training set in memory: decoded once, shrunk, augmented per sample."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.data.decode import DamagedPicture, decode
from skindx.data.manifest import Record
from skindx.errors import UserError
from skindx.models.preprocess import Preprocess, shrink
from skindx.offline import go_offline
from skindx.training.batches import sample_seed
from skindx.training.settings import Augment

# N = pictures, B = batch, S = side


@dataclass(frozen=True)
class Pictures:
    """Decoded uint8 pictures (H x W x 3, sizes differ) and their class numbers."""

    pictures: list[NDArray[np.uint8]]
    labels_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pictures)


def load_pictures(
    dataset: Path, records: Sequence[Record], classes: Sequence[str], short_side: int, threads: int
) -> Pictures:
    """Decode the records' pictures and shrink them to `short_side` pixels, never enlarging.

    Raises UserError for a picture of the dataset that is gone or damaged.
    """
    number = {key: index for index, key in enumerate(classes)}

    def load(record: Record) -> NDArray[np.uint8]:
        try:
            picture = decode((dataset / record.path).read_bytes())
        except (OSError, DamagedPicture) as error:
            raise UserError(
                f"picture {dataset / record.path} cannot be read ({error}); "
                "build the dataset again."
            ) from None
        return shrink(picture, short_side) if min(picture.shape[:2]) > short_side else picture

    with ThreadPoolExecutor(threads) as pool:
        pictures = list(pool.map(load, records))
    labels = np.array([number[record.label] for record in records], dtype=np.int64)
    return Pictures(pictures, labels)


def augmenter(
    augment: Augment, preprocess: Preprocess
) -> Callable[[NDArray[np.uint8], int], NDArray[np.uint8]]:
    """Return a function (picture, seed) -> random S x S x 3 view; the seed decides everything."""
    go_offline()
    import albumentations as A
    import cv2

    cv2.setNumThreads(1)  # the ranks share the cores already
    steps: list[A.BasicTransform] = [
        A.RandomResizedCrop(
            (preprocess.size, preprocess.size),
            scale=augment.scale,
            ratio=(0.8, 1.25),
            interpolation=cv2.INTER_AREA,
        )
    ]
    if augment.flip:
        steps.append(A.D4(p=1))
    if augment.colour:
        strength = augment.colour
        steps.append(A.ColorJitter(strength, strength, strength, strength / 10, p=0.8))
    compose = A.Compose(steps)

    def view(picture: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
        compose.set_random_seed(seed)
        changed: NDArray[np.uint8] = compose(image=picture)["image"]
        return changed

    return view


def training_batches(
    data: Pictures,
    shares: Iterable[NDArray[np.int64]],
    view: Callable[[NDArray[np.uint8], int], NDArray[np.uint8]],
    seed: int,
    epoch: int,
) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield augmented pictures (B x S x S x 3 uint8) and class numbers for each index array."""
    for indices in shares:
        views = [
            view(data.pictures[index], sample_seed(seed, epoch, int(index))) for index in indices
        ]
        yield torch.from_numpy(np.stack(views)), torch.from_numpy(data.labels_N[indices])
