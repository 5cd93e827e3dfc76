"""A loaded bundle as an object: answers, predictions, logits, embeddings, networks."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from html import escape
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.api.predictions import (
    PhotoFeatures,
    PhotoLike,
    iter_features,
    iter_predictions,
    patient_of,
    photo_bytes,
    photo_features,
    photo_pixels,
    schema_of,
)
from skindx.core.errors import UserError, known_keywords
from skindx.core.progress import Progress, silent
from skindx.diagnosis.advice_figures import measured
from skindx.diagnosis.answer_figure import answer_figure, answer_html
from skindx.diagnosis.case import Case, PersonFacts
from skindx.diagnosis.checklist_advice import urgency_given
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.filing import Filing
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer, Diagnosis, notice
from skindx.diagnosis.report import PdfPart
from skindx.diagnosis.report.answer_report import report_pdf
from skindx.diagnosis.scope import known_names
from skindx.imaging.photo_gates import Kind
from skindx.imaging.stored_colours import Decoding
from skindx.models.bundle.detach import unpack
from skindx.models.bundle.installed import bundle_path
from skindx.models.classifier.preprocess import Preprocess, framed_square
from skindx.models.ensemble import MemberNetwork
from skindx.models.exports.runtimes import Backend
from skindx.texts.catalogue import text

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

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
        """Urgency of the next step: urgent, soon, routine or unknown."""
        return urgency_given(self.diagnosis)

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
        """Probabilities of the likeliest classes and the whole conformal set, likeliest first."""
        return {one.key: one.probability for one in self.diagnosis.candidates}

    @property
    def conformal_set(self) -> tuple[str, ...]:
        """Keys of the classes that are not ruled out; empty for a bundle without such sets."""
        return tuple(one.key for one in self.diagnosis.candidates if one.in_set)

    @property
    def heat_maps(self) -> tuple[bytes, ...]:
        """One PNG a photo, for the condition that decides the advice; b"" where there is none."""
        return tuple(view.heat for view in self._answered.views)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values, as `skindx diagnose --json` prints it."""
        return self.diagnosis.model_dump(mode="json")

    def pdf(self, patient: str = "", when: datetime | None = None, part: PdfPart = "full") -> bytes:
        """Return the report for a clinician: a record to file, the basis, a page for the patient.

        `part`: "short" leaves the technical basis out, "patient" is that page alone.
        `patient` is a pseudonym, which the record leaves a line for where none is given; `when` the
        answer was given (default: now). Raises UserError without fpdf2.
        """
        now = datetime.now().astimezone()
        filing = Filing(patient)
        return report_pdf(self._answered, self._metrics, when or now, filing, part)

    def plot(self) -> "Figure":
        """Return a matplotlib figure: photos, the set with probabilities, next step and limits.

        The whisker is how often the likeliest class was right at about this probability, with its
        95 % interval, on the images of the bundle's evaluation. Raises UserError without
        matplotlib, which the extras `data` and `train` have.

        >>> model.diagnose(photos[4]).plot().savefig("answer.png")
        """
        return answer_figure(self._answered, self._metrics)

    def _repr_html_(self) -> str:
        """Show photos, conditions, next step and limits in a notebook."""
        return answer_html(self._answered, self._metrics)

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
        self,
        photos: "PhotoLike | Sequence[PhotoLike]",
        *,
        modality: Kind | Literal[""] = "",
        **facts: Unpack[PersonFacts],
    ) -> Answer:
        """Answer a case of one to three photos of the same place.

        `facts` are age, sex, site, laterality, duration and skin_type, all optional. Raises Refused
        for a photo that no answer should rest on, UserError for what is no photo, other facts.

        `modality` says how the photos were taken, dermoscopic or clinical: a photo that the check
        of modality alone refuses is then answered, and its record says so.

        >>> model.diagnose(photos[4], age=62)
        <Answer Melanoma 0.97, urgent>
        """
        patient = patient_of(facts)
        several = list(photos) if isinstance(photos, list | tuple) else [photos]
        files = tuple(photo_bytes(photo) for photo in several)
        case = Case(files, patient, modality=modality)
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

    @known_keywords
    def logits(
        self, photos: "Iterable[PhotoLike]", batch: int = 32, progress: Progress = silent
    ) -> dict[str, NDArray[np.float64]]:
        """Return each network's logits N x C by its name; `calibrated` makes probabilities of them.

        Softmax gives the network's probabilities, the mean over its flipped and turned views, as
        they are before calibration. Only what cannot be read as a photo, is smaller than 64 pixels
        or too large to be decoded is left out: its row is NaN. No other gate of `predict` is asked,
        no crop around the detector's box is looked at, and no facts count. Raises UserError.

        >>> {name: logits.shape for name, logits in model.logits(photos[:2]).items()}
        {'a': (2, 3), 'b': (2, 3)}
        """
        parts = self._all_features(photos, batch, progress)
        return {name: np.concatenate([part.logits[name] for part in parts]) for name in self._names}

    @known_keywords
    def embeddings(
        self,
        photos: "Iterable[PhotoLike]",
        batch: int = 32,
        progress: Progress = silent,
        *,
        member: str | None = None,
    ) -> NDArray[np.float32]:
        """Return what the networks see, N x D: their pooled features side by side, of length 1.

        Similar cases and the out-of-distribution check rest on them. `member` is the name of one
        network, of which the features are as its last layer sees them. What is left out is as in
        `logits`. Raises UserError.

        >>> model.embeddings(photos[:2]).shape, model.embeddings(photos[:2], member="a").shape
        ((2, 32), (2, 16))
        """
        if member is not None and member not in self._names:
            raise UserError(
                f"the bundle has no network {member!r}; give one of {', '.join(self._names)}."
            )
        parts = self._all_features(photos, batch, progress)
        return np.concatenate(
            [part.embeddings if member is None else part.pooled[member] for part in parts]
        )

    @known_keywords
    def iter_features(
        self, photos: "Iterable[PhotoLike]", batch: int = 32, progress: Progress = silent
    ) -> Iterator[PhotoFeatures]:
        """Yield logits and embeddings in batches, from one pass; memory does not grow.

        A photo that is left out has rows of NaN, and `reasons` says why.

        >>> [len(part.embeddings) for part in model.iter_features(photos[:5], batch=2)]
        [2, 2, 1]
        """
        return iter_features(self._predictor, photos, batch, progress, self._lock)

    def calibrated(self, logits: Mapping[str, NDArray[np.floating]]) -> NDArray[np.float64]:
        """Return the ensemble's probabilities N x C of logits by the networks' names.

        They are those of `predict`, but for photos that have a crop around the detector's box, or
        facts. Raises UserError where a network is missing.

        >>> model.calibrated(model.logits(photos[4:5])).round(2).tolist()
        [[0.0, 0.97, 0.03]]
        """
        if set(logits) != set(self._names):
            raise UserError(
                "the logits must be a mapping from the name of each network to its array; the "
                f"networks are {', '.join(self._names)}."
            )
        rows = [np.asarray(logits[name], np.float64) for name in self._names]
        shapes = {one.shape for one in rows}
        if len(shapes) != 1 or rows[0].ndim != 2 or rows[0].shape[1] != len(self.classes):
            raise UserError(
                f"the logits have the shapes {sorted(shapes)}; give an array for each network, "
                f"with a row for each photo and {len(self.classes)} columns (one for each class)."
            )
        probabilities_NC, _ = self._predictor.ensemble.calibrated(rows)
        mix = self._predictor.prevalence
        return mix.correct(probabilities_NC) if mix else probabilities_NC

    @cached_property
    def networks(self) -> dict[str, MemberNetwork]:
        """The networks as modules of torch by their names: copies, in evaluation mode.

        A module takes squares B x S x S x 3 of uint8, which its `preprocess` makes of any photo
        that `predict` takes, and returns the logits B x C of `logits`, as float32. Its
        `classifier.net` is timm's own module.

        >>> network = model.networks["a"]
        >>> network(network.preprocess(photos[4])[None]).shape
        torch.Size([1, 3])
        """
        predictor = self._predictor
        memo: dict[Any, Any] = {}  # members of one trunk keep one copy of it
        needed = predictor.needs.side
        return {
            member.name: MemberNetwork(
                member,
                partial(_square, member.preprocess, needed, predictor.decoding),
                memo,
            )
            for member in predictor.ensemble.members
        }

    @property
    def _names(self) -> tuple[str, ...]:
        return self._predictor.members

    def _all_features(
        self, photos: "Iterable[PhotoLike]", batch: int, progress: Progress
    ) -> list[PhotoFeatures]:
        parts = list(self.iter_features(photos, batch, progress))
        return parts or [photo_features(self._predictor.ensemble, [])]

    def _repr_html_(self) -> str:
        """Show what it knows, how well, and what it is for, in a notebook."""
        bundle, metrics = self._predictor.bundle, self._predictor.metrics
        lines = (
            f"Classes: {', '.join(known_names(bundle.taxonomy.classes))}.",
            f"Networks: {', '.join(self._names)}.",
            measured(metrics) or text("not_measured"),
            *(limit for limit in (bundle.warning, bundle.images.expects) if limit),
            notice(),
        )
        written = "".join(f"<p>{escape(line)}</p>" for line in lines)
        return f"<div><b>{escape(bundle.spec.name)}</b> {bundle.digest[:16]}{written}</div>"

    def __repr__(self) -> str:
        """Show name and digest."""
        bundle = self._predictor.bundle
        return f"<Model {bundle.spec.name}, {len(self.classes)} classes, {bundle.digest[:16]}>"


def _square(
    preprocess: Preprocess, needed: int | None, decoding: Decoding, photo: "PhotoLike"
) -> Tensor:
    return torch.from_numpy(framed_square(photo_pixels(photo, needed, decoding), preprocess))


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
    """Open a bundle, a folder, the zip of one or the name of an installed one; verify each hash.

    `digest` is that of the bundle, or its first digits: another bundle is refused. `device` is cpu
    or cuda; `backend` is eager, that of an export, or the fastest (auto). The others are as in
    `skindx diagnose`. Raises UserError for what is no bundle, or not whole.

    >>> skindx.load(bundle).classes
    ('Dermatofibroma', 'Melanoma', 'Nevus')
    """
    mix = Path(prevalence) if prevalence is not None else None
    served = partial(Predictor.load, prevalence=mix)
    rest = (device, backend, digest, miss_rate)
    if not (place := bundle_path(path)).is_file():
        return Model(served(place, *rest))
    folder = tempfile.mkdtemp(prefix="skindx-bundle-")
    try:
        model = Model(served(unpack(place, Path(folder)), *rest))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)  # read as long as it serves
    return model
