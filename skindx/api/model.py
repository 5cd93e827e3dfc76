"""A loaded bundle as an object: `load`, `Model.diagnose`, `Model.predict`."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Unpack

from skindx.api.predictions import (
    PhotoLike,
    iter_predictions,
    patient_of,
    photo_bytes,
    schema_of,
)
from skindx.core.errors import known_keywords
from skindx.core.progress import Progress, silent
from skindx.diagnosis.answer_report import report_pdf
from skindx.diagnosis.case import Case, PersonFacts
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer, Diagnosis
from skindx.models.bundle.detach import unpack
from skindx.models.exports.runtimes import Backend

if TYPE_CHECKING:
    import pyarrow as pa

FactsOfPhotos = Mapping[str, Any] | Iterable[Mapping[str, Any] | None] | None


class Answer:
    """What a model says of a case: what the page shows and `/v1/diagnose` answers.

    >>> answer = model.diagnose(photos[4])
    >>> answer.urgency, answer.conformal_set, answer.abstained
    ('urgent', ('Melanoma',), '')
    >>> answer.to_dict()["candidates"][0]["key"], answer.pdf()[:4]
    ('Melanoma', b'%PDF')
    """

    def __init__(self, answered: CaseAnswer, metrics: dict[str, Any] | None) -> None:
        self._answered, self._metrics = answered, metrics

    @property
    def diagnosis(self) -> Diagnosis:
        """The whole record, field by field as in the HTTP interface."""
        return self._answered.diagnosis

    @property
    def metrics(self) -> dict[str, Any] | None:
        """What the bundle's evaluation measured; None: it was not evaluated."""
        return self._metrics

    @property
    def urgency(self) -> str:
        """Of the next step: urgent, soon, routine or unknown."""
        return self.diagnosis.next_step.urgency

    @property
    def advice(self) -> str:
        """The next step in words."""
        return self.diagnosis.next_step.advice

    @property
    def abstained(self) -> str:
        """Why no condition is named with confidence; empty where one or a few are."""
        return self.diagnosis.abstained

    @property
    def probabilities(self) -> dict[str, float]:
        """Of the likeliest classes and of the whole conformal set, by key, likeliest first."""
        return {one.key: one.probability for one in self.diagnosis.candidates}

    @property
    def conformal_set(self) -> tuple[str, ...]:
        """Keys of the classes that are not ruled out; empty for a bundle without such sets."""
        return tuple(one.key for one in self.diagnosis.candidates if one.in_set)

    @property
    def heat_maps(self) -> tuple[bytes, ...]:
        """For each photo a PNG of the condition that decides the advice; b"" where none is."""
        return tuple(view.heat for view in self._answered.views)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values, as `skindx diagnose --json` prints it."""
        return self.diagnosis.model_dump(mode="json")

    def pdf(self) -> bytes:
        """Return the report for a clinician."""
        return report_pdf(self._answered, self._metrics, datetime.now().astimezone())

    def __repr__(self) -> str:
        """Show the likeliest class and the next step."""
        first = self.diagnosis.candidates[0]
        named = "abstained" if self.abstained else f"{first.key} {first.probability:.2f}"
        return f"<Answer {named}, {self.urgency}>"


class Model:
    """A loaded bundle; several threads may use it at a time. See `skindx.load`."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._lock = Lock()

    @property
    def classes(self) -> tuple[str, ...]:
        """Keys of the classes, in the order of the columns of `predict`."""
        return tuple(self._predictor.taxonomy.keys)

    @property
    def digest(self) -> str:
        """SHA-256 of the bundle's index, which `load` takes to check it."""
        return self._predictor.bundle.digest

    @property
    def schema(self) -> "pa.Schema":
        """The columns of `predict`."""
        return schema_of(self._predictor)

    def diagnose(
        self, photos: "PhotoLike | Sequence[PhotoLike]", **facts: Unpack[PersonFacts]
    ) -> Answer:
        """Answer a case of one to three photos of the same place.

        `facts` are age, sex, site, laterality, duration and skin_type, all optional. Raises Refused
        for a photo that no answer should rest on, UserError for what is no photo, other facts.

        >>> model.diagnose(photos[4], age=62)
        <Answer Melanoma 0.97, urgent>
        """
        patient = patient_of(facts)
        several = list(photos) if isinstance(photos, list | tuple) else [photos]
        case = Case(tuple(photo_bytes(photo) for photo in several), patient)
        with self._lock:
            answered = answer(self._predictor, case)
        return Answer(answered, self._predictor.metrics)

    @known_keywords
    def predict(
        self,
        photos: "Iterable[PhotoLike]",
        batch: int = 32,
        facts: FactsOfPhotos = None,
        progress: Progress = silent,
    ) -> "pa.Table":
        """Return a table with one row a photo; the guide's page Diagnose describes its columns.

        A photo that is refused or cannot be read has a row that says why. `facts` is one mapping
        for all photos, or one for each.

        >>> table = model.predict([photos[4], "gone.jpg"])
        >>> table["first"].to_pylist(), table["refused"].to_pylist()
        (['Melanoma', None], [None, 'file'])
        """
        import pyarrow as pa

        batches = self.iter_predictions(photos, batch, facts, progress)
        return pa.Table.from_batches(batches, self.schema)

    @known_keywords
    def iter_predictions(
        self,
        photos: "Iterable[PhotoLike]",
        batch: int = 32,
        facts: FactsOfPhotos = None,
        progress: Progress = silent,
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of `predict` in batches; memory does not grow with the photos.

        `photos` may be a generator that never ends. `progress` is called with the stage, how many
        photos are done, and how many there are (0: unknown).

        >>> [batch.num_rows for batch in model.iter_predictions(photos[:5], batch=2)]
        [2, 2, 1]
        """
        return iter_predictions(
            self._predictor, photos, batch=batch, facts=facts, progress=progress, lock=self._lock
        )

    def __repr__(self) -> str:
        """Show name and digest."""
        bundle = self._predictor.bundle
        return f"<Model {bundle.spec.name}, {len(self.classes)} classes, {bundle.digest[:16]}>"


@known_keywords
def load(
    path: "str | os.PathLike[str]",
    digest: str | None = None,
    *,
    device: str = "cpu",
    backend: Backend = "auto",
    miss_rate: float | None = None,
    prevalence: "str | os.PathLike[str] | None" = None,
) -> Model:
    """Open a bundle, a folder or the zip of one, and verify each file's hash.

    `digest` is that of the bundle, or its first digits: another bundle is refused. `device` is cpu
    or cuda; `backend` is eager, that of an export, or the fastest (auto). The others are as in
    `skindx diagnose`. Raises UserError for what is no bundle, or not whole.

    >>> skindx.load(bundle).classes
    ('Dermatofibroma', 'Melanoma', 'Nevus')
    """
    mix = Path(prevalence) if prevalence is not None else None
    served = partial(Predictor.load, prevalence=mix)
    rest = (device, backend, digest, miss_rate)
    if not (place := Path(path)).is_file():
        return Model(served(place, *rest))
    folder = tempfile.mkdtemp(prefix="skindx-bundle-")
    try:
        model = Model(served(unpack(place, Path(folder)), *rest))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)  # read as long as it serves
    return model
