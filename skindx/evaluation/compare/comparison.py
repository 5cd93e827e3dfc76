"""A comparison on disk: of two evaluations, or of two bundles that are evaluated for it."""

from collections.abc import Callable
from pathlib import Path

from skindx.core.atomic_files import FolderKind, atomic_folder, write_json
from skindx.core.errors import UserError
from skindx.evaluation.answers import Answers
from skindx.evaluation.compare.compare import Comparison, compare
from skindx.evaluation.compare.page import write_page
from skindx.evaluation.evaluate import Part, evaluate
from skindx.evaluation.predictions import read_predictions
from skindx.models.bundle.bundle_index import INDEX

JSON, PAGE = "comparison.json", "comparison.html"
_EVALUATIONS = ("first", "second")
_COMPARISON = FolderKind("a comparison", JSON, (PAGE, *_EVALUATIONS))


def compare_folders(
    first: Path,
    second: Path,
    out: Path,
    *,
    dataset: Path | None = None,
    split: Part = "test",
    draws: int = 1000,
    progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Compare evaluations or bundles, and write a JSON file and a page to `out`.

    A bundle is evaluated on `dataset` first, into a folder of `out`. Raises UserError for what
    is neither, for a bundle without a dataset, and for what cannot be compared.
    """
    _COMPARISON.check(out)
    if draws < 1:
        raise UserError(f"{draws} bootstrap draws give no interval; ask for 1000.")
    sides = (first, second)
    bundles = [side for side in sides if (side / INDEX).is_file()]
    if bundles and dataset is None:
        raise UserError(f"{bundles[0]} is a bundle; name the images with --dataset.")
    if dataset is not None and not bundles:
        raise UserError(f"{first} and {second} are no bundles; leave out --dataset {dataset}.")
    with atomic_folder(out, _COMPARISON) as folder:

        def answers(side: Path, name: str) -> Answers:
            if dataset is None or side not in bundles:
                return read_predictions(side)
            step = (lambda done, of: progress(name, done, of)) if progress else None
            evaluate(side, dataset, folder / name, split=split, draws=draws, progress=step)
            return read_predictions(folder / name)

        pair = [answers(*given) for given in zip(sides, _EVALUATIONS, strict=True)]
        comparison = compare(pair[0], pair[1], (str(first), str(second)), draws=draws)
        write_json(folder / JSON, comparison.to_dict())
        write_page(folder / PAGE, comparison)
    return comparison
