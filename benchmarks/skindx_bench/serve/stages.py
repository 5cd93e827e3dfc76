"""Where the processor time of an answer goes, stage by stage."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from skindx.diagnosis.case import Case
from skindx.diagnosis.predictor import Predictor
from skindx_bench.harness.clock import Figure, median

REST = "the rest"


def _parts(predictor: Predictor) -> dict[str, tuple[tuple[Any, str], ...]]:
    """Return, for each stage, the functions that do it, as (where they are looked up, name)."""
    from skindx.diagnosis import diagnose, heat_maps, photo_checks

    return {
        "decode and scale the photo": ((photo_checks, "open_photo"),),
        "gates of light, skin and blur": ((photo_checks, "inspect"),),
        "networks": ((type(predictor.ensemble), "predict_with_features"),),
        "detector": ((type(predictor.detector), "detect"),),
        "heat map": ((heat_maps, "heat_maps"), (heat_maps, "heat_png")),
        "similar cases": ((diagnose, "similar_cases"),),
        "text of the answer": ((diagnose, "conclude"), (diagnose, "assemble")),
        "photo for the page": ((diagnose, "view_jpeg"),),
    }


def measure_stages(predictor: Predictor, photos: Sequence[bytes], rounds: int) -> dict[str, Figure]:
    """Return the processor seconds of each stage of `answer`, a photo; the last one is the rest.

    The time of a stage inside another one counts for the inner one alone.
    """
    from skindx.diagnosis.diagnose import answer

    seconds: dict[str, list[float]] = {}
    with _watched(_parts(predictor)) as taken_s:
        for turn in range(-1, rounds):
            taken_s.update(dict.fromkeys(taken_s, 0.0))
            start = time.process_time()
            for photo in photos:
                answer(predictor, Case((photo,)))
            whole_s = time.process_time() - start
            if turn >= 0:
                for stage, stage_s in taken_s.items():
                    seconds.setdefault(stage, []).append(stage_s / len(photos))
                rest_s = whole_s - sum(taken_s.values())
                seconds.setdefault(REST, []).append(rest_s / len(photos))
    return {stage: median(samples, "s") for stage, samples in seconds.items()}


@contextmanager
def _watched(parts: dict[str, tuple[tuple[Any, str], ...]]) -> Iterator[dict[str, float]]:
    """Count the seconds of functions in the block, by stage."""
    taken_s, inner_s = dict.fromkeys(parts, 0.0), [0.0]

    def watch(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            inner_s.append(0.0)
            start = time.process_time()
            try:
                return function(*arguments, **keywords)
            finally:
                whole_s = time.process_time() - start
                taken_s[stage] += whole_s - inner_s.pop()
                inner_s[-1] += whole_s

        return timed

    before = [(owner, name, getattr(owner, name)) for own in parts.values() for owner, name in own]
    try:
        for stage, own in parts.items():
            for owner, name in own:
                setattr(owner, name, watch(stage, getattr(owner, name)))
        yield taken_s
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)
