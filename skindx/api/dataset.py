"""A dataset as a Python object: tables, images for torch and Hugging Face, or in a notebook."""

import os
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.errors import UserError, known_keywords
from skindx.core.text import printable
from skindx.data.decisions import PRIVATE, read_flags
from skindx.data.layout import TAXONOMY, stored_file
from skindx.data.loader.source import Files
from skindx.data.manifest import SPLITS, Record, read_manifest
from skindx.data.typed_rows import arrow_schema
from skindx.imaging.image_formats import DamagedImage
from skindx.imaging.resize import small_jpeg
from skindx.imaging.sandboxed_images import decode_limited
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa
    from PIL.Image import Image

_SHOWN_SIDE = 160
_SHOWN_CLASSES = 30


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


@dataclass(frozen=True, repr=False)
class ShownImages:
    """Images as a notebook draws them; the images themselves stay where they are."""

    dataset: Path
    records: tuple[Record, ...]
    of: int
    """Number of images that match the search."""
    private: int
    """Number of these images that are flagged for privacy, which are not drawn."""

    def _lines(self) -> list[str]:
        lines = [f"{len(self.records):,} of {self.of:,} images"]
        if self.private:
            why = "flagged for a face, text or an intimate region"
            lines.append(f"not drawn, since {why}: {self.private:,}")
        return lines

    def __repr__(self) -> str:
        """Show the files, one a line."""
        files = [
            printable(f"{record.label}, {record.split}: {self.dataset / record.path}")
            for record in self.records
        ]
        return "\n  ".join([f"<ShownImages {'; '.join(self._lines())}", *files]) + ">"

    def _repr_html_(self) -> str:
        """Draw small copies under their classes."""
        cells = "".join(map(self._cell, self.records))
        return (
            f"<p>{escape('; '.join(self._lines()))}.</p>"
            f'<div style="display:flex;flex-wrap:wrap;gap:8px">{cells}</div>'
        )

    def _cell(self, record: Record) -> str:
        words = escape(printable(f"{record.label}, {record.split}"))
        title = escape(printable(record.source_url[-200:]))
        try:
            data = stored_file(self.dataset, record.path).read_bytes()
            pixels_HW3 = decode_limited(data, at_least=(_SHOWN_SIDE, _SHOWN_SIDE))
        except (UserError, OSError, DamagedImage):
            picture = "cannot be read"
        else:
            jpeg = b64encode(small_jpeg(pixels_HW3, _SHOWN_SIDE)).decode("ascii")
            picture = f'<img src="data:image/jpeg;base64,{jpeg}" alt="{words}">'
        return (
            f'<figure style="margin:0;width:{_SHOWN_SIDE}px;overflow-wrap:anywhere" '
            f'title="{title}">{picture}<figcaption>{words}</figcaption></figure>'
        )


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
        return pa.Table.from_pylist(rows, schema=arrow_schema(Record))

    @known_keywords
    def files(self, split: str | None = None) -> list[Path]:
        """Return the images' files in the order of the table, of one split or of all."""
        return [stored_file(self.path, record.path) for record in self._of(split)]

    @known_keywords
    def torch(
        self, split: str | None = None, transform: "Callable[[Image], Any] | None" = None
    ) -> TorchImages:
        """Return the images of a split, or of all, for torch's DataLoader.

        Images have sizes of their own: for batches of several, let `transform` resize them.

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

    @known_keywords
    def show(
        self, label: str | None = None, split: str | None = None, most: int = 24
    ) -> ShownImages:
        """Return some images, of a class and a split or of all, for a notebook to draw.

        Classes take turns; of each those with the first hashes, one a group first. Images that an
        audit flagged for privacy are never drawn, all others are, whatever their licence: look
        before you pass the notebook on.

        >>> [record.label for record in data.show(split="val", most=4).records]
        ['Dermatofibroma', 'Melanoma', 'Nevus', 'Dermatofibroma']
        """
        if label is not None and label not in self.classes:
            near = get_close_matches(label, self.classes, 1, 0.0)
            raise UserError(f"the dataset has no class {label!r}; did you mean {near[0]!r}?")
        wanted = [one for one in self._of(split) if label in (None, one.label)]
        flagged = {flag.sha256 for flag in read_flags(self.path) if flag.reason in PRIVATE}
        drawn = [record for record in wanted if record.sha256 not in flagged]
        turns: Counter[str] = Counter()
        groups: Counter[str] = Counter()
        ranked = []
        for record in sorted(drawn, key=lambda record: record.sha256):
            # A group's second image comes behind all first ones of its class.
            groups[record.group] += 1
            turns[record.label] += 1
            ranked.append((groups[record.group], turns[record.label], record.label, record))
        ranked.sort(key=lambda row: row[:3])
        some = tuple(record for *_, record in ranked[: max(0, most)])
        return ShownImages(self.path, some, len(wanted), len(wanted) - len(drawn))

    def _of(self, split: str | None) -> list[Record]:
        if split is not None and split not in SPLITS:
            raise UserError(
                f"there is no split {split!r}; give {', '.join(SPLITS)}, or None for all images."
            )
        return [record for record in self._records if split in (None, record.split)]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._records)

    def __repr__(self) -> str:
        """Show the folder and its counts."""
        return f"<Dataset {self.path}, {len(self)} images, {len(self.classes)} classes>"

    def _repr_html_(self) -> str:
        """Show the images of each class by split in a notebook; the largest classes first."""
        counts = Counter((record.label, record.split) for record in self._records)
        sizes = Counter(record.label for record in self._records).most_common()
        rows = [(label, [*(counts[label, split] for split in SPLITS), n]) for label, n in sizes]
        rest = rows[_SHOWN_CLASSES:]
        if rest:
            sums = [sum(column) for column in zip(*(numbers for _, numbers in rest), strict=True)]
            rows = [*rows[:_SHOWN_CLASSES], (f"{len(rest):,} more classes", sums)]
        rows.append(("all", [*self.splits.values(), len(self)]))
        head = "".join(f"<th>{name}</th>" for name in ("class", *SPLITS, "images"))
        body = "".join(
            f'<tr><td style="text-align:left">{escape(printable(name))}</td>'
            + "".join(f"<td>{n:,}</td>" for n in numbers)
            + "</tr>"
            for name, numbers in rows
        )
        place = escape(printable(str(self.path)))
        return f"<p><b>{place}</b>, {len(self.groups):,} groups</p><table>{head}{body}</table>"


@known_keywords
def open_dataset(path: "str | os.PathLike[str]") -> Dataset:
    """Open a dataset folder. Raises UserError where there is none, or none that is sound.

    >>> len(skindx.open_dataset(dataset))
    84
    """
    return Dataset(Path(path))
