"""Whole cases: several photos, several cases in one batch, similar cases, strange photos."""

import io
import pickle
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pdf_words import words_of
from PIL import Image
from rich.console import Console
from skin_photo import skin_photo
from some_features import Alike
from tiny_bundle import pack_tiny

from skindx.api.predictions import iter_predictions
from skindx.core.errors import UserError
from skindx.diagnosis import record_assembly
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.diagnose import answer, answer_many
from skindx.diagnosis.photo_checks import Refused, file_hash
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.imaging.decode import decode
from skindx.models.conformal import Conformal
from skindx.models.embedding_index import EmbeddingIndex, IndexRow
from skindx.models.ensemble import Ensemble, EnsembleOutput
from skindx.models.ood.ood_check import OodCheck
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule
from skindx.texts import catalogue
from skindx.ui.page.answer_html import result_html

PHOTOS = tuple(skin_photo(seed=seed) for seed in range(4))


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    rule = Conformal(pictures=100, thresholds={"all": 0.2})
    path = tmp_path_factory.mktemp("cases") / "bundle"
    return Predictor.load(pack_tiny(path, conformal=rule).path)


def gallery_of(predictor: Predictor, shown: bytes = b"jpeg") -> EmbeddingIndex:
    """Return a gallery of the four photos, of which the last may not be shown."""
    keys = predictor.taxonomy.keys
    rows = [IndexRow(f"{n:064}", keys[n], n, "CC BY 4.0", creator="A. Creator") for n in range(4)]
    embeddings_ND = predictor.predict_with_features([decode(photo) for photo in PHOTOS])[
        1
    ].embeddings_ND
    return EmbeddingIndex.from_rows(rows, embeddings_ND, [shown] * 3 + [b""])


def test_photos_of_a_case_are_averaged_and_shown_one_by_one(predictor: Predictor) -> None:
    said = answer(predictor, Case(PHOTOS[:3], Patient(age=40, skin_type=2)))
    mean_C = np.mean(
        [photo.probabilities_C for photo in predictor.predict([decode(p) for p in PHOTOS[:3]])], 0
    )
    keys = predictor.taxonomy.keys
    for candidate in said.diagnosis.candidates:
        assert candidate.probability == pytest.approx(mean_C[keys.index(candidate.key)])
    assert len(said.diagnosis.photos) == len(said.views) == 3
    assert said.diagnosis.patient.age == 40
    assert {candidate.key for candidate in said.diagnosis.candidates} >= {
        keys[n] for n in np.flatnonzero(mean_C >= 0.2)
    }
    for view in said.views:
        assert Image.open(io.BytesIO(view.jpeg)).size == (240, 180)
        assert Image.open(io.BytesIO(view.heat)).size == (320, 240)


def test_photos_that_may_show_two_lesions_are_marked(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Case(PHOTOS[:2])
    assert not answer(predictor, two).diagnosis.photos_differ
    assert "photos_differ" not in answer(predictor, two).diagnosis.model_dump()
    monkeypatch.setattr(record_assembly, "LEAST_ALIKE", 1.01)
    assert answer(predictor, two).diagnosis.photos_differ
    monkeypatch.undo()
    apart = np.eye(3, dtype=np.float32)
    assert record_assembly.do_photos_differ(apart)
    assert not record_assembly.do_photos_differ(apart[:1])


def test_the_heat_map_is_of_the_condition_that_decides_the_next_step(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def heat(*parts: Any) -> list[NDArray[np.float32] | None]:
        asked.extend(parts[2])
        return plain(*parts)

    plain = record_assembly.heat_maps
    monkeypatch.setattr(record_assembly, "heat_maps", heat)
    (first, *_, last) = predictor.predict([decode(PHOTOS[0])])[0].probabilities_C.argsort()[::-1]
    classes = [
        one.model_copy(update={"urgency": "urgent" if n == last else "routine"})
        for n, one in enumerate(predictor.taxonomy.classes)
    ]
    taxonomy = predictor.taxonomy.model_copy(update={"classes": tuple(classes)})
    bundle = replace(predictor.bundle, taxonomy=taxonomy)
    rule = UrgentRiskRule(
        urgent_columns=(int(last),),
        lesions={"all": 57},
        levels=(RiskLevel(miss_rate=0.05, thresholds={"all": 0.0}),),
    )
    bundle = replace(bundle, spec=bundle.spec.model_copy(update={"urgent_risk": rule}))
    diagnosis = answer(replace(predictor, bundle=bundle), Case(PHOTOS[:1])).diagnosis
    assert diagnosis.next_step.urgency == "urgent"
    assert asked == [last]
    assert diagnosis.candidates[0].key == classes[first].key
    assert diagnosis.deciding.key == classes[last].key  # in the record, however unlikely
    assert f"signs of {classes[last].name}" in diagnosis.heat_words


def test_a_batch_answers_as_its_cases_do_alone(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        Case(PHOTOS[:2]),
        Case((b"no photo",)),
        Case(PHOTOS[2:3]),
        Case((PHOTOS[0], skin_photo(blur=9))),
        Case(PHOTOS[1:]),
    ]
    passes = []
    plain = Ensemble.predict_with_features

    def counted(ensemble: Ensemble, images: Sequence[np.ndarray]) -> EnsembleOutput:
        passes.append(len(images))
        return plain(ensemble, images)

    monkeypatch.setattr(Ensemble, "predict_with_features", counted)
    together = answer_many(predictor, cases)
    assert passes == [6]
    for case, found in zip(cases, together, strict=True):
        if isinstance(found, UserError):
            with pytest.raises(Refused) as caught:
                answer(predictor, case)
            assert str(caught.value) == str(found)
            continue
        alone = answer(predictor, case)
        assert found == alone  # to the last digit and the last byte of a heat map
        assert all(view.heat for view in found.views)
    assert isinstance(together[3], Refused)
    assert (together[3].gate, together[3].photo) == ("blur", 1)
    assert answer_many(predictor, []) == []


def test_an_answer_crosses_a_process_border_whole(predictor: Predictor) -> None:
    said = answer(predictor, Case(PHOTOS[:1]))
    assert pickle.loads(pickle.dumps(said)) == said
    assert isinstance(said, CaseAnswer)


def test_similar_cases_come_nearest_first_with_their_credit(predictor: Predictor) -> None:
    with_gallery = replace(predictor, gallery=gallery_of(predictor))
    said = answer(with_gallery, Case((PHOTOS[3],)))
    first, *others = said.diagnosis.similar
    assert (first.key, first.sha256) == (predictor.taxonomy.keys[3], f"{3:064}")
    assert first.name == predictor.taxonomy.classes[3].name
    assert first.similarity == pytest.approx(1, abs=2e-3)
    assert (first.licence, first.credit) == ("CC BY 4.0", "A. Creator")
    assert [other.similarity for other in others] == sorted(
        (other.similarity for other in others), reverse=True
    )
    assert said.thumbnails == (b"", b"jpeg", b"jpeg", b"jpeg")
    without = answer(predictor, Case((PHOTOS[3],)))
    assert (without.diagnosis.similar, without.thumbnails) == ((), ())
    assert "no images to compare" in without.diagnosis.no_similar


def test_a_photo_that_the_model_learned_from_is_called_so_and_is_not_similar_to_itself(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    gallery = gallery_of(predictor, PHOTOS[3])
    rows = [replace(row, sha256=file_hash(PHOTOS[n])) for n, row in enumerate(gallery.rows)]
    rows[1] = replace(rows[1], group=0)  # the lesion of the first
    known = replace(predictor, gallery=replace(gallery, rows=tuple(rows)))
    said = answer(known, Case((PHOTOS[0], skin_photo(seed=9))))
    learned = catalogue.text("remark_learned")
    assert [learned in photo.remarks for photo in said.diagnosis.photos] == [True, False]
    assert {case.sha256 for case in said.diagnosis.similar} == {row.sha256 for row in rows[2:]}
    [row] = next(iter_predictions(known, [PHOTOS[0]])).to_pylist()
    assert row["remarks"].startswith(catalogue.text("remark_learned"))
    console = Console(file=io.StringIO(), width=200)
    print_diagnosis(said.diagnosis, console)
    assert isinstance(console.file, io.StringIO)
    for shown in (console.file.getvalue(), result_html(said, None)):
        assert shown.count(catalogue.text("remark_learned")) == 1
    pdf = words_of(report_pdf(said, None, datetime(2026, 3, 4, tzinfo=UTC)))
    assert "The model learned from this photo" in pdf


def check_of(scores: NDArray[np.float64]) -> OodCheck:
    return OodCheck((Alike(),), scores[:, None])


def test_a_photo_out_of_distribution_is_refused(predictor: Predictor) -> None:
    """Whatever the networks say."""
    known = replace(predictor, ood=check_of(np.full(99, np.inf)))
    said = answer(known, Case(PHOTOS[:1]))
    assert said.diagnosis.familiarity == pytest.approx(1)
    strict = replace(predictor, ood=check_of(np.full(99, -np.inf)))
    with pytest.raises(
        Refused, match=r"^Each of photos 1 to 2: The photo is too unlike the images"
    ) as caught:
        answer(strict, Case(PHOTOS[:2]))
    assert caught.value.gate == "unfamiliar"
    few = np.array([-np.inf] * 96 + [np.inf] * 3)
    doubtful = answer(replace(predictor, ood=check_of(few)), Case(PHOTOS[:1]))
    assert doubtful.diagnosis.familiarity == pytest.approx(0.04)
    assert "is unlike most images" in doubtful.diagnosis.abstained


def test_a_case_of_no_photo_or_of_four_is_none() -> None:
    for photos in ((), PHOTOS):
        with pytest.raises(UserError, match="1 to 3"):
            Case(photos)


def test_a_photo_is_given_once() -> None:
    with pytest.raises(UserError, match="photos 1 and 3 are the same file; give each photo once"):
        Case((PHOTOS[0], PHOTOS[1], PHOTOS[0]))


def test_boxes_are_in_pixels_of_the_whole_photo(tiny_bundle: Path) -> None:
    """A large photo is looked at at a smaller scale; what is told of it is not."""
    predictor = Predictor.load(tiny_bundle)
    (photo,) = answer(predictor, Case((skin_photo(3000, 2000),))).diagnosis.photos
    assert (photo.width, photo.height) == (3000, 2000)
    assert photo.boxes
    assert max(box.x2 for box in photo.boxes) > 1600
    assert all(0 <= box.x1 < box.x2 <= 3000 and 0 <= box.y1 < box.y2 <= 2000 for box in photo.boxes)
