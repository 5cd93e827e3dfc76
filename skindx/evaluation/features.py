"""`skindx features evaluate`: embeddings of any tower become heads, a bundle and a report.

The tower need not be here: train fits the heads, validation chooses one and its temperature,
calibration fits sets, thresholds and checks, and test is read by the evaluation alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.measurement import torch_threads
from skindx.core.text import counted
from skindx.core.untrusted import read_json
from skindx.data.embedding_files import EmbeddingRows, read_embedding_rows
from skindx.data.layout import TAXONOMY
from skindx.data.manifest import Record, check_sample, read_manifest, split_of
from skindx.diagnosis.predictor import Predictor
from skindx.evaluation.answers import Part
from skindx.evaluation.embedded_heads import (
    EmbeddedHead,
    PresentTower,
    compare_tower,
    find_tower,
    fit_heads,
    plain_figures,
)
from skindx.evaluation.evaluate import EVALUATION, METRICS, Progress, evaluate_served, split_records
from skindx.evaluation.figures import bounds
from skindx.evaluation.score import Evaluation
from skindx.imaging.decode import decode
from skindx.models.bundle.bundle import BUNDLE, Bundle, open_bundle
from skindx.models.bundle.bundle_changes import add_metrics
from skindx.models.bundle.bundle_index import MemberSpec
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.models.embedded import EMBEDDINGS, EmbeddingsSpec, embedded_decoder, embedded_member
from skindx.models.ensemble import Ensemble
from skindx.models.probability_correction import apply_temperature
from skindx.taxonomy import Taxonomy
from skindx.training.ensembles.ready_ensemble import ReadyEnsemble, fit_facts, pack_ensemble
from skindx.training.ensembles.suggest import check_classes

if TYPE_CHECKING:
    from rich.table import Table

HEADS_JSON = "heads.json"


@dataclass(frozen=True)
class FeaturesResult:
    """What `evaluate_embeddings` made."""

    bundle: Bundle
    evaluation: Evaluation
    folder: Path
    """Of the evaluation."""
    heads: Sequence[EmbeddedHead]
    """Best on validation first; () for a bundle that was there before."""


@torch_threads(1)  # heads are small: more threads gain little, and wait by turning
def evaluate_embeddings(
    embeddings: Path,
    dataset: Path,
    out: Path,
    *,
    names: Path | None = None,
    heads: Sequence[str] = (),
    tower: str | None = None,
    made_by: str = "",
    bundle: Path | None = None,
    split: Part = "test",
    draws: int = 1000,
    say: Callable[[str], None] = print,
    progress: Progress | None = None,
) -> FeaturesResult:
    """Fit heads on the embeddings of a dataset's images, and write OUT/bundle and OUT/evaluation.

    `names` are those of the rows of an .npy file. With the `tower` that made the embeddings the
    bundle diagnoses photos. `bundle`: evaluate that one on them instead of fitting heads. Raises
    UserError for a file that is not of this dataset, and for a folder that holds anything else.
    """
    if bundle and (heads or tower or made_by):
        raise UserError("--bundle has its heads already; leave out --head, --tower and --made-by.")
    EVALUATION.check(out / "evaluation")
    records = read_manifest(dataset)
    scored = split_records(dataset, split)
    check_sample(dataset, records)
    rows = read_embedding_rows(embeddings, names, records)
    if rows.unused:
        say(f"{counted(rows.unused, 'row')} of {embeddings} are of no image of {dataset}")
    chosen: Sequence[EmbeddedHead] = ()
    if bundle:
        packed = open_bundle(bundle)
        ensemble = packed.ensemble_on(rows)
    else:
        BUNDLE.check(out / "bundle")
        taxonomy = Taxonomy.load(dataset / TAXONOMY)
        check_classes(records, taxonomy.keys)
        present = find_tower(tower) if tower else None
        cosine = compare_tower(present, rows, dataset, records) if present else None
        place = {"place": present.trunk.head} if present else {}
        chosen = fit_heads(heads, rows, records, taxonomy.keys, **place, say=say)
        ensemble = _ensemble(chosen[0], rows, taxonomy, out)
        ready = _ready(chosen[0], ensemble, records, taxonomy, present)
        provenance = {"embeddings_sha256": rows.sha256}
        note = {} if cosine is None else {"tower_cosine": round(cosine, 4)}
        lacking = EmbeddingsSpec(dimensions=rows.dimensions, tower=made_by)
        packed = pack_ensemble(
            out / "bundle",
            dataset,
            records,
            taxonomy,
            ready,
            name=made_by or embeddings.stem[:200],
            provenance={**provenance, **note},
            embeddings=None if present else lacking,
        )
        write_json(out / HEADS_JSON, plain_figures(chosen, **provenance, **note))
    predictor = Predictor(packed, ensemble, None, gallery=packed.gallery(), ood=packed.ood())
    folder = out / "evaluation"
    evaluation = evaluate_served(
        predictor,
        scored,
        embedded_decoder(decode, rows),
        folder,
        bundle=str(packed.path),
        digest=packed.digest,
        dataset=dataset,
        split=split,
        draws=draws,
        progress=progress,
    )
    if chosen and split == "test":
        packed = add_metrics(packed.path, read_json(folder / METRICS, finite=False))
    return FeaturesResult(packed, evaluation, folder, chosen)


def _ensemble(head: EmbeddedHead, rows: EmbeddingRows, taxonomy: Taxonomy, out: Path) -> Ensemble:
    member = embedded_member(
        head.name,
        head.settings,
        head.finished.state,
        rows,
        classes=len(taxonomy.classes),
        file=out,
        temperature=head.temperature,
    )
    return Ensemble((member,))


def _ready(
    head: EmbeddedHead,
    ensemble: Ensemble,
    records: Sequence[Record],
    taxonomy: Taxonomy,
    tower: PresentTower | None,
) -> ReadyEnsemble:
    answers_NC = apply_temperature(head.finished.validation_NC, head.temperature)
    network = tower.network if tower else ClassifierSettings(model=EMBEDDINGS)
    spec = MemberSpec(
        name=head.name,
        classifier=network.model_copy(update={"head": head.settings}),
        temperature=head.temperature,
        tower=tower.origin if tower else None,
        trunk=tower.trunk.key if tower else "",
    )
    return ReadyEnsemble(
        ensemble,
        [(spec, head.finished.state)],
        split_of(records, "train"),
        fit_facts(answers_NC, split_of(records, "val"), taxonomy),
        {tower.trunk.key: tower.trunk.state} if tower else {},
    )


def heads_table(heads: Sequence[EmbeddedHead]) -> "Table":
    """Return what each head scores on validation, the chosen one first and marked."""
    from rich.table import Table

    title = "heads, on the validation images; the least loss is chosen"
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    table.add_column("head")
    for column in ("loss", "temperature", "balanced accuracy"):
        table.add_column(column, justify="right")
    for number, head in enumerate(heads):
        interval = f"{100 * head.balanced.value:.1f} % {bounds(head.balanced)}"
        mark = "" if number else "  <- chosen"
        table.add_row(head.name + mark, f"{head.loss:.3f}", f"{head.temperature:.2f}", interval)
    return table
