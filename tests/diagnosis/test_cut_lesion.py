"""An answer of whose lesion the networks saw a part says so, wherever it is read."""

import io
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from clinical_answers import answered
from pdf_words import words_of
from PIL import Image
from rich.console import Console

import skindx
from skindx.api.model import Model
from skindx.clinic.fhir_observations import photo_valid
from skindx.clinic.narrative import sections
from skindx.diagnosis.answer_texts import less_sure
from skindx.diagnosis.network_gates import cut_text
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import Photo
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.imaging.cut_lesions import Cut
from skindx.imaging.decode import decode
from skindx.ui.http.answer_rows import csv_line, row_of
from skindx.ui.page.answer_html import result_html
from skindx.ui.uploads import cut_as_seen

SAYS = "Part of the lesion seems to lie outside the square"


def photo(x: float, radius: float) -> bytes:
    random = np.random.default_rng(0)
    pixels = np.array([205, 152, 118]) * (1 + random.normal(0, 0.03, (240, 320, 1)))
    down, across = np.mgrid[:240, :320] / 240
    pixels[np.hypot(down - 0.5, across - x) < radius] *= 0.5
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> Model:
    return skindx.Model(replace(Predictor.load(tiny_bundle), detector=None))


def test_every_output_says_that_part_of_the_lesion_was_not_seen(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = photo(0.4, 0.35)
    answer = model.diagnose(data)
    record = answer.diagnosis
    assert record.photos[0].cut_by == "square"
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)  # its letters can be read in the file
    terminal = io.StringIO()
    print_diagnosis(record, Console(file=terminal, width=500))
    outputs = {
        "page": result_html(answer._answered, None),
        "PDF": words_of(answer.pdf()).replace("\n", " "),
        "terminal": terminal.getvalue(),
        "record": json.dumps(answer.to_dict()),
        "FHIR": json.dumps(photo_valid(record, 0)),
        "DICOM SR": str(sections(record, None, datetime.now().astimezone())),
        "CSV of the page": csv_line({"file": "a", "sha256": "", **row_of(answer._answered)}),
        "predictions": str(model.predict([data]).column("remarks").to_pylist()),
    }
    assert [name for name, text in outputs.items() if SAYS not in text] == []


def test_what_the_form_found_stands_on_the_answer_and_on_page_1(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = model.diagnose(photo(0.667, 0.2))._answered
    said = cut_as_seen(answered, ["edge"])
    (seen,) = said.diagnosis.photos
    assert (seen.cut_by, cut_as_seen(said, ["square"])) == ("edge", said)
    assert cut_as_seen(answered, []) == answered == cut_as_seen(answered, [""])
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    printed = report_pdf(said, None, datetime.now().astimezone())
    first, *_ = words_of(printed).replace("\n", " ").split("For the patient")
    assert "The lesion seems to reach the edge of the photo, so part of it is missing." in first


def test_a_lesion_within_the_square_brings_no_remark(model: Model) -> None:
    record = model.diagnose(photo(0.667, 0.2)).diagnosis
    assert (record.photos[0].cut_by, record.photos[0].remarks) == ("", ())


def test_networks_that_see_whole_photos_miss_what_the_edge_cuts(model: Model) -> None:
    predictor = model._predictor
    spec = predictor.bundle.spec
    whole = [
        one.classifier.preprocess.model_copy(update={"frame": "whole"}) for one in spec.members
    ]
    members = tuple(
        one.model_copy(
            update={"classifier": one.classifier.model_copy(update={"preprocess": preprocess})}
        )
        for one, preprocess in zip(spec.members, whole, strict=True)
    )
    bundle = replace(predictor.bundle, spec=spec.model_copy(update={"members": members}))
    sees_all = skindx.Model(replace(predictor, bundle=bundle))
    for data, cut in ((photo(0.4, 0.35), ""), (photo(0.3, 0.35), "edge")):
        (seen,) = sees_all.diagnose(data).diagnosis.photos
        assert seen.cut_by == cut
        assert seen.remarks == ((cut_text("edge"),) if cut else ())


def test_the_detectors_box_decides_in_its_place(model: Model, tiny_bundle: Path) -> None:
    """Its detector is untrained: whatever box it finds best is compared with the square."""
    data = photo(0.667, 0.2)
    answer = skindx.load(tiny_bundle).diagnose(data)
    (seen,) = answer.diagnosis.photos
    assert seen.square is not None
    if not seen.boxes:
        pytest.skip("the untrained detector outlines nothing")
    box, (left, top, right, bottom) = seen.boxes[0], seen.square
    height, width = decode(data).shape[:2]
    edge = 0.005 * max(height, width)
    at_edge = min(box.x1, box.y1, width - box.x2, height - box.y2) <= edge
    inside = (min(box.x2, right) - max(box.x1, left)) * (min(box.y2, bottom) - max(box.y1, top))
    leaves = inside < 0.98 * (box.x2 - box.x1) * (box.y2 - box.y1)
    assert seen.cut_by == ("edge" if at_edge else "square" if leaves else "")


def test_records_of_before_say_nothing_of_it() -> None:
    assert Photo(width=9, height=9, sha256="0" * 64).cut_by == ""


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        (("edge",), "Part of the lesion seems cut off, so"),
        (("", "square"), "Part of the lesion seems cut off in photo 2, so"),
        (("edge", "", "edge"), "Part of the lesion seems cut off in photos 1 and 3, so"),
        (("", ""), ""),
    ],
)
def test_probabilities_of_a_lesion_that_is_cut_are_less_reliable(
    cuts: tuple[Cut, ...], said: str
) -> None:
    plain = answered(photos=len(cuts))
    photos = zip(plain.diagnosis.photos, cuts, strict=True)
    seen = tuple(one.model_copy(update={"cut_by": cut}) for one, cut in photos)
    diagnosis = plain.diagnosis.model_copy(update={"photos": seen})
    whole = f"{said} the probabilities are less reliable." if said else ""
    assert less_sure(diagnosis) == whole
    html = result_html(replace(plain, diagnosis=diagnosis), None)
    assert ("less reliable" in html) == bool(said)
    assert html.find(whole) < html.find('class="sx-percent"')
    assert less_sure(diagnosis.model_copy(update={"abstained": "Unsure."})) == ""
