"""A dataset as an object: `open_dataset`; its table, and its images for torch and Hugging Face."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.errors import UserError, known_keywords
from skindx.data.layout import TAXONOMY, stored_file
from skindx.data.loader.source import Files
from skindx.data.manifest import SPLITS, Record, manifest_schema, read_manifest
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa
    from PIL.Image import Image


class TorchImages:
    """A split for `torch.utils.data.DataLoader`: (image, number of its class) by index.

    The image is what `transform` makes of a Pillow image, as in torchvision; without a transform a
    tensor 3 x H x W of uint8.
    """

    def __init__(
        self, files: Files, labels: Sequence[int], transform: "Callable[[Image], Any] | None"
    ) -> None:
        self._files, self.targets, self.transform = files, list(labels), transform

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return an image and its class. Raises UserError for a file that is gone or damaged."""
        pixels_HWC = self._files.image(range(len(self))[index])
        if self.transform:
            from PIL import Image

            return self.transform(Image.fromarray(pixels_HWC)), self.targets[index]
        import torch

        return torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1), self.targets[index]


class Dataset:
    """A folder that `skindx build` wrote. See `skindx.open_dataset`.

    >>> data.splits
    {'train': 27, 'val': 12, 'calibration': 33, 'test': 12}
    >>> data.table.column_names[:3], len(data.groups), len(data.files("val"))
    (['path', 'sha256', 'perceptual_hash'], 84, 12)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records = read_manifest(path)
        self._taxonomy = Taxonomy.load(path / TAXONOMY)

    @property
    def classes(self) -> tuple[str, ...]:
        """Keys of the classes, in the order of their numbers."""
        return tuple(self._taxonomy.keys)

    @property
    def splits(self) -> dict[str, int]:
        """Images of train, val, calibration and test."""
        counts = Counter(record.split for record in self._records)
        return {split: counts[split] for split in SPLITS}

    @property
    def groups(self) -> dict[str, int]:
        """Images of each group (of a patient or lesion, or copies), which no split divides."""
        return dict(Counter(record.group for record in self._records))

    @cached_property
    def table(self) -> "pa.Table":
        """The manifest, one row an image; its columns are those of the guide's reference."""
        import pyarrow as pa

        rows = [asdict(record) for record in self._records]
        return pa.Table.from_pylist(rows, schema=manifest_schema())

    @known_keywords
    def files(self, split: str | None = None) -> list[Path]:
        """Return the images' files in the order of the table, of one split or of all."""
        return [stored_file(self.path, record.path) for record in self._of(split)]

    @known_keywords
    def torch(
        self, split: str | None = None, transform: "Callable[[Image], Any] | None" = None
    ) -> TorchImages:
        """Return the images of a split, or of all, for torch's DataLoader.

        >>> image, label = data.torch("test")[0]
        >>> image.shape[0], data.classes[label]
        (3, 'Dermatofibroma')
        """
        records = self._of(split)
        numbers = {key: number for number, key in enumerate(self.classes)}
        labels = [numbers[record.label] for record in records]
        return TorchImages(Files(self.path, records), labels, transform)

    @known_keywords
    def hf(self, split: str | None = None) -> "datasets.Dataset":
        """Return the images of a split, or of all, as a dataset of Hugging Face's `datasets`.

        Its column `image` is decoded when it is read, `label` is a ClassLabel; the others are as in
        the table. It is for this machine: `skindx publish` withholds what may not be passed on.

        >>> data.hf("val").features["label"].names
        ['Dermatofibroma', 'Melanoma', 'Nevus']
        """
        import datasets
        import pyarrow.compute as pc

        table = self.table if split is None else self.table.filter(pc.field("split") == split)
        files = [str(file) for file in self.files(split)]
        column = table.schema.get_field_index("path")
        made = datasets.Dataset(table.set_column(column, "image", [files]))
        names = datasets.ClassLabel(names=list(self.classes))
        return made.cast_column("image", datasets.Image()).cast_column("label", names)

    def _of(self, split: str | None) -> list[Record]:
        if split is not None and split not in SPLITS:
            raise UserError(f"split {split!r} is none of {', '.join(SPLITS)}; None gives all.")
        return [record for record in self._records if split in (None, record.split)]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._records)

    def __repr__(self) -> str:
        """Show the folder and its counts."""
        return f"<Dataset {self.path}, {len(self)} images, {len(self.classes)} classes>"


@known_keywords
def open_dataset(path: "str | os.PathLike[str]") -> Dataset:
    """Open a dataset folder. Raises UserError where there is none, or none that is sound.

    >>> len(skindx.open_dataset(dataset))
    84
    """
    return Dataset(Path(path))
