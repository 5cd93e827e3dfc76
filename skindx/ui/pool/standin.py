"""Until diagnosis answers several cases at once: the same through what it has."""

import hashlib
from collections.abc import Sequence

from skindx.diagnosis.answer import Answer, View
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import diagnose_pixels, open_picture
from skindx.diagnosis.predictor import Predictor
from skindx.errors import UserError
from skindx.ui.html import preview_jpeg


def answer_many(predictor: Predictor, cases: Sequence[Case]) -> list[Answer | UserError]:
    def one(case: Case) -> Answer | UserError:
        try:
            pixels = open_picture(case.photos[0])
            diagnosis = diagnose_pixels(
                predictor, pixels, hashlib.sha256(case.photos[0]).hexdigest()
            )
            return Answer(diagnosis, (View(preview_jpeg(pixels)),))
        except UserError as error:
            return error

    return [one(case) for case in cases]
