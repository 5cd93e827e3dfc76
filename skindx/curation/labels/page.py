"""The ranked list of doubtful labels as a CSV, and as a page that needs nothing else."""

import dataclasses
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_csv, write_text
from skindx.core.text import html_environment, printable
from skindx.curation.labels.review import Doubt, LabelReview
from skindx.data.decisions import write_flags
from skindx.data.layout import LABEL_REVIEW
from skindx.data.manifest import Record
from skindx.data.stored_image import read_image
from skindx.imaging.sandboxed_images import small_jpeg

TABLE, PAGE = "label_review.csv", LABEL_REVIEW
TEMPLATE = "label_review.html.jinja"
SHOWN = 300
"""Images on the page: about 2 MB; the table has them all."""
_SIDE = 176

Read = Callable[[Doubt], NDArray[np.uint8]]


def write_review(dataset: Path, review: LabelReview, records: dict[str, Record]) -> None:
    """Write the table, the page and the flags of reason `label` into the dataset folder."""
    names = [field.name for field in dataclasses.fields(Doubt)]
    write_csv(dataset / TABLE, names, map(dataclasses.astuple, review.doubts))
    page = render(review, dataset.name, lambda doubt: read_image(dataset, records[doubt.sha256]))
    write_text(dataset / PAGE, page)
    write_flags(dataset, [doubt.flag for doubt in review.doubts], ["label"])


def render(review: LabelReview, name: str, read: Read) -> str:
    """Return the page as HTML that is well-formed XML too; every value is escaped."""
    environment = html_environment("skindx.curation.labels", ".")
    environment.filters["plain"] = printable
    shown = [
        (doubt, b64encode(small_jpeg(read(doubt), _SIDE)).decode())
        for doubt in review.doubts[:SHOWN]
    ]
    return environment.get_template(TEMPLATE).render(review=review, name=name, shown=shown)
