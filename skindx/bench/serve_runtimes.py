"""How fast exported bodies are beside eager PyTorch: one thread, one picture."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from skindx.bench.clock import Figure, interleave, median, ratio
from skindx.models.classifier import ClassifierSettings, build_classifier
from skindx.models.exports.making import make_body
from skindx.models.exports.runtimes import load_body, unsupported
from skindx.models.exports.spec import SUFFIX, Precision, Runtime
from skindx.models.preprocess import Preprocess

PEERS: dict[str, tuple[Runtime, Precision]] = {
    "ort_fp32": ("onnx", "fp32"),
    "openvino_bf16": ("openvino", "bf16"),
}


def time_runtimes(
    models: Sequence[str], side: int, rounds: int, repeats: int
) -> tuple[dict[str, Figure], dict[str, Figure], list[str]]:
    """Return the least ratio of each runtime, all ratios and times, and what was left out.

    A turn is `repeats` pictures, one after the other, from uint8 square to logits.
    """
    torch.set_num_threads(1)
    left_out = [why for to, precision in PEERS.values() if (why := unsupported(to, precision))]
    peers = {name: each for name, each in PEERS.items() if not unsupported(*each)}
    ratios: dict[str, list[Figure]] = {name: [] for name in peers}
    all_figures: dict[str, Figure] = {}
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            candidates = _candidates(model, side, repeats, peers, Path(folder))
            seconds = interleave(candidates, rounds)
        for name, samples in seconds.items():
            ms = [1000 * each / repeats for each in samples]
            all_figures[f"{model}, {name}"] = median(ms, "ms")
        for name in peers:
            ratios[name].append(ratio(seconds[name], seconds["eager"]))
            all_figures[f"{model}, {name}_over_eager"] = ratios[name][-1]
    least = {
        f"{name}_over_eager": min(each, key=lambda figure: figure.value)
        for name, each in ratios.items()
    }
    return least, all_figures, left_out


def _candidates(
    model: str, side: int, repeats: int, peers: dict[str, tuple[Runtime, Precision]], folder: Path
) -> dict[str, Callable[[], object]]:
    preprocess = Preprocess(size=side)
    classifier = build_classifier(ClassifierSettings(model=model, preprocess=preprocess), 9).eval()
    bodies = {"eager": classifier.features}
    for name, (to, precision) in peers.items():
        file = folder / f"{name}{SUFFIX[to]}"
        make_body(file, classifier, preprocess, to, precision)
        bodies[name] = load_body(file, to, precision)
    picture = np.random.default_rng(0).integers(0, 256, (1, side, side, 3), dtype=np.uint8)
    square = torch.from_numpy(picture)

    def turns(body: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
        @torch.inference_mode()
        def turn() -> None:
            for _ in range(repeats):
                classifier.head(body(square))

        return turn

    return {name: turns(body) for name, body in bodies.items()}
