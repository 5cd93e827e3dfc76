"""Pool recall and false links of some runs: `python -m skindx_bench.data.clean_recall FILE ...`.

The package ships the answer, so that the summary of a build can say how much its search finds.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core.atomic_files import write_json
from skindx.data.summary import RECALL_FILE
from skindx.metrics import share_interval

_KEY = "copies_recall_"


def pooled(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return found and n by kind over all runs, the interval of the share, and where it is from."""
    kinds = [key for key in runs[0]["figures"] if key.startswith(_KEY)]
    recall = {}
    for kind in kinds:
        figures = [run["figures"][kind] for run in runs]
        found = [round(figure["value"] * figure["n"]) for figure in figures]
        hits = [
            hit
            for count, figure in zip(found, figures, strict=True)
            for hit in [True] * count + [False] * (figure["n"] - count)
        ]
        share = share_interval(np.array(hits), np.arange(len(hits)))
        recall[kind.removeprefix(_KEY)] = {
            "found": sum(found),
            "n": len(hits),
            "low": share.low,
            "high": share.high,
        }
    links = [run["figures"]["false_links"] for run in runs]
    return {
        "bench": "clean",
        "date": max(run["date"] for run in runs),
        "versions": runs[0]["versions"],
        "runs": len(runs),
        "recall": recall,
        "false_links": {
            "false": sum(round(figure["value"]) for figure in links),
            "links": sum(figure["n"] for figure in links),
        },
    }


def main(arguments: list[str]) -> int:
    """Pool the runs, and write what the package ships."""
    write_json(
        RECALL_FILE, pooled([json.loads(Path(name).read_text("utf-8")) for name in arguments])
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
