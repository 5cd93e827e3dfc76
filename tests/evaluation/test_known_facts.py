"""An evaluation says what age, sex and place change: paired, beside the photos alone."""

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from evaluation_fakes import CLASSES, records_of, simulate
from rich.console import Console

from skindx.evaluation.answers import Answers
from skindx.evaluation.input_effects import known_table, measure_known_facts, with_known_facts
from skindx.models.class_calibration import LossGain
from skindx.models.metadata_head import AnswerRules, MetadataHead, MetadataSpec

HEAD = MetadataHead(columns=("age",), centre=(0.0,), weights=((-2.0, 0.0, 0.0, 0.0),))
SPEC = MetadataSpec(
    head=HEAD,
    gain=LossGain(value=0.1, low=0.1, high=0.1, images=9, groups=9),
    rules={"age": AnswerRules()},
)


def test_the_gain_is_that_of_the_images_that_say_a_field() -> None:
    labels, predictions = simulate(80, seed=1)
    first = CLASSES[0].key
    # Those of the first class are young, and half of the others old: so age helps.
    records = [
        replace(record, age=20.0 if record.label == first else 80.0 if n % 2 else None)
        for n, record in enumerate(records_of(labels, [f"g{n // 2}" for n in range(80)]))
    ]
    predictor = SimpleNamespace(metadata=SPEC)
    known = with_known_facts(predictor, records, predictions)
    for record, before, after in zip(records, predictions, known, strict=True):
        assert after.probabilities_C.tobytes() == before.probabilities_C.tobytes()
        if record.age is None:
            assert after.known_C is None
        else:
            expected_C = before.probabilities_C * np.exp(
                [-2 * (record.age - 50) / 20, 0.0, 0.0, 0.0]
            )
            assert after.known_C == pytest.approx(expected_C / expected_C.sum())
    answers = Answers.join(records, predictions, CLASSES, ("a", "b"))
    measured = measure_known_facts(answers, known, draws=60)
    assert measured is not None
    assert measured.told == sum(record.age is not None for record in records)
    assert 0 < measured.changed <= measured.told
    assert measured.log_loss.low > 0
    top1 = measured.figures["top1"]
    assert top1.difference.value == pytest.approx(top1.known.value - top1.without.value)
    console = Console(file=io.StringIO(), width=120)
    console.print(known_table(measured))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"which {measured.told} of 80 images say" in text
    assert "log loss" in text


def test_nothing_is_said_where_no_field_is_used() -> None:
    labels, predictions = simulate(12, seed=1)
    records = records_of(labels, [str(n) for n in range(12)])
    answers = Answers.join(records, predictions, CLASSES, ("a", "b"))
    for spec in (None, SPEC, SPEC.model_copy(update={"head": None})):
        known = with_known_facts(SimpleNamespace(metadata=spec), records, predictions)
        assert measure_known_facts(answers, known) is None
