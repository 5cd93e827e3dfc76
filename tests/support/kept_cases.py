"""Answers to keep, made without any network."""

import io
from hashlib import sha256

import numpy as np
from PIL import Image

from skindx.diagnosis.case import Patient
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


def image(seed: int) -> bytes:
    """Return a sharp, sound JPEG that no other seed's resembles."""
    noise = np.random.default_rng(seed).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((320, 240), Image.Resampling.NEAREST).save(file, "JPEG")
    return file.getvalue()


def answer(*seeds: int, patient: Patient | None = None) -> CaseAnswer:
    """Return an answer about photos painted from `seeds`."""
    views = tuple(PhotoView(image(seed)) for seed in seeds)
    return CaseAnswer(
        Diagnosis(
            next_step=NextStep(urgency="soon", advice="See a clinician.", because="It may grow."),
            candidates=(
                Candidate(
                    key="Nevus",
                    name="Nevus (mole)",
                    icd10="D22.9",
                    probability=0.8,
                    description="An ordinary mole.",
                    urgency="routine",
                ),
            ),
            votes=(Vote(member="one", key="Nevus", probability=0.8),),
            photos=tuple(
                Photo(width=320, height=240, sha256=sha256(view.jpeg).hexdigest()) for view in views
            ),
            patient=patient or Patient(),
            source=Source(
                name="b", created="2026", version="0", calibrated=True, taxonomy="t", review="r"
            ),
        ),
        views,
    )
