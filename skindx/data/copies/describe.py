"""The description of an image: at most 300 points with codes, and a small grey image.

Points are SIFT's (Lowe 2004), descriptors RootSIFT (Arandjelovic, Zisserman 2012: L1 norm, then
the square root of each entry). Projection and codebook are fixed, so that the same point has the
same code in every pool. The projection is a PCA of RootSIFT descriptors whose covariance was made
symmetric under the mirror, so that each component is even or odd: a mirrored image's code is the
code with the signs of the odd components turned. The cells are those of an inverted multi-index
(Babenko, Lempitsky 2012, "The inverted multi-index"): two halves of the leading components, a
codebook for each.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file, sha256_file
from skindx.core.progress import Progress
from skindx.data.layout import stored_file
from skindx.imaging.decode import decode_small, import_decoders
from skindx.imaging.image_formats import DamagedImage
from skindx.workers.sandbox import Failure, Work, for_each, run_sandboxed, sandboxed
from skindx.workers.task_runner import TaskRunner
from skindx.workers.worker_process import SandboxLimits

# P = points, D = 128 dimensions of SIFT, C = components of a code, H = 2 halves, K = words a half,
# L = leading components, which the halves share, R = nearest words that are kept


CODEBOOK_FILE = Path(__file__).parent / "codebook.npz"
COMPONENTS = 64
LEADING = 32
NEAREST = 2
SCALE = 254.0
"""Scale of a code: a descriptor of length 1 has components from -127 to 127."""


@dataclass(frozen=True)
class Codebook:
    """The package's codebook, learned from synthetic images."""

    mean_D: NDArray[np.float32]
    components_CD: NDArray[np.float32]
    odd_C: NDArray[np.bool_]
    words_HKL: NDArray[np.float32]
    """Words in units of a code; half h owns the leading components h, h + 2, ..."""

    @property
    def signs(self) -> NDArray[np.int8]:
        """Return what turns a code into that of the mirrored point."""
        return np.where(self.odd_C, -1, 1).astype(np.int8)

    def encode(self, descriptors_PD: NDArray[np.float32]) -> NDArray[np.int8]:
        """Return codes_PC of RootSIFT descriptors of length 1."""
        exact_PC = (descriptors_PD - self.mean_D) @ self.components_CD.T
        return np.rint(exact_PC * SCALE).clip(-127, 127).astype(np.int8)

    def nearest(self, codes_PC: NDArray[np.int8]) -> NDArray[np.uint8]:
        """Return nearest_PHR, the words of each half that are nearest to each point."""
        leading_PL = codes_PC[:, :LEADING].astype(np.float32)
        nearest_PHR = np.empty((len(codes_PC), 2, NEAREST), np.uint8)
        for half in (0, 1):
            words_KL = self.words_HKL[half]
            distance_PK = (words_KL**2).sum(1) - 2 * leading_PL[:, half::2] @ words_KL.T
            part_PR = np.argpartition(distance_PK, NEAREST, axis=1)[:, :NEAREST]
            order_PR = np.argsort(np.take_along_axis(distance_PK, part_PR, 1), axis=1)
            nearest_PHR[:, half] = np.take_along_axis(part_PR, order_PR, 1)
        return nearest_PHR


@cache
def shipped_codebook() -> Codebook:
    """Return the codebook of the package."""
    with np.load(CODEBOOK_FILE) as file:
        return Codebook(file["mean_D"], file["components_CD"], file["odd_C"], file["words_HKL"])


LONG_SIDE = 256
POINTS = 300
_CONTRAST = 0.008
"""SIFT's own 0.04 leaves a dozen points on smooth skin."""
_EDGE = 12.0
RANGE, MOST_GAIN = 90.0, 6.0
_SQUARE = 32
"""Pixels."""


@dataclass(frozen=True)
class Description:
    """One image as the comparison sees it."""

    shape_hw: tuple[int, int]
    """The longer side has LONG_SIDE pixels; places and transforms refer to this size."""
    small_HW: NDArray[np.uint8]
    """Grey, half as long and half as wide."""
    points_P4: NDArray[np.float32]
    """x, y, diameter in pixels, direction in degrees clockwise from the x axis."""
    codes_PC: NDArray[np.int8]
    nearest_PHR: NDArray[np.uint8]
    mirrored_PHR: NDArray[np.uint8]
    """The nearest words of the mirrored image's points."""

    @property
    def digest(self) -> bytes:
        """Return a digest by which two images are ordered, whichever is given first."""
        return hashlib.sha256(self.small_HW.tobytes() + self.codes_PC.tobytes()).digest()


def fitted(grey_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the image with LONG_SIDE pixels along its longer side."""
    import cv2

    height, width = grey_HW.shape
    scale = LONG_SIDE / max(height, width)
    if scale == 1:
        return grey_HW
    size_wh = (max(16, round(width * scale)), max(16, round(height * scale)))
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    resized_HW: NDArray[np.uint8] = cv2.resize(grey_HW, size_wh, interpolation=way)
    return resized_HW


def stretched(grey_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the image with its contrast stretched to RANGE grey levels, if it has less."""
    low, high = np.percentile(grey_HW, (1, 99))
    gain = RANGE / max(high - low, RANGE / MOST_GAIN)
    if gain <= 1 or high == low:
        return grey_HW
    shown_HW: NDArray[np.uint8] = (
        np.rint((grey_HW - low) * gain + low).clip(0, 255).astype(np.uint8)
    )
    return shown_HW


def halved(grey_HW: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the image at half its size."""
    import cv2

    height, width = grey_HW.shape
    half_HW: NDArray[np.uint8] = cv2.resize(
        grey_HW, ((width + 1) // 2, (height + 1) // 2), interpolation=cv2.INTER_AREA
    )
    return half_HW


def describe_bytes(data: bytes) -> Description:
    """Decode and describe an image. Raises DamagedImage."""
    return describe(decode_small(data, LONG_SIDE))


def describe(grey_HW: NDArray[np.uint8]) -> Description:
    """Describe a grey image; one without texture has no points."""
    codebook = shipped_codebook()
    grey_HW = np.ascontiguousarray(stretched(fitted(grey_HW)))
    points_P4, descriptors_PD = root_sift(grey_HW)
    codes_PC = codebook.encode(descriptors_PD)
    return Description(
        (grey_HW.shape[0], grey_HW.shape[1]),
        halved(grey_HW),
        points_P4,
        codes_PC,
        codebook.nearest(codes_PC),
        codebook.nearest(codes_PC * codebook.signs),
    )


def root_sift(grey_HW: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return points_P4 and RootSIFT descriptors_PD of length 1, the strongest points first."""
    import cv2

    sift = cv2.SIFT.create(contrastThreshold=_CONTRAST, edgeThreshold=_EDGE)
    chosen = _chosen(sift.detect(grey_HW, None))
    if not chosen:
        return np.empty((0, 4), np.float32), np.empty((0, 128), np.float32)
    keys, descriptors_PD = sift.compute(grey_HW, chosen)
    points_P4 = np.array([(*key.pt, key.size, key.angle) for key in keys], np.float32)
    raw_PD = descriptors_PD.astype(np.float32)
    raw_PD /= np.maximum(raw_PD.sum(axis=1, keepdims=True), 1)
    return points_P4, np.sqrt(raw_PD)


def _chosen(keys: Sequence[Any]) -> list[Any]:
    """Return at most POINTS points: half of them the strongest, half the strongest of each square.

    Words have the sharpest corners; alone they would leave a screenshot's photo without a point.
    """
    # The place decides among equals, so that the order is the image's and not the detector's.
    ordered = sorted(keys, key=lambda key: (-key.response, *key.pt, key.size, key.angle))
    rank: Counter[tuple[int, int]] = Counter()
    ranks = []
    for key in ordered:
        square = int(key.pt[0] // _SQUARE), int(key.pt[1] // _SQUARE)
        ranks.append(rank[square])
        rank[square] += 1
    spread = sorted(range(POINTS // 2, len(ordered)), key=lambda at: (ranks[at], at))
    chosen = [*range(min(POINTS // 2, len(ordered))), *spread[: POINTS - POINTS // 2]]
    return [ordered[at] for at in sorted(chosen)]


DESCRIPTIONS = "copies"
"""Folder in the dataset folder. It may be deleted; what is needed is described again."""

SHARD_IMAGES = 1000
_LIMITS = SandboxLimits(timeout_s=60, memory_mb=600)
_VERSION = 2
"""Counts up when descriptions change, so that older ones are made again."""


def sha256_of(path: str) -> str:
    """Return the SHA-256 that names a stored file."""
    return PurePath(path).name.partition(".")[0]


def folder_of(dataset: Path) -> Path:
    """Return the folder of the descriptions that this version makes."""
    return dataset / DESCRIPTIONS / f"v{_VERSION}-{sha256_file(CODEBOOK_FILE)[:12]}"


def describe_missing(
    dataset: Path, paths: Sequence[str], runner: TaskRunner, progress: Progress
) -> None:
    """Describe the images that no shard holds yet, in tasks of SHARD_IMAGES.

    An image that cannot be decoded, or ends its decoder, is described by no points.
    """
    folder = folder_of(dataset.absolute())
    known = {sha256 for file in shard_files(folder) for sha256 in DescriptionShard(file).sha256s}
    missing = [path for path in paths if sha256_of(path) not in known]
    done = len(paths) - len(missing)
    progress("describe", done, len(paths))
    cuts = range(0, len(missing), SHARD_IMAGES)
    parts = [tuple(missing[start : start + SHARD_IMAGES]) for start in cuts]

    def on_shard(task: tuple[Any, ...]) -> None:
        nonlocal done
        done += len(task[1])
        progress("describe", done, len(paths))

    tasks = [(dataset.absolute(), part, runner.screen_workers) for part in parts]
    for _, part, _ in runner.run(describe_shard, tasks, on_shard):
        # The decoders are processes of their own: this is a worker that was taken away.
        describe_shard(dataset.absolute(), part, runner.driver_workers)


def describe_shard(dataset: Path, paths: Sequence[str], workers: int) -> None:
    """Describe images and write their shard; a task of the runner."""
    rows: list[dict[str, Any]] = [{}] * len(paths)
    files = [stored_file(dataset, path) for path in paths]
    for at, answer in run_sandboxed(description_work, {}, files, _LIMITS, workers):
        rows[at] = _NOTHING if isinstance(answer, Failure) else answer
    names = [sha256_of(path) for path in paths]
    write_shard(folder_of(dataset), names, rows)


def _prepare() -> None:
    import cv2

    import_decoders()
    cv2.SIFT.create()


@sandboxed(_prepare)
def description_work(job: dict[str, Any]) -> Work:
    """Return what describes files, in plain values."""
    return for_each(_described)


def _described(file: Path) -> dict[str, Any]:
    try:
        return to_row(describe_bytes(file.read_bytes()))
    except (OSError, DamagedImage, MemoryError):
        return _NOTHING


def to_row(description: Description) -> dict[str, Any]:
    """Return plain values, arrays as bytes."""
    (height, width), (small_height, small_width) = description.shape_hw, description.small_HW.shape
    return {
        "sides": [height, width, small_height, small_width],
        "small": description.small_HW.tobytes(),
        "points": description.points_P4.tobytes(),
        "codes": description.codes_PC.tobytes(),
        "nearest": description.nearest_PHR.tobytes(),
        "mirrored": description.mirrored_PHR.tobytes(),
    }


_NOTHING: dict[str, Any] = {
    "sides": [0, 0, 0, 0],
    **dict.fromkeys(("small", "points", "codes", "nearest", "mirrored"), b""),
}


def write_shard(folder: Path, sha256s: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write descriptions, atomically, one row an image; the file is named by its images."""
    import pyarrow as pa

    digest = hashlib.sha256("\n".join(sha256s).encode()).hexdigest()[:32]
    file = folder / f"described-{digest}.arrow"

    types = {"sides": pa.list_(pa.int16(), 4)}
    columns: dict[str, Any] = {"sha256": pa.array(sha256s, pa.string())}
    for name in _NOTHING:
        values = [row[name] for row in rows]
        columns[name] = pa.array(values, types.get(name, pa.large_binary()))
    table = pa.table(columns)
    with (
        atomic_file(file) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=max(1, len(table)))


def shard_files(folder: Path) -> list[Path]:
    """Return the finished shards in a folder of descriptions, in the order of their names."""
    return sorted(folder.glob("described-*.arrow"))


class DescriptionShard:
    """One file of descriptions, mapped into memory."""

    def __init__(self, file: Path) -> None:
        import pyarrow as pa

        self.file = file
        with pa.memory_map(str(file)) as source:
            table = pa.ipc.open_file(source).read_all()
        self.sha256s: list[str] = table["sha256"].to_pylist()
        self._columns = {
            name: table[name].combine_chunks()
            if table[name].num_chunks != 1
            else table[name].chunk(0)
            for name in _NOTHING
        }

    def description(self, row: int) -> Description:
        """Return one image's description, as views of the file."""
        height, width, small_height, small_width = self._columns["sides"][row].as_py()
        words = (-1, 2, NEAREST)
        return Description(
            (height, width),
            self._array("small", row, np.uint8).reshape(small_height, small_width),
            self._array("points", row, np.float32).reshape(-1, 4),
            self._array("codes", row, np.int8).reshape(-1, COMPONENTS),
            self._array("nearest", row, np.uint8).reshape(words),
            self._array("mirrored", row, np.uint8).reshape(words),
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows as `write_shard` takes them."""
        count = len(self.sha256s)
        return [
            {name: self._columns[name][row].as_py() for name in _NOTHING} for row in range(count)
        ]

    def _array(self, name: str, row: int, kind: Any) -> NDArray[Any]:
        buffer = self._columns[name][row].as_buffer()
        return np.frombuffer(buffer, kind) if buffer.size else np.empty(0, kind)


@dataclass(frozen=True)
class ShardRow:
    """Position of one image's description."""

    shard: int
    row: int


class DescriptionLibrary:
    """The descriptions of a dataset folder, found by SHA-256."""

    def __init__(self, dataset: Path) -> None:
        """Open the shards."""
        self._shards = [
            DescriptionShard(file) for file in shard_files(folder_of(dataset.absolute()))
        ]
        self._places = {
            sha256: ShardRow(number, row)
            for number, shard in enumerate(self._shards)
            for row, sha256 in enumerate(shard.sha256s)
        }

    def __contains__(self, sha256: object) -> bool:
        return sha256 in self._places

    def __getitem__(self, sha256: str) -> Description:
        place = self._places[sha256]
        return self._shards[place.shard].description(place.row)
