"""What a record says in sentences, the same for a terminal, a page and paper."""

from skindx.diagnosis.case import Patient
from skindx.diagnosis.record import Diagnosis


def patient_facts(patient: Patient) -> list[tuple[str, str]]:
    """Return what was told, as (name, value) for a reader; what was not told is left out."""
    facts = {
        "age": f"{patient.age} years" if patient.age is not None else "",
        "sex": patient.sex or "",
        "place": patient.site or "",
        "there for": (patient.duration or "").replace("always", "as long as remembered"),
        "Fitzpatrick skin type": str(patient.skin_type or ""),
    }
    return [(name, value) for name, value in facts.items() if value]


URGENT_APART = (
    "Urgent conditions have a threshold of their own: one may be in the set though it is less "
    "likely than another outside."
)


def promised(diagnosis: Diagnosis) -> str:
    """Return what the set of conditions promises, or why there is none."""
    promise = diagnosis.promise
    if promise is None:
        return diagnosis.no_promise
    whose = "" if promise.group == "all" else f" of {promise.group}"
    said = (
        f"Marked conditions form a set: such a set holds the true condition in at least "
        f"{100 * promise.level:.0f} % of photos like the {promise.pictures}{whose} that were kept "
        "for calibration."
    )
    if promise.urgent_apart:
        said += f" {URGENT_APART}"
    if missed := promise.urgent_missed:
        said += (
            f" Of {missed.pictures} such photos of urgent conditions {100 * missed.value:.1f} % "
            f"(95 % interval {100 * missed.low:.1f} to {100 * missed.high:.1f} %) had no urgent "
            "one in their set."
        )
    return said
