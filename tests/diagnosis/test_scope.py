"""Which conditions a bundle knows, and what follows from those that it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.diagnosis.record import NextStep
from skindx.diagnosis.scope import cannot_reassure, known_names, knows, lacks, without_reassurance
from skindx.taxonomy import SkinClass, Urgency, advice_for, load_taxonomy

ISIC9, SKIN10 = (load_taxonomy(name).classes for name in ("isic9", "skin10"))
TIERS: list[Urgency] = ["routine", "unknown", "soon", "urgent"]


def step(urgency: Urgency) -> NextStep:
    return NextStep(urgency=urgency, advice=advice_for(urgency), because="X is in the set.")


def test_names_and_what_is_missing_become_sentences() -> None:
    assert known_names(ISIC9)[:3] == (
        "Actinic keratosis",
        "Basal cell carcinoma",
        "Dermatofibroma",
    )
    assert knows(known_names(ISIC9)) == "The model knows 9 conditions and no others."
    assert knows(("A",)) == "The model knows 1 condition and no other."
    assert knows(()) == lacks(()) == ""
    assert lacks(("a", "b")).endswith("does not know other urgent conditions, among them a and b.")


@pytest.mark.parametrize("urgency", TIERS)
def test_a_bundle_with_the_urgent_cancers_says_what_it_said(urgency: Urgency) -> None:
    assert cannot_reassure(ISIC9) == ""
    assert without_reassurance(step(urgency), ISIC9) == step(urgency)


@pytest.mark.parametrize("urgency", TIERS)
def test_a_bundle_without_them_gives_no_time_to_wait(urgency: Urgency) -> None:
    said = without_reassurance(step(urgency), SKIN10)
    assert TIERS.index(said.urgency) >= TIERS.index(urgency)
    if urgency == "urgent":
        assert said == step(urgency)
        return
    assert said.urgency != "routine"
    without_time = {"soon": "soon_without_time"}.get(urgency, "without_time")
    assert said.advice == advice_for(without_time)
    why = (said.because, *said.more)
    assert any("may show melanoma or invasive squamous cell carcinoma" in text for text in why)
    for time in ("next visit", "weeks", "months"):
        assert time not in said.advice


def test_a_cancer_without_urgency_in_an_older_bundle_is_named() -> None:
    melanoma, scc = (SkinClass(key=key, name=key) for key in ("melanoma", "SCC"))
    old = [melanoma, scc, SkinClass(key="nevus", name="nevus", urgency="routine")]
    assert "may show melanoma or SCC, for which no urgency is known" in cannot_reassure(old)
    answered = without_reassurance(step("routine"), old)
    assert (answered.urgency, answered.advice) == ("unknown", advice_for("without_time"))


@given(st.sets(st.sampled_from(range(len(ISIC9))), min_size=1), st.sampled_from(TIERS))
def test_no_part_of_a_taxonomy_waits_without_the_urgent_cancers(
    places: set[int], urgency: Urgency
) -> None:
    classes: list[SkinClass] = [ISIC9[place] for place in sorted(places)]
    known = {skin_class.key for skin_class in classes} >= {"Melanoma", "Squamous_Cell_Carcinoma"}
    said = without_reassurance(step(urgency), classes)
    assert (said.urgency == "routine") == (known and urgency == "routine")
    assert ("weeks" in said.advice) == (known and urgency == "soon")
