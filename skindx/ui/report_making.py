"""Reports are made one at a time in a server's process, and what they leave is collected.

A report is some megabytes of objects that refer to each other in circles. Python frees those only
when it collects garbage, which by its own count of objects comes after hundreds of reports.
"""

import gc
import itertools
import threading
from datetime import datetime
from typing import Any

from skindx.diagnosis.record import CaseAnswer

_EVERY = 8
"""Reports from one collection to the next: their remains take some tens of megabytes."""
_THRESHOLDS = (2_000, 10, 10)

# Pure Python, so that two at a time would only slow each other down, and the page with them.
_making = threading.Lock()
_made = itertools.count(1)


def made_pdf(answer: CaseAnswer, metrics: dict[str, Any] | None, when: datetime) -> bytes:
    """Return the report on an answer as `report_pdf` does. Raises UserError without fpdf2."""
    from skindx.diagnosis.answer_report import report_pdf

    with _making:
        try:
            return report_pdf(answer, metrics, when)
        finally:
            if next(_made) % _EVERY == 0:
                gc.collect()


def settle() -> None:
    """Leave what a server has imported and built out of every later collection of garbage.

    Then a collection looks through requests alone, takes milliseconds, and may come often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
