"""Answers made up for the page's tests: everything that one can hold, and as little as it may."""

import asyncio
import hashlib
import io
from dataclasses import replace

import numpy as np
from PIL import Image

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.photo_checks import Gate, Refusal, Refused
from skindx.diagnosis.record import (
    Candidate,
    CaseAnswer,
    Diagnosis,
    LesionBox,
    NextStep,
    Photo,
    PhotoView,
    Similar,
    Source,
    Vote,
)
from skindx.diagnosis.record_figures import ModalitySaid, Promise
from skindx.diagnosis.scope import known_names
from skindx.models.conformal import Share
from skindx.taxonomy import Urgency, load_taxonomy, unknown_to

BLURRED, PLAIN, BUSY, BROKEN, DARK = 64, 65, 66, 67, 68
WIDE, FAR, SLOW, DIFFER, OTHER, CLOSE = 800, 801, 802, 803, 804, 805
"""Widths of photos that the painter answers in another way."""
URGENCIES: dict[int, Urgency] = {100: "urgent", 101: "soon", 102: "routine", 103: "unknown"}
_FEATURES = {101: [1, 0], OTHER: [0, 1]}
"""Features of two lesions that look different; no other painted answer has any."""
_REFUSED: dict[int, tuple[Gate, str]] = {
    BLURRED: (
        "blur",
        "the photo is blurred; hold still, tap on the lesion to focus, and take it again.",
    ),
    DARK: ("light", "the photo is too dark; take it again in daylight."),
}


class Painter:
    """Answers every case at once; the width of the first photo says how."""

    async def diagnose(self, case: Case) -> CaseAnswer:
        widths = [Image.open(io.BytesIO(photo)).width for photo in case.photos]
        if SLOW in widths:
            await asyncio.sleep(2.3)  # beyond the two seconds after a stream ends
        refusals = [
            Refusal(place, *_REFUSED[width])
            for place, width in enumerate(widths)
            if width in _REFUSED
        ]
        if CLOSE in widths and not case.modality:
            refusals = [
                Refusal(place, "modality", "it seems to be no such photo.", unless="dermoscopic")
                for place in range(len(widths))
            ]
        if refusals:
            raise Refused.from_photos(refusals, len(widths))
        if BUSY in widths:
            raise UserError("too many people ask at the moment; try again in a minute.")
        if BROKEN in widths:
            raise RuntimeError("a secret of the server")
        if CLOSE in widths and DIFFER not in widths:
            close = rich(case, "urgent")
            said = ModalitySaid(kind="dermoscopic", photos=(1,))
            update = {"modality_said": said}
            return replace(close, diagnosis=close.diagnosis.model_copy(update=update))
        if PLAIN in widths:
            return plain(case)
        if WIDE in widths:
            return wide(case)
        if FAR in widths:
            message = "the photo is unlike the training images; take it again, near and sharp."
            (seen,) = wide(case).diagnosis.photos
            raise Refused.from_photos([Refusal(0, "unfamiliar", message, seen=seen)], 1)
        if DIFFER in widths[1:]:
            differing = rich(case, "unknown")
            update = {"photos_differ": True}
            return replace(differing, diagnosis=differing.diagnosis.model_copy(update=update))
        painted = rich(case, URGENCIES.get(widths[0], "soon"))
        files = zip(painted.diagnosis.photos, case.photos, strict=True)
        photos = tuple(
            one.model_copy(update={"sha256": hashlib.sha256(file).hexdigest()})
            for one, file in files
        )
        update = {"photos": photos}
        painted = replace(painted, diagnosis=painted.diagnosis.model_copy(update=update))
        return painted if widths[0] not in _FEATURES else _with_features(painted, widths[0])


def rich(case: Case, urgency: Urgency = "soon") -> CaseAnswer:
    classes = load_taxonomy("isic9").classes
    shares = (0.46, 0.27, 0.12, 0.08, 0.005)
    candidates = tuple(
        Candidate(
            key=skin_class.key,
            name=skin_class.name,
            icd10=skin_class.icd10,
            probability=share,
            description=skin_class.description,
            urgency=urgency if place == 0 else skin_class.urgency,
            in_set=place < 3,
        )
        for place, (skin_class, share) in enumerate(zip(classes, shares, strict=False))
    )
    abstained = urgency == "unknown"
    heat = b"" if abstained else _heat()
    views = tuple(PhotoView(_shown(photo), heat) for photo in case.photos)
    photos = tuple(
        _photo(view, remarks=("A little dark; daylight shows more.",) if number else ())
        for number, view in enumerate(views)
    )
    similar = tuple(
        Similar(
            key=skin_class.key,
            name=skin_class.name,
            similarity=0.94 - 0.06 * place,
            sha256=f"{place}" * 64,
            licence="CC BY 4.0" if place < 3 else "CC BY-NC-ND 4.0",
            credit="A. Painter",
            page_url=f"https://example.org/{place}" if place else "javascript:alert(1)",
        )
        for place, skin_class in enumerate(classes[:4])
    )
    thumbnail = views[0].jpeg
    return CaseAnswer(
        Diagnosis(
            next_step=_step(urgency, candidates[0].name),
            abstained="Three conditions are about as likely, and one of them needs a clinician."
            if abstained
            else "",
            candidates=candidates,
            promise=Promise(
                level=0.9,
                pictures=232,
                urgent_missed=Share(value=0.031, low=0.008, high=0.079, pictures=64),
            ),
            votes=(
                Vote(member="resnet50", key=classes[0].key, probability=0.52),
                Vote(member="mobilenetv2_100", key=classes[1].key, probability=0.41),
            ),
            disagreement=0.21,
            familiarity=0.38,
            known=known_names(classes),
            unknown_urgent=tuple(skin_class.name for skin_class in unknown_to(classes)),
            photos=photos,
            similar=similar,
            patient=case.patient,
            source=_source(calibrated=True),
        ),
        views,
        (thumbnail, thumbnail, thumbnail, b""),
    )


def _with_features(answer: CaseAnswer, width: int) -> CaseAnswer:
    source = answer.diagnosis.source.model_copy(update={"digest": "cd" * 32})
    diagnosis = answer.diagnosis.model_copy(update={"source": source})
    packed = np.array(_FEATURES[width], "<f2").tobytes()
    return replace(answer, diagnosis=diagnosis, features=(packed,) * len(answer.views))


def wide(case: Case) -> CaseAnswer:
    """Return an answer about a photo with several small lesions."""
    answer = rich(case, "unknown")
    (photo,) = answer.diagnosis.photos
    side = 0.05 * photo.height
    boxes = tuple(
        LesionBox(x1=x, y1=side, x2=x + side, y2=2 * side, label="lesion", score=0.5)
        for x in (side, 3 * side, 5 * side, 7 * side)
    )
    photos = (photo.model_copy(update={"boxes": boxes}),)
    return replace(answer, diagnosis=answer.diagnosis.model_copy(update={"photos": photos}))


def plain(case: Case | None = None, name: str = "<script>alert(1)</script>") -> CaseAnswer:
    """Return what a bundle of an older version can say."""
    view = PhotoView(_shown(case.photos[0] if case else jpeg(80, 60)))
    return CaseAnswer(
        Diagnosis(
            next_step=_step("unknown", name),
            candidates=(
                Candidate(
                    key="a",
                    name=name,
                    icd10="",
                    probability=0.7,
                    description="<b>bold</b>",
                    urgency="unknown",
                ),
            ),
            votes=(Vote(member="only", key="a", probability=0.7),),
            photos=(_photo(view, boxes=False),),
            patient=case.patient if case else Patient(),
            source=_source(calibrated=False),
        ),
        (view,),
    )


def jpeg(width: int, height: int, seed: int = 1) -> bytes:
    """Return a photo of noise in the colour of skin."""
    noise = np.random.default_rng(seed).integers(-20, 20, (6, 8, 3))
    pixels = (np.array([196, 142, 118]) + noise).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((width, height)).save(file, "JPEG")
    return file.getvalue()


def _shown(photo: bytes) -> bytes:
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    image.thumbnail((1280, 1280))
    file = io.BytesIO()
    image.save(file, "JPEG")
    return file.getvalue()


def _heat() -> bytes:
    y, x = np.mgrid[-1:1:24j, -1:1:32j]
    warm = np.exp(-3 * (x**2 + y**2))
    pixels = np.stack([255 * warm, 90 * warm, 40 * warm, 190 * warm], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((256, 192)).save(file, "PNG")
    return file.getvalue()


def _photo(view: PhotoView, *, boxes: bool = True, remarks: tuple[str, ...] = ()) -> Photo:
    width, height = Image.open(io.BytesIO(view.jpeg)).size
    box = LesionBox(
        x1=0.25 * width,
        y1=0.2 * height,
        x2=0.8 * width,
        y2=0.85 * height,
        label="lesion",
        score=0.8,
    )
    return Photo(
        width=width,
        height=height,
        sha256="0" * 64,
        boxes=(box,) if boxes else None,
        no_boxes="" if boxes else "The bundle has no lesion detector, so no lesion is outlined.",
        remarks=remarks,
    )


def _step(urgency: Urgency, name: str) -> NextStep:
    classes = {skin_class.urgency: skin_class for skin_class in load_taxonomy("isic9").classes}
    advice = classes[urgency].advice if urgency in classes else "See a clinician."
    because = f"{name} ({urgency}) is the most urgent of the 3 conditions named."
    return NextStep(urgency=urgency, advice=advice, because=because)


def _source(*, calibrated: bool) -> Source:
    return Source(
        name="painted",
        created="2026-01-02T03:04:05+00:00",
        version="ab" * 32,
        calibrated=calibrated,
        taxonomy="ISIC, 9 classes",
        review="not clinically reviewed",
    )
