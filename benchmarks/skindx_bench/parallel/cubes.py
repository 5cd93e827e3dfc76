"""Products on a cube of ranks beside products whose columns and rows are split over as many."""

import statistics
from typing import Any

from skindx_bench.exchange.cluster import Cluster
from skindx_bench.harness.clock import Figure, median, ratio
from skindx_bench.harness.netlab import Link, NetLab
from skindx_bench.parallel.settings import Config

_WORKER = "skindx_bench.parallel.cube_worker"
_FORMS = ("line", "keep", "again")


def compare(settings: Config) -> dict[str, Figure]:
    """Let 1-D and both kinds of 3-D products take turns on an emulated cluster."""
    s, ranks = settings, settings.cube_side**3
    job = {"rows": s.cube_rows, "width": s.cube_width}
    found: dict[str, list[list[dict[str, Any]]]] = {form: [] for form in _FORMS}
    with NetLab(ranks, Link(s.rate_mbit)) as lab, Cluster(lab, ranks, job, _WORKER) as cluster:
        for form in _FORMS:
            cluster.ask("products", form=form)
        for turn in range(s.rounds):
            first = turn % len(_FORMS)
            for form in _FORMS[first:] + _FORMS[:first]:
                found[form].append(cluster.ask("products", form=form))
    seconds = {
        form: [max(float(answer["seconds"]) for answer in turn) for turn in turns]
        for form, turns in found.items()
    }
    sent = {
        form: [statistics.fmean(float(answer["sent"]) for answer in turn) for turn in turns]
        for form, turns in found.items()
    }
    return {
        "cube_over_line": ratio(seconds["keep"], seconds["line"]),
        "cube_again_over_line": ratio(seconds["again"], seconds["line"]),
        **{f"{form}_products_s": median(taken, "s") for form, taken in seconds.items()},
        **{
            f"{form}_products_mb": median([value / 1e6 for value in values], "MB")
            for form, values in sent.items()
        },
        **{
            f"{form}_fewer_bytes": median(
                [line / own for line, own in zip(sent["line"], sent[form], strict=True)],
                "times fewer",
            )
            for form in ("keep", "again")
        },
        **{
            f"{form}_fewer_bytes_by_formula": median([_fewer(s, form)] * 2, "times fewer")
            for form in ("keep", "again")
        },
    }


def _fewer(s: Config, form: str) -> float:
    """Return how many times fewer bytes two products send on the cube."""
    q, ranks = s.cube_side, s.cube_side**3
    x, weight = s.cube_rows * s.cube_width, s.cube_width**2
    line = 4 * (ranks - 1) / ranks * x
    kept = 2 * (2 * x + weight) * (q - 1) / q**3
    again = (x + weight) * (q - 1) / q**3
    return line / (2 * (kept + (again if form == "again" else 0)))
