"""Answers for the tests of clinical formats: one that names conditions, and one that abstains."""

from datetime import UTC, datetime

from painted_answers import jpeg, rich

from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.record import CaseAnswer, Diagnosis
from skindx.diagnosis.record_figures import UrgentRisk
from skindx.models.conformal import Share

WHEN = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
RISK = UrgentRisk(
    risk=0.08,
    threshold=0.05,
    miss_rate=0.05,
    confidence=0.93,
    bound=0.071,
    lesions=212,
    sent_on=Share(value=0.31, low=0.28, high=0.35, pictures=640),
    measured_on="test",
    measured_missed=Share(value=0.04, low=0.01, high=0.09, pictures=100),
    measured_sent_on=Share(value=0.3, low=0.26, high=0.34, pictures=500),
    prevalence=0.12,
    ppv=0.3,
    npv=0.99,
)


def answered(*, photos: int = 1, abstained: bool = False, risk: float = RISK.risk) -> CaseAnswer:
    """Return an answer about a person of whom age, sex and place are known."""
    case = Case(
        tuple(jpeg(640, 480, seed) for seed in range(photos)),
        Patient(age=54, sex="female", site="back"),
    )
    answer = rich(case, "unknown" if abstained else "soon")
    urgent = RISK.model_copy(update={"risk": risk})
    source = answer.diagnosis.source.model_copy(update={"digest": "cd" * 32})
    update = {"urgent_risk": urgent, "source": source}
    return CaseAnswer(answer.diagnosis.model_copy(update=update), answer.views, answer.thumbnails)


def diagnosed(**options: bool | float) -> Diagnosis:
    """Return the record of such an answer."""
    return answered(**options).diagnosis  # type: ignore[arg-type]
