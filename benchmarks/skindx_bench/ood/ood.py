"""Train, fit and choose out-of-distribution detectors for a bundle.

Each training leaves out some classes, whose images then are out of distribution. Detectors are
fitted on its training images, their thresholds on its calibration images; they are compared by what
they refuse of the left-out classes and of painted images, see `ood_candidates`.
"""

from pathlib import Path

from pydantic import Field

from skindx.core.errors import JobError
from skindx.core.settings_base import Settings
from skindx.data.manifest import read_manifest
from skindx.data.splits.class_view import class_view, paired_classes
from skindx.models.ood.check import RATE
from skindx.models.ood.detectors import DEFAULT
from skindx.training.config.run import TrainSettings
from skindx.training.run import unfinished
from skindx_bench.harness.clock import Figure
from skindx_bench.harness.result import Result
from skindx_bench.harness.runs import run_skindx
from skindx_bench.harness.stopping import end_on_sigterm
from skindx_bench.ood.candidates import CANDIDATES, LEFT_OUT, OWN, Refusals, choose, merit, refusals
from skindx_bench.ood.measure import load_measured, measure, save_measured
from skindx_bench.presets import preset

SCORES = "scores-{painted}.npz"
HEADINGS = ("share", "95 % interval")


SMALLEST = ("painted=1",)


class Config(Settings):
    """Trainings and data; finished trainings and scores in `out` are reused."""

    dataset: Path = Path("runs/isic9/data")
    config: Path = preset("ood")
    """A training as `skindx train` takes it."""
    out: Path = Path("runs/ood")
    left_out: tuple[tuple[str, ...], ...] = ()
    """Classes that each training does without; (): pairs, so that each class is left out once."""
    painted: int = Field(50, ge=1)
    """Images of each painted kind."""


def run(settings: Config) -> Result:
    """Train without classes, score, choose; write nothing but the trainings."""
    end_on_sigterm()
    training = TrainSettings.load(settings.config, [])
    parts = settings.left_out or paired_classes(read_manifest(settings.dataset))
    trainings = []
    for left_out in parts:
        home = settings.out / "-".join(left_out)
        view = class_view(settings.dataset, home / "data", left_out)
        file = home / SCORES.format(painted=settings.painted)
        if _train(home, view, training) or not file.is_file():
            bundle = home / "run" / "bundle"
            save_measured(file, measure(bundle, settings.dataset, view, settings.painted))
        trainings.append(load_measured(file))
    found = {candidate: refusals(candidate, trainings) for candidate in CANDIDATES}
    chosen = choose(found, RATE)
    return Result(
        "ood",
        {
            f"{'+'.join(candidate)} {kind}": _figure(part)
            for candidate, kinds in found.items()
            for kind, part in (("own", kinds[OWN]), ("left_out", kinds[LEFT_OUT]))
        },
        notes=_notes(settings, training, parts, chosen),
        models={"+".join(candidate): _values(kinds) for candidate, kinds in found.items()},
        headings=HEADINGS,
    )


def _train(home: Path, view: Path, training: TrainSettings) -> bool:
    """Train what is missing; return whether anything was missing."""
    run_folder = home / "run"
    training.save(home / "train.yaml")
    missing = bool(unfinished(run_folder, view, training))
    if missing or not (run_folder / "bundle").is_dir():
        missing = True
        run_skindx("train", view, "--config", home / "train.yaml", "--out", run_folder)
    if left := unfinished(run_folder, view, training):
        raise JobError(f"{', '.join(left)} was stopped; run the same command again to go on")
    return missing


def _figure(part: Refusals) -> Figure:
    share = part.share
    return Figure(share.value, "", len(part.out_N), (share.low, share.high))


def _values(kinds: dict[str, Refusals]) -> dict[str, object]:
    """Return plain values for the JSON: share refused, interval, AUROC of every kind of images."""
    return {
        "merit": merit(kinds),
        **{
            kind: {
                "n": len(part.out_N),
                "refused": [part.share.value, part.share.low, part.share.high],
                "auroc": part.area,
            }
            for kind, part in kinds.items()
        },
    }


def _notes(
    settings: Config,
    training: TrainSettings,
    parts: tuple[tuple[str, ...], ...],
    chosen: tuple[str, ...] | None,
) -> tuple[str, ...]:
    default = "+".join(own.kind for own in DEFAULT)
    without = "; ".join(", ".join(left_out) for left_out in parts)
    names = ", ".join(member.name for member in training.members)
    return (
        f"{names} trained without: {without}. `own`: test images of the classes trained on, of "
        f"which at most {RATE:.0%} should be refused; `left_out`: all images of the others.",
        "Chosen by the mean of the shares refused of left-out classes and of painted kinds (with "
        "--json also these, and the AUROC): "
        f"{'+'.join(chosen) if chosen else 'none'}. The default of a bundle: {default}.",
    )
