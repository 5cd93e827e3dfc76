"""Age, sex and place change the answer of a bundle that learned how, and the answer says so."""

import json
from pathlib import Path

import pytest
from command_line import Skindx
from skin_photo import skin_photo
from tiny_bundle import pack_tiny

from skindx.core.errors import UserError
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import Diagnosis
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.bundle_changes import set_fusion
from skindx.models.bundle.bundle_index import used_fields
from skindx.models.class_calibration import LossGain
from skindx.models.combination import FusionSpec
from skindx.models.conformal import ALL, Conformal
from skindx.models.metadata_head import AnswerRules, MetadataHead, MetadataSpec
from skindx.taxonomy.lexicon import SITES, site_of

GAIN = LossGain(value=0.05, low=0.02, high=0.08, images=900, groups=800)
EASY, STRICT = (Conformal(pictures=90, thresholds={ALL: share}) for share in (0.0, 0.9))
OLD = Patient(age=80, site="face", duration="weeks")


def spec(classes: int, **more: object) -> MetadataSpec:
    flat = (0.0,) * classes
    head = MetadataHead(
        columns=("age", "sex", "site back", "site face"),
        centre=(0.0, 0.5, 0.5, 0.5),
        weights=((4.0, *flat[1:]), (0.1, *flat[1:]), flat, flat),
    )
    rules = {"age": AnswerRules(conformal=STRICT), "age+site": AnswerRules(conformal=STRICT)}
    return MetadataSpec.model_validate({"head": head, "gain": GAIN, "rules": rules, **more})


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    bundle = pack_tiny(tmp_path_factory.mktemp("knowing") / "bundle", conformal=EASY)
    metadata = spec(len(bundle.taxonomy.classes))
    return set_fusion(bundle.path, FusionSpec(weight=0), EASY, metadata=metadata)


def test_the_answer_says_what_was_used_and_what_it_would_be_without(knowing: Bundle) -> None:
    predictor, photo = Predictor.load(knowing.path), skin_photo()
    plain = answer(predictor, Case((photo,))).diagnosis
    told = answer(predictor, Case((photo,), OLD)).diagnosis
    assert told.used_facts is not None
    assert told.used_facts.fields == ("age", "site")
    first = knowing.taxonomy.classes[0]
    assert told.candidates[0].name == first.name
    without = {candidate.key: candidate.probability for candidate in plain.candidates}
    assert told.used_facts.without == pytest.approx(without[first.key])
    assert told.candidates[0].probability > told.used_facts.without
    text = told.use_of_facts
    assert text.startswith(f"The answer uses age and place. {first.name} has ")
    assert "by the photos alone." in text
    assert text.endswith("No probability depends on duration.")
    # Sets are those that were fitted for answers with these fields.
    assert (plain.promise, told.promise) != (None, None)
    assert sum(candidate.in_set for candidate in plain.candidates) == len(without)
    assert sum(candidate.in_set for candidate in told.candidates) <= 2
    assert Diagnosis.model_validate_json(told.model_dump_json()) == told


@pytest.mark.parametrize(
    "patient",
    [Patient(), Patient(sex="female"), Patient(site="face"), Patient(sex="other", site="neck")],
)
def test_what_no_rules_were_fitted_for_changes_nothing(knowing: Bundle, patient: Patient) -> None:
    predictor, photo = Predictor.load(knowing.path), skin_photo()
    plain = answer(predictor, Case((photo,))).diagnosis
    told = answer(predictor, Case((photo,), patient)).diagnosis
    assert told.model_copy(update={"patient": Patient()}) == plain
    assert "used_facts" not in json.loads(told.model_dump_json())


def test_a_bundle_keeps_and_says_it(knowing: Bundle, tmp_path: Path) -> None:
    assert open_bundle(knowing.path).spec.metadata == spec(len(knowing.taxonomy.classes))
    card = (knowing.path / "MODEL_CARD.md").read_text()
    assert "age, sex, site are used where they are given, never required" in card
    assert "by sex alone no probability, nor the urgent risk, moves by more than 5 perc" in card
    assert used_fields(knowing.spec) == ("age", "sex", "site")
    plain = pack_tiny(tmp_path / "bundle")
    assert "place on the body: not used" in (plain.path / "MODEL_CARD.md").read_text()
    assert "metadata" not in json.loads((plain.path / "bundle.json").read_text())
    assert bundle_version(plain) != bundle_version(knowing)
    useless = set_fusion(plain.path, FusionSpec(weight=0), None, metadata=MetadataSpec(gain=GAIN))
    assert used_fields(useless.spec) == ()
    assert (
        "not used; no answer depends on them (they gain"
        in (plain.path / "MODEL_CARD.md").read_text()
    )
    with pytest.raises(UserError, match="are for 2 classes, but its taxonomy has"):
        set_fusion(plain.path, FusionSpec(weight=0), None, metadata=spec(2))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--age", "999"), "'age' = 999: it must be less than or equal to 120"),
        (("--sex", "xyz"), "'sex' = 'xyz': it must be 'female', 'male' or 'other'"),
        (("--site", "moon"), "'site' = 'moon': it must be 'scalp', 'face', 'ear'"),
    ],
)
def test_nonsense_is_one_sentence(
    skindx: Skindx, knowing: Bundle, words: tuple[str, str], sentence: str
) -> None:
    code, _, error = skindx("diagnose", str(knowing.path), "no.jpg", *words)
    assert code == 2
    assert sentence in " ".join(error.split())


def test_places_have_synonyms() -> None:
    assert Patient.parse({"site": "Lower  Extremity"}).site == "leg"
    assert {site_of(place) for place in ("acral", "genital", "trunk", "ear")} <= set(SITES)
    assert site_of("elbow") == "elbow"
