"""What the set guarantees: one text, and none where the model abstains."""

import asyncio
import io
import itertools
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from painted_answers import Painter, jpeg
from pdf_words import words_of
from rich.console import Console
from skin_photo import skin_photo

from skindx.data.origin import ImageOrigin
from skindx.diagnosis import decision_texts
from skindx.diagnosis.answer_texts import set_sentence
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer as diagnosed
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer, LesionBox
from skindx.diagnosis.record_figures import MeasuredSets
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.models.conformal import Share
from skindx.taxonomy import load_taxonomy
from skindx.texts import catalogue
from skindx.texts.catalogue import share_text
from skindx.ui.page.answer_html import problem_html, result_html, scope_html, waiting_html
from skindx.ui.page.form_html import intake_html

WHEN = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)


def painted(width: int) -> CaseAnswer:
    return asyncio.run(Painter().diagnose(Case((jpeg(width, 80),))))


def in_terminal(answer: CaseAnswer) -> str:
    console = Console(file=io.StringIO(), width=400)
    print_diagnosis(answer.diagnosis, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def on_paper(answer: CaseAnswer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)  # its letters can be read in the file
    words = words_of(report_pdf(answer, None, WHEN))
    return words.replace("\xa0", " ").replace("\\(", "(").replace("\\)", ")")


def test_terminal_and_paper_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = painted(101)
    said, decided = set_sentence(answer.diagnosis), decision_texts.decided(answer.diagnosis)
    assert "about 90 of 100" in said
    assert any("chosen on" in text for text in decided)
    for shown in (in_terminal(answer), on_paper(answer, monkeypatch)):
        assert all(shown.count(text) == 1 for text in (said, *decided))


def test_a_set_that_holds_a_rarer_condition_than_it_leaves_out_says_why() -> None:
    diagnosis = painted(101).diagnosis
    first, second, third, *_ = diagnosis.candidates
    assert diagnosis.promise
    promise = diagnosis.promise.model_copy(update={"urgent_level": 0.95, "group": "skin_type_5"})
    update = {
        "candidates": tuple(
            one.model_copy(update={"in_set": held})
            for one, held in ((first, True), (second, False), (third, True))
        ),
        "promise": promise,
    }
    swapped = " ".join(decision_texts.decided(diagnosis.model_copy(update=update)))
    assert "one may be named although a likelier condition is not" in swapped
    assert "a true urgent condition in about 95 of 100 photos" in swapped
    assert "232 calibration images of skin type 5" in swapped
    assert "likelier" not in " ".join(decision_texts.decided(diagnosis))


def test_no_measured_figure_is_said_twice() -> None:
    answer = painted(101)
    shares = {
        name: Share(value=0.5, low=0.4 + n / 1000, high=0.6, pictures=90 + n)
        for n, name in enumerate(("coverage", "urgent", "least", "urgent_missed", "urgent_raised"))
    }
    measured = MeasuredSets(split="test", least_name="Nevus", **shares)
    assert answer.diagnosis.promise
    promise = answer.diagnosis.promise.model_copy(update={"measured": measured})
    shown = in_terminal(
        replace(answer, diagnosis=answer.diagnosis.model_copy(update={"promise": promise}))
    )
    said = ("urgent", "least")
    assert all(shown.count(share_text(shares[name])) == 1 for name in said)
    # Errors of the sets are not those of the advice, and nobody is given both.
    assert share_text(shares["urgent_missed"]) not in shown


def test_an_abstention_has_no_guarantee_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = painted(103)
    assert answer.diagnosis.abstained
    assert set_sentence(answer.diagnosis) == ""
    terminal, paper = in_terminal(answer), on_paper(answer, monkeypatch)
    for text in (terminal, paper):
        assert "The model does not know." in text
        assert "of 100 photos" not in text
        assert "What it may be" not in text
    assert "█" not in terminal
    assert "●" not in terminal
    assert "heat map" not in paper


def test_without_sets_the_paper_has_no_empty_column(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = painted(101)
    column, diagnosis = "Named by the model", answer.diagnosis
    assert column in on_paper(answer, monkeypatch)
    candidates = tuple(
        candidate.model_copy(update={"in_set": False}) for candidate in diagnosis.candidates
    )
    fewer = diagnosis.model_copy(update={"candidates": candidates})
    without = replace(answer, diagnosis=fewer)
    paper = on_paper(without, monkeypatch)
    assert column not in paper
    assert all(candidate.name in paper for candidate in candidates)


def test_what_is_known_is_listed_in_terminal_and_on_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = painted(101)
    for text in (in_terminal(answer), on_paper(answer, monkeypatch)):
        assert "The model knows 9 conditions and no others." in text
        assert ", ".join(answer.diagnosis.known[:-1]) in text
        assert "does not know other urgent conditions, among them Merkel cell carcinoma" in text


def with_source(answer: CaseAnswer, learned_from: str) -> CaseAnswer:
    source = answer.diagnosis.source.model_copy(update={"learned_from": learned_from})
    return replace(answer, diagnosis=answer.diagnosis.model_copy(update={"source": source}))


def test_every_answer_of_a_model_of_paintings_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    warning = ImageOrigin(painted="all").warning
    assert "answers nothing about people" in warning
    answer = with_source(painted(101), warning)
    assert warning in in_terminal(answer)
    assert warning in on_paper(answer, monkeypatch)
    page = result_html(answer, None)
    assert page.index(warning) < page.index('class="sx-advice"'), "nobody reads the end of a page"
    assert warning in answer.diagnosis.model_dump_json()
    assert "synthetic" not in result_html(painted(101), None)
    assert warning in scope_html(load_taxonomy("isic9"), warning)


def test_no_chip_says_routine_where_nothing_may_be_said_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = painted(101)
    routine = [c.model_copy(update={"urgency": "routine"}) for c in answer.diagnosis.candidates]
    known = answer.diagnosis.model_copy(update={"candidates": tuple(routine), "abstained": ""})
    assert "sx-chip sx-routine" in result_html(replace(answer, diagnosis=known), None)
    for change in (
        {"unknown_urgent": ("melanoma", "syphilis")},
        {"unknown_urgent": ("squamous cell carcinoma",)},
        {"abstained": "The networks disagree."},
    ):
        doubtful = replace(answer, diagnosis=known.model_copy(update=change))
        assert "sx-chip sx-routine" not in result_html(doubtful, None)
        rows = in_terminal(doubtful).split("  urgency")[1].split("\n")[1 : len(routine) + 1]
        assert not any("routine" in row for row in rows)
        table = on_paper(doubtful, monkeypatch).split("Urgency")[1]
        assert "routine" not in table.split("A dash in the column")[0]


def test_a_detectors_score_is_no_probability_of_a_disease() -> None:
    answer = painted(101)
    box = LesionBox(x1=1, y1=1, x2=40, y2=40, label="lesion", score=0.3)
    photo = answer.diagnosis.photos[0].model_copy(update={"boxes": (box,)})
    boxed = answer.diagnosis.model_copy(update={"photos": (photo,)})
    one = CaseAnswer(boxed, answer.views[:1], answer.thumbnails)
    for text in (in_terminal(one), result_html(one, None)):
        assert "lesion, detector score 0.30" in text
        assert "30 %" not in text.split("detector score")[0].split("outlined")[-1]


def test_tips_intake_and_answers_follow_the_modality(monkeypatch: pytest.MonkeyPatch) -> None:
    dermoscopic, clinical = ImageOrigin(modality="dermoscopic"), ImageOrigin(modality="clinical")
    assert "through the dermatoscope" in waiting_html(dermoscopic)
    assert "through the dermatoscope" not in waiting_html(clinical)
    for images in (dermoscopic, clinical, ImageOrigin(modality="mixed")):
        assert images.expects in intake_html(64, images)  # once, beside the tips
        assert images.expects not in waiting_html(images) + problem_html("no", images)
        answer = painted(101)
        source = answer.diagnosis.source.model_copy(update={"expects": images.expects})
        answer = replace(answer, diagnosis=answer.diagnosis.model_copy(update={"source": source}))
        for text in (in_terminal(answer), on_paper(answer, monkeypatch), result_html(answer, None)):
            assert images.expects in text
    assert "sx-expects" not in intake_html(64, ImageOrigin())


def test_where_networks_see_whole_photos_no_square_is_drawn(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor.load(tiny_bundle)
    frames = {"square": catalogue.text("seen_square"), "whole": catalogue.text("seen_whole", n=1)}
    members = predictor.bundle.spec.members
    for kinds in ("whole", "whole"), ("square", "whole"):
        framed = tuple(
            member.model_copy(update={"classifier": member.classifier.model_copy(update={
                "preprocess": member.classifier.preprocess.model_copy(update={"frame": kind})})})
            for member, kind in zip(members, itertools.cycle(kinds))
        )  # fmt: skip
        spec = predictor.bundle.spec.model_copy(update={"members": framed})
        shown = replace(predictor, bundle=replace(predictor.bundle, spec=spec))
        answer = diagnosed(shown, Case((skin_photo(),)))
        (photo,) = answer.diagnosis.photos
        html, paper = result_html(answer, None), on_paper(answer, monkeypatch)
        assert frames[kinds[0]] in html
        assert frames[kinds[0]][:40] in paper
        assert ("sx-square" in html) == (kinds[0] == "square")
        assert (photo.square == (0, 0, photo.width, photo.height)) == (kinds[0] == "whole")
    assert "NaN" not in intake_html(64, crop=None)
    assert 'data-crop=""' in intake_html(64, crop=None)


def test_the_square_that_the_networks_see_is_drawn(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = diagnosed(Predictor.load(tiny_bundle), Case((skin_photo(),)))
    (photo,) = answer.diagnosis.photos
    assert photo.square is not None
    left, top, right, bottom = photo.square
    side = 0.9 * min(photo.width, photo.height)
    assert right - left == pytest.approx(side)
    assert bottom - top == pytest.approx(side)
    assert left + right == pytest.approx(photo.width)
    assert top + bottom == pytest.approx(photo.height)
    html = result_html(answer, None)
    assert f'class="sx-over" x="{round(left, 1)}" y="{round(top, 1)}"' in html
    assert catalogue.text("seen_square") in html
    assert catalogue.text("seen_square")[:40] in on_paper(answer, monkeypatch)
    old = photo.model_copy(update={"square": None})
    plain = answer.diagnosis.model_copy(update={"photos": (old,)})
    assert catalogue.text("seen_square") not in result_html(replace(answer, diagnosis=plain), None)
