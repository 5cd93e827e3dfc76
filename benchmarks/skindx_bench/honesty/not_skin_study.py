"""Errors of the check for images without skin, on real skin and on painted images.

`python -m skindx_bench.honesty.not_skin_study FOLDER ...` prints it as JSON: for each folder of
images of skin, or dataset, the share that a build would flag, with its interval, by what they seem
to show, and by skin type where a dataset knows it; the same changed in light and compression; then
the share of painted images that are found, by kind, and of painted skin that is flagged. With
weights also how well embeddings of a pretrained trunk tell what does not belong among them.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.errors import UserError
from skindx.core.measurement import hardware, versions
from skindx.data.layout import MANIFEST
from skindx.data.manifest import read_image, read_manifest
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.imaging.decode import decode
from skindx.imaging.image_formats import DamagedImage
from skindx.imaging.skin_content import LIMIT, Content, content_of
from skindx.metrics import Interval, Ranked, bootstrap_interval, share_interval
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier, load_weights
from skindx.models.classifier.preprocess import Preprocess, framed_square
from skindx.models.ood.ood_detectors import unusual_scores
from skindx.review.image_embeddings import THRESHOLD
from skindx_bench.honesty.gates_study import darkened, files_of, source_of
from skindx_bench.honesty.no_skin_images import KINDS, WARM

# N = images, D = dimensions

MODEL = "mobilenetv2_100"
_BATCH = 32
_VIEW = Preprocess(crop=1.0, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
_ARGUMENTS = {"pad_type": "same", "bn_eps": 1e-3}
"""As `configs/embeddings.yaml` has them, for weights that come from a TensorFlow model."""

Pixels = NDArray[np.uint8]


def unusual_figures(
    skin: Iterable[tuple[Pixels, str]], weights: Path, *, planted: int
) -> dict[str, Any]:
    """Plant `planted` painted images of each kind among images of skin and score all of them.

    Each image of skin comes with the name of its source. Raises UserError for weights that are
    none of MODEL.
    """
    others, sources = {**KINDS, **WARM}, list[str]()

    def all_of_them() -> Iterator[Pixels]:
        for pixels, source in skin:
            sources.append(source)
            yield pixels
        for draw in others.values():
            yield from (draw(np.random.default_rng(n)) for n in range(planted))

    scores_N = unusual_scores(embedded(all_of_them(), weights))
    kinds_N = np.array([""] * len(sources) + [name for name in others for _ in range(planted)])
    own_N, flagged_N = kinds_N == "", scores_N >= THRESHOLD
    groups_N = np.array([*sources, *(f"painted {n}" for n in range((~own_N).sum()))])
    area = bootstrap_interval(
        Ranked.auroc(np.stack([-scores_N, scores_N], axis=1), (~own_N).astype(int)), groups_N
    )
    share = share_interval(flagged_N[own_N], groups_N[own_N])
    return {
        "model": f"{MODEL} at {_VIEW.size}, {sha256_file(weights)[:16]}",
        "threshold": THRESHOLD,
        "skin": int(own_N.sum()),
        "planted": int((~own_N).sum()),
        "skin_flagged": [share.value, share.low, share.high],
        "auroc": [area.value, area.low, area.high],
        "found": {name: float(flagged_N[kinds_N == name].mean()) for name in others},
        "least": {name: float(scores_N[kinds_N == name].min()) for name in others},
        "skin_score_99": float(np.quantile(scores_N[own_N], 0.99)),
    }


def embedded(images: Iterable[Pixels], weights: Path) -> NDArray[np.float32]:
    """Return pooled features N x D of length 1, as `skindx dedup embed` makes them."""
    import torch

    net = build_classifier(ClassifierSettings(model=MODEL, model_args=_ARGUMENTS), classes=1)
    load_weights(net, weights)
    net.eval().net.reset_classifier(0)  # type: ignore[operator]
    rows = []
    with torch.inference_mode():
        squares = (framed_square(image, _VIEW) for image in images)
        while batch := list(islice(squares, _BATCH)):
            rows.append(net(torch.from_numpy(np.stack(batch))).float().flatten(1).numpy())
    features_ND = np.concatenate(rows)
    vectors_ND: NDArray[np.float32] = features_ND / np.linalg.norm(
        features_ND, axis=1, keepdims=True
    )
    return vectors_ND


@dataclass(frozen=True, slots=True)
class Image:
    """One image of skin; images of one source count as one."""

    pixels: Pixels
    source: str
    skin_type: int | None = None


def compressed(pixels_HW3: Pixels, quality: int) -> Pixels:
    """Return an image as a JPEG of that quality shows it."""
    import simplejpeg

    again_HW3: Pixels = simplejpeg.decode_jpeg(
        simplejpeg.encode_jpeg(np.ascontiguousarray(pixels_HW3), quality=quality)
    )
    return again_HW3


CHANGES: dict[str, Callable[[Pixels], Pixels]] = {
    "as they are": lambda pixels: pixels,
    "a third of the light": lambda pixels: darkened(pixels, 1 / 3),
    "a tenth of the light": lambda pixels: darkened(pixels, 0.1),
    "JPEG of quality 20": lambda pixels: compressed(pixels, 20),
}


def report(
    folders: Sequence[Path], *, count: int, painted: int, weights: Path | None = None
) -> dict[str, Any]:
    """Return the figures of up to `count` images a folder and `painted` of each painted kind.

    With `weights` also those of embeddings, see `skindx_bench.honesty.not_skin_study`.
    """
    figures = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions(),
        "limit": LIMIT,
        "skin": [row for folder in folders for row in _skin(folder, count)],
        "painted_skin": _figures("painted skin", [content_of(p) for p in painted_skin(painted)]),
        "painted": [
            _figures(name, [content_of(draw(np.random.default_rng(n))) for n in range(painted)])
            for name, draw in {**KINDS, **WARM}.items()
        ],
    }
    if weights:
        figures["unusual"] = {
            folder.name: unusual_figures(
                ((image.pixels, image.source) for image in _images(folder, count)),
                weights,
                planted=max(1, painted // 10),
            )
            for folder in folders
        }
    return figures


def painted_skin(count: int) -> Iterator[Pixels]:
    """Yield painted images of skin, light to dark, of all classes."""
    return (paint(CLASSES[n % len(CLASSES)], n).pixels for n in range(count))


def _skin(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    sources, types = list[str](), list[str]()
    found: dict[str, list[Content]] = {change: [] for change in CHANGES}
    for image in _images(folder, count):
        sources.append(image.source)
        types.append("unknown" if image.skin_type is None else str(image.skin_type))
        for change, alter in CHANGES.items():
            found[change].append(content_of(alter(image.pixels)))
    for change, contents in found.items():
        row = _figures(folder.name, contents, sources) | {"change": change}
        if change == "as they are":
            row["by_skin_type"] = _by_type(types, contents, sources)
        yield row


def _images(folder: Path, count: int) -> Iterator[Image]:
    if not (folder / MANIFEST).exists():
        for file in files_of(folder, count):
            with suppress(DamagedImage):
                yield Image(decode(file.read_bytes()), source_of(file))
        return
    records = read_manifest(folder)
    for place in np.random.default_rng(0).permutation(len(records))[:count]:
        record = records[place]
        yield Image(read_image(folder, record), record.group, record.skin_type)


def _figures(kind: str, found: Sequence[Content], sources: Sequence[str] = ()) -> dict[str, Any]:
    flagged_N = np.array([content.score >= LIMIT for content in found])
    groups_N = np.array(sources or range(len(found)))
    return {
        "kind": kind,
        "n": len(found),
        "sources": len(np.unique(groups_N)),
        "flagged": _plain(share_interval(flagged_N, groups_N)),
        "shows": dict(Counter(content.shows for content in found if content.shows)),
        "score_99": float(np.quantile([content.score for content in found], 0.99)),
    }


def _by_type(
    types: Sequence[str], found: Sequence[Content], sources: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of each Fitzpatrick type; `unknown` has images without a type."""
    figures = {}
    for name in sorted(set(types)):
        mine = [place for place, own in enumerate(types) if own == name]
        figures[name] = _figures(name, [found[n] for n in mine], [sources[n] for n in mine])
    return figures


def _plain(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]


def main(arguments: list[str]) -> None:
    """Print the figures. Raises UserError for a folder without images."""
    parser = argparse.ArgumentParser(
        "python -m skindx_bench.honesty.not_skin_study", description=__doc__
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="images of skin")
    parser.add_argument("--count", type=int, default=10_000, help="images of each folder, at most")
    parser.add_argument("--painted", type=int, default=50, help="painted images of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="of a MobileNetV2, to embed")
    asked = parser.parse_args(arguments)
    if asked.count < 1 or asked.painted < 1:
        raise UserError("--count and --painted must be at least 1.")
    found = report(asked.folders, count=asked.count, painted=asked.painted, weights=asked.weights)
    if asked.json:
        write_json(asked.json, found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
