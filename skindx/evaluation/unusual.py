"""How well embeddings of a pretrained trunk tell what does not belong among images of skin."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import sha256_file
from skindx.data.image_tables import THRESHOLD
from skindx.data.synthetic.no_skin import KINDS, WARM
from skindx.metrics import Ranked, bootstrap_interval, share_interval
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier, load_weights
from skindx.models.classifier.preprocess import Preprocess, centre_square
from skindx.models.ood.ood_detectors import unusual_scores

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
        squares = (centre_square(image, _VIEW) for image in images)
        while batch := list(islice(squares, _BATCH)):
            rows.append(net(torch.from_numpy(np.stack(batch))).float().flatten(1).numpy())
    features_ND = np.concatenate(rows)
    vectors_ND: NDArray[np.float32] = features_ND / np.linalg.norm(
        features_ND, axis=1, keepdims=True
    )
    return vectors_ND
