"""Similar images: by rank, with what their label rests on, and none where the model abstains."""

import io
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from painted_answers import jpeg, rich
from pdf_words import words_of
from rich.console import Console
from skin_photo import skin_photo

from skindx.data.manifest import Record
from skindx.data.sources.columns import Columns, confirmation
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.models.conformal import Conformal
from skindx.models.embedding_index import ROWS, EmbeddingIndex, IndexRow, _row
from skindx.texts import catalogue
from skindx.ui.page.answer_html import result_html, waiting_html


def predictor_with(bundle: Path, least: float) -> Predictor:
    """Return a predictor with six neighbours, whose sets hold all classes at a threshold of 0."""
    rule = Conformal(pictures=50, thresholds={"all": least})
    loaded = Predictor.load(bundle)
    spec = loaded.bundle.spec.model_copy(update={"conformal": rule})
    predictor = replace(loaded, bundle=replace(loaded.bundle, spec=spec), detector=None)
    keys, pixels = predictor.taxonomy.keys, np.full((64, 64, 3), 150, np.uint8)
    embeddings_ND = predictor.ensemble.predict_with_features([pixels] * 6).embeddings_ND
    rows = [
        IndexRow(f"{n:064x}", keys[n], n, "CC0", confirmed_by="histopathology" if n == 1 else "")
        for n in range(6)
    ]
    return replace(predictor, gallery=EmbeddingIndex.from_rows(rows, embeddings_ND, [b""] * 6))


def test_an_abstention_shows_no_similar_cases(tiny_bundle: Path) -> None:
    said = answer(predictor_with(tiny_bundle, 0.0), Case((skin_photo(),)))
    assert said.diagnosis.abstained
    assert (said.diagnosis.similar, said.thumbnails) == ((), ())
    assert "names no condition" in said.diagnosis.no_similar
    assert "sx-similar" not in result_html(said, None)


def test_each_case_has_what_its_label_rests_on(tiny_bundle: Path) -> None:
    said = answer(predictor_with(tiny_bundle, 0.99), Case((skin_photo(),)))
    assert said.diagnosis.abstained == ""
    bases = {case.sha256: case.basis for case in said.diagnosis.similar}
    assert bases.pop(f"{1:064x}") == "confirmed by histopathology"
    assert set(bases.values()) == {"label of the source"}


def shown() -> CaseAnswer:
    answer = rich(Case((jpeg(80, 60),)))
    first, *others = answer.diagnosis.similar
    similar = (first.model_copy(update={"confirmed_by": "histopathology"}), *others)
    return replace(answer, diagnosis=answer.diagnosis.model_copy(update={"similar": similar}))


def test_every_output_ranks_and_gives_no_per_cent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    console = Console(file=io.StringIO(), width=400)
    print_diagnosis(shown().diagnosis, console)
    terminal = console.file.getvalue()  # type: ignore[attr-defined]
    paper = words_of(report_pdf(shown(), None, datetime(2026, 1, 1, tzinfo=UTC)))
    page = result_html(shown(), None)
    section = page[page.index("Similar cases") :]
    assert "%" not in section
    assert catalogue.text("similar_first") in section
    names = [case.name for case in shown().diagnosis.similar]
    assert f"1. {names[0]}" in section
    assert "does not allow showing it." in section
    line = next(line for line in terminal.splitlines() if "nearest first" in line)
    assert [line.index(name) for name in names] == sorted(line.index(name) for name in names)
    for text in (section, paper.replace("\\(", "(").replace("\\)", ")"), line):
        assert "confirmed by histopathology" in text
        assert "label of the source" in text
        assert not re.search(
            r"cosine|\d % alike|0\.94|0\.9[0-9]", text.replace(catalogue.text("similar_first"), "")
        )
    assert "confirmed label" not in waiting_html()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("histo", "histopathology"),
        ("Histopathology", "histopathology"),
        ("follow_up", "follow-up"),
        ("serial imaging showing no change", "follow-up"),
        ("confocal", "confocal microscopy"),
        ("consensus", "expert consensus"),
        ("single contributor clinical assessment", ""),
        ("", ""),
        ("<script>", ""),
    ],
)
def test_only_what_confirms_counts(text: str, words: str) -> None:
    assert confirmation(text) == words
    line = {"dx_type": text, "label": "nv"}
    assert Columns(confirmed="dx_type").known(line)["confirmed_by"] == words
    assert Columns().known(line)["confirmed_by"] == ""


def test_the_index_keeps_it_and_an_older_one_is_read(tmp_path: Path) -> None:
    record = Record("a", "0" * 64, "0" * 16, 9, 9, "nv", "g", "train", confirmed_by="follow-up")
    rows = [_row(record, 0, named=True), _row(record, 1, named=False)]
    index = EmbeddingIndex.from_rows(rows, np.eye(2, 4, dtype=np.float32), [b"", b""])
    index.save(tmp_path)
    again = EmbeddingIndex.load(tmp_path, index.spec)
    assert [row.confirmed_by for row in again.rows] == ["follow-up", "follow-up"]
    table = pq.read_table(tmp_path / ROWS).drop(["confirmed_by"])
    pq.write_table(pa.table(table), tmp_path / ROWS)
    older = EmbeddingIndex.load(tmp_path, index.spec)
    assert [row.confirmed_by for row in older.rows] == ["", ""]
