"""What is known of the person in words, the same for a terminal and paper."""

from skindx.diagnosis.case import Patient


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
