"""A run over many photos: it answers those that have no answer yet, then writes their table."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.api import predictions
from skindx.api.answer_file import AnswerCounts, AnswerPart, check_output, open_part, write_table
from skindx.core.atomic_files import sha256_file
from skindx.core.progress import Progress
from skindx.diagnosis.photo_list import PhotoList
from skindx.diagnosis.record_assembly import bundle_version

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor


def answer_photos(
    listed: PhotoList,
    predictor: "Predictor",
    out: Path,
    *,
    page: Callable[[AnswerPart, AnswerCounts], None] | None = None,
    write: Callable[..., object] = write_table,
    prevalence: Path | None = None,
    progress: Progress,
) -> AnswerCounts:
    """`write` the answers about listed photos to `out`, and let `page` summarise them.

    What an earlier run of the same arguments answered is not answered again. `prevalence` is the
    file that the predictor was loaded with. Raises UserError, after which the same command goes on.
    """
    schema = predictions.schema_of(predictor)
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
        batches = predictions.iter_predictions(
            predictor,
            [photo.path for photo in waiting],
            facts=[photo.patient.model_dump(exclude_defaults=True) for photo in waiting],
        )
        for batch in batches:
            rows = batch.to_pylist()
            part.add(waiting[at : at + len(rows)], rows)
            at += len(rows)
            progress("photos", before + at, len(photos))
        write(out, schema, part.rows(photos))
        counts = AnswerCounts.of(part.rows(photos))
        if page is not None:
            page(part, counts)
        part_path.unlink()
    return counts
