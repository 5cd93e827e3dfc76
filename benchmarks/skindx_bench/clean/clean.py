"""Compare methods that find copies which hashes miss, and off-topic images, in any folder.

Copies of many kinds, overlays shared by different images, and images without skin are planted
among the images of a folder (or among painted ones). Each method ranks pairs and images; peers run
in environments of their own, in the same run.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, field_validator

from skindx.core.errors import JobError, UserError
from skindx.core.settings_base import Settings
from skindx.data.splits.groups import GroupTable
from skindx.data.synthetic.overlays import OVERLAYS
from skindx.data.synthetic.variants import KINDS
from skindx_bench.clean.answer import NoAnswerError, ask
from skindx_bench.clean.base import folder_base, painted_base
from skindx_bench.clean.figures import figures_of, plain_values
from skindx_bench.clean.methods import OURS, methods
from skindx_bench.clean.plants import LAID, Planted, plant
from skindx_bench.clean.score import OFTEN, Scored
from skindx_bench.clean.writing import write_lists
from skindx_bench.harness.result import Result
from skindx_bench.harness.stopping import end_on_sigterm

HEADINGS = ("value", "95 % interval")

SMALLEST = (
    "images=24",
    "originals=2",
    "overlaid=2",
    "off_topic=1",
    "kinds=[crop_10, border_white]",
    "methods=[phash]",
    "draws=50",
)


class Config(Settings):
    """The folder, the planted share, and the compared methods."""

    dataset: Path | None = None
    """A folder of images, or a built dataset; none: painted images."""
    group_pattern: str = ""
    """Finds in a file name what the image shows (first group); one image of each is taken."""
    tables: tuple[GroupTable, ...] = ()
    """Tables that know which images show the same, as in a recipe's groups."""
    images: int = Field(1000, ge=0)
    """Images that are painted, or taken of the dataset at most; 0: all of the dataset."""
    kinds: tuple[str, ...] = Field(tuple(KINDS), min_length=1)
    originals: int = Field(36, ge=1)
    """Images that each kind of copy is made of."""
    overlaid: int = Field(20, ge=2)
    """Different images under each shared overlay."""
    overlays: tuple[str, ...] = Field(tuple(OVERLAYS), min_length=1)
    """Shared overlays; the acceptance has learned from those of the default alone."""
    off_topic: int = Field(10, ge=1)
    """Images of each painted kind without skin."""
    methods: tuple[str, ...] = ()
    """Compared methods; (): all that are installed."""
    peers: Path | None = None
    """A folder with the environments that `python -m skindx_bench.clean.environments` made."""
    listed: int = Field(20_000, ge=100)
    """Pairs of a method's list that count."""
    threads: int = Field(1, ge=1)
    timeout_s: float = Field(7200, gt=0)
    """After so long a method is stopped."""
    draws: int = Field(400, ge=50)
    """Bootstrap draws of an interval."""
    out: Path | None = None
    """Keep the planted images, the truth, links and tables in this folder, which must not exist."""
    seed: int = 0

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"no copy is called {kind!r}; valid: {', '.join(KINDS)}")
        return tuple(dict.fromkeys(kinds))

    @field_validator("overlays")
    @classmethod
    def _designed(cls, overlays: tuple[str, ...]) -> tuple[str, ...]:
        for overlay in overlays:
            if overlay not in LAID:
                raise ValueError(f"no overlay is called {overlay!r}; valid: {', '.join(LAID)}")
        return tuple(dict.fromkeys(overlays))


def run(settings: Config) -> Result:
    """Plant, ask each method in a process of its own, and score the answers.

    A method ends with this process. Raises JobError when no method has an answer.
    """
    end_on_sigterm()
    asked = methods(settings.methods, settings.peers)
    with _folder(settings.out) as folder:
        planted, left_out = _plant(settings, folder)
        answers, absent = {}, {}
        for name, command in asked.items():
            try:
                answers[name] = ask(
                    command(folder),
                    planted.names,
                    threads=settings.threads,
                    timeout_s=settings.timeout_s,
                    listed=settings.listed,
                )
            except NoAnswerError as error:
                absent[name] = str(error)
        if not answers:
            reasons = "; ".join(f"{name}: {why}" for name, why in absent.items())
            raise JobError(f"no method has an answer. {reasons}")
        scored = {name: Scored(planted, answer, settings.seed) for name, answer in answers.items()}
        result = Result(
            "clean",
            figures_of(scored, settings.kinds, settings.draws),
            notes=(*_notes(settings, planted, left_out, scored), *_absences(absent)),
            models={
                name: plain_values(one, settings.kinds, settings.draws)
                for name, one in scored.items()
            }
            | {name: {"absent": why} for name, why in absent.items()},
            headings=HEADINGS,
        )
        if settings.out:
            write_lists(settings.out, scored, settings.kinds)
    return result


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Yield a folder for the planted images: one that stays, or one that is removed."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="skindx-clean-") as folder:
            yield Path(folder) / "planted"
        return
    if out.exists():
        raise UserError(f"{out} exists already; name a new folder, or remove this one.")
    yield out / "planted"


def _plant(settings: Config, folder: Path) -> tuple[Planted, int]:
    left_out = 0
    if settings.dataset is None:
        base = painted_base(settings.images, settings.seed)
    else:
        base, left_out = folder_base(
            settings.dataset,
            settings.group_pattern,
            settings.tables,
            settings.images,
            settings.seed,
        )
    planted = plant(
        folder,
        base,
        settings.kinds,
        originals=settings.originals,
        overlaid=settings.overlaid,
        off_topic=settings.off_topic,
        seed=settings.seed,
        overlays=settings.overlays,
    )
    return planted, left_out


def _notes(
    settings: Config, planted: Planted, left_out: int, scored: dict[str, Scored]
) -> Iterator[str]:
    counts = {part: len(planted.where(part)) for part in ("base", "copy", "overlay", "off_topic")}
    where = "painted images" if settings.dataset is None else settings.dataset.resolve().name
    yield (
        f"{where}: {counts['base']} different images ({left_out} left out that may show the same "
        f"as another); {counts['copy']} copies, {settings.originals} of each of "
        f"{len(settings.kinds)} kinds in 8 orientations; {counts['overlay']} other images under "
        f"overlays that they share ({', '.join(settings.overlays)}); "
        f"{counts['off_topic']} without skin; seed {settings.seed}."
    )
    yield (
        f"copies_recall_KIND, false_links, families_across_splits_KIND are those of "
        f"{OURS if OURS in scored else next(iter(scored))} at its own threshold; with --json every "
        f"method's, with AUROC, precision and recall among the first {OFTEN}."
    )
    yield (
        "false_links: links between images that show different things, among all links made; "
        "pairs that only the dataset knows to be the same would count as false."
    )
    yield (
        f"{settings.threads} thread(s), each method in a process of its own, imports included: "
        f"processor seconds, largest resident size. The first {settings.listed:,} pairs of a list "
        f"count."
    )
    yield "; ".join(f"{name} {one.answer.version}" for name, one in scored.items()) + "."


def _absences(absent: dict[str, str]) -> list[str]:
    return [f"{name}: {why}." for name, why in absent.items()]
