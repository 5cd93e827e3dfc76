"""A run over many photos: it answers those that have no answer yet, then writes table and page."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.core.progress import Progress
from skindx.diagnosis.many.answer_file import check_output, open_part, write_table
from skindx.diagnosis.many.answers_page import AnswerCounts, write_page
from skindx.diagnosis.many.photo_list import ListedPhoto, PhotoList
from skindx.diagnosis.record_assembly import bundle_version

if TYPE_CHECKING:
    import pyarrow as pa

    from skindx.diagnosis.predictor import Predictor

Predict = Callable[[Sequence[ListedPhoto]], Iterator["pa.RecordBatch"]]
"""Yields tables of predictions, one row a photo, in the order of the photos."""


def check_page(page: Path | None) -> None:
    """Raise UserError for a summary that would not be a page."""
    if page is not None and (page.suffix.lower() not in (".html", ".htm") or page.is_dir()):
        raise UserError(f"--summary {page} is no page; name it with .html.")


def answer_photos(
    listed: PhotoList,
    predictor: "Predictor",
    predict: Predict,
    schema: "pa.Schema",
    out: Path,
    *,
    page: Path | None = None,
    prevalence: Path | None = None,
    progress: Progress,
) -> AnswerCounts:
    """Write the answers about listed photos to `out`, and a summary to `page`.

    What an earlier run of the same arguments answered is not answered again. `schema` are the
    columns of `predict`. Raises UserError, after which the same command goes on.
    """
    part_path = check_output(out)
    origin = {
        "bundle": bundle_version(predictor.bundle),
        "folder or table": str(listed.source.resolve()),
        "version of the table": listed.digest,
        "miss rate": predictor.miss_rate,
        "prevalence": sha256_file(prevalence) if prevalence else "",
        "set of columns": [str(column) for column in schema],
    }
    photos = listed.photos
    with open_part(part_path, origin) as part:
        waiting = [photo for photo in photos if part.lacks(photo)]
        before, at = len(photos) - len(waiting), 0
        progress("photos", before, len(photos))
        for batch in predict(waiting) if waiting else ():
            rows = batch.to_pylist()
            part.add(waiting[at : at + len(rows)], rows)
            at += len(rows)
            progress("photos", before + at, len(photos))
        write_table(out, schema, part.rows(photos))
        counts = AnswerCounts.of(part.rows(photos))
        if page is not None:
            write_page(page, listed, part, counts, predictor, table=out, progress=progress)
        part_path.unlink()
    return counts
