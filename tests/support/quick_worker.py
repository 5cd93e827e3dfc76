"""A worker without any network, which is ready at once; a photo says what is to be done with it."""

import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import (
    Candidate,
    CaseAnswer,
    Diagnosis,
    NextStep,
    Photo,
    PhotoView,
    Source,
    Vote,
)
from skindx.ui.diagnosis_pool import Answerer, serve_cases


def one(case: Case) -> CaseAnswer | UserError:
    photo = case.photos[0]
    if photo == b"refuse":
        return Refused("blur", "it is blurred.", 0)
    if photo == b"wrong":
        return UserError("it is wrong.")
    if photo == b"break":
        raise RuntimeError("it breaks")
    if photo == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    if photo == b"hang":
        time.sleep(600)
    candidate = Candidate(
        key="a", name="A", icd10="", probability=0.5, description="", urgency="routine"
    )
    diagnosis = Diagnosis(
        next_step=NextStep(urgency="routine", advice="Rest.", because="It is a test."),
        candidates=(candidate,),
        votes=(Vote(member="one", key="a", probability=0.5),),
        photos=(Photo(width=1, height=1, sha256=hashlib.sha256(photo).hexdigest()),),
        patient=case.patient,
        source=Source(
            name="quick", created="", version="", calibrated=True, taxonomy="", review=""
        ),
    )
    return CaseAnswer(diagnosis, (PhotoView(photo * 1000, b"heat"),), (b"", b"thumbnail"))


def answer_many(cases: Sequence[Case]) -> list[CaseAnswer | UserError]:
    return [one(case) for case in cases]


def load() -> Answerer:
    if "unusable" in sys.argv:
        raise UserError("the bundle is damaged.")
    return answer_many


if __name__ == "__main__":
    descriptor, folder = sys.argv[-2:]
    with socket.socket(fileno=int(descriptor)) as connection:
        serve_cases(connection, Path(folder), load)
