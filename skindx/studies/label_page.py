"""The ranked list of doubtful labels as a CSV, and as a page that needs nothing else."""

import base64
import csv
import dataclasses
import io
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import Record
from skindx.data.review import write_flags
from skindx.files import write_text
from skindx.studies.label_review import Doubt, LabelReview
from skindx.studies.stored_picture import read_picture
from skindx.words import printable

TABLE, PAGE = "label_review.csv", "label_review.html"
TEMPLATE = "label_review.html.jinja"
SHOWN = 300
"""Pictures on the page: about 2 MB; the table has them all."""
_SIDE = 176

Read = Callable[[Doubt], NDArray[np.uint8]]


def write_review(dataset: Path, review: LabelReview, records: dict[str, Record]) -> None:
    """Write the table, the page and the flags of reason `label` into the dataset folder."""
    write_text(dataset / TABLE, table(review))
    page = render(review, dataset.name, lambda doubt: read_picture(dataset, records[doubt.sha256]))
    write_text(dataset / PAGE, page)
    write_flags(dataset, [doubt.flag for doubt in review.doubts], ["label"])


def table(review: LabelReview) -> str:
    """Return the list as CSV."""
    names = [field.name for field in dataclasses.fields(Doubt)]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(doubt) for doubt in review.doubts)
    return buffer.getvalue()


def render(review: LabelReview, name: str, read: Read) -> str:
    """Return the page as HTML that is well-formed XML too; every value is escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["plain"] = printable
    source = resources.files("skindx.studies").joinpath(TEMPLATE).read_text(encoding="utf-8")
    shown = [(doubt, _jpeg(read(doubt))) for doubt in review.doubts[:SHOWN]]
    return environment.from_string(source).render(review=review, name=name, shown=shown)


def _jpeg(pixels_HWC: NDArray[np.uint8]) -> str:
    from PIL import Image

    picture = Image.fromarray(pixels_HWC)
    picture.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return base64.b64encode(buffer.getvalue()).decode("ascii")
