"""Compare methods that find copies which hashes miss, and off-topic images, in any folder.

Copies of many kinds, overlays shared by different images, and images without skin are planted
among the images of a folder (or among painted ones). Each method ranks pairs and images; peers run
in environments of their own, in the same run.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from skindx.core.atomic_files import write_csv, write_text
from skindx.core.errors import JobError, UserError
from skindx.core.machine import python_command
from skindx.core.settings_base import Settings
from skindx.data.splits.groups import GroupTable
from skindx.metrics import Interval, Ranked, bootstrap_interval
from skindx_bench.data import clean_peers as peers_script
from skindx_bench.data.clean_answers import OFTEN, NoAnswerError, Scored, ask
from skindx_bench.data.clean_peers import PEERS
from skindx_bench.data.clean_plants import LAID, Planted, folder_base, painted_base, plant
from skindx_bench.data.copy_variants import KINDS, OVERLAYS
from skindx_bench.harness.result import Figure, Result, markdown_table
from skindx_bench.harness.training import end_on_sigterm

OURS = "skindx"
OWN = (OURS, "hashes", "phash")
"""What a build groups; its hashes alone; the plain perceptual hash."""

Command = Callable[[Path], list[str]]
"""Turns the planted folder into a command that waits for the path of its answer."""


def methods(wanted: Sequence[str], environments: Path | None) -> dict[str, Command]:
    """Return a command for each method that is wanted (): all.

    The command of a peer that is not installed raises NoAnswerError. Raises UserError for a
    method that does not exist.
    """
    known = (*OWN, *PEERS)
    for name in wanted:
        if name not in known:
            raise UserError(f"no method is called {name!r}; choose from {', '.join(known)}.")
    return {name: _command(name, environments) for name in known if name in (wanted or known)}


def _command(name: str, environments: Path | None) -> Command:
    if name in OWN:
        return lambda folder: python_command("-m", "skindx_bench.data.clean_own", name, str(folder))

    def command(folder: Path) -> list[str]:
        home = environments / PEERS[name][1] if environments else None
        python = home / "bin" / "python" if home else None
        if python is None or not python.exists():
            raise NoAnswerError("not installed")
        return [str(python.absolute()), str(peers_script.__file__), name, str(folder.absolute())]

    return command


# R = roots, D = draws


def figures_of(scored: Mapping[str, Scored], kinds: Sequence[str], draws: int) -> dict[str, Figure]:
    """Return ours by kind (or the first method's), then what all methods are compared by."""
    first = OURS if OURS in scored else next(iter(scored))
    ours = scored[first]
    figures: dict[str, Figure] = {}
    for kind in kinds:
        figures[f"copies_recall_{kind}"] = _share(*ours.recall(kind))
    for kind in kinds:
        figures[f"families_across_splits_{kind}"] = _count(*ours.torn(kind), "families")
    figures["false_links"] = _count(*ours.false_links(), "links")
    figures["images_misled_by_overlays"] = _count(*ours.misled(), "images")
    largest, images = ours.largest_group(), len(ours.planted.names)
    figures["largest_group"] = Figure(largest, "images", images, (largest, largest))
    precision = {name: _copies_ap(one, draws) for name, one in scored.items()}
    for name, figure in precision.items():
        figures[f"copies_ap_{name}"] = figure
    for name, one in scored.items():
        figures[f"recall_at_no_false_{name}"] = _share(
            one.recall_at_no_false(), int(one.pairs.hits_U.sum())
        )
    for name, one in scored.items():
        if len(one.answer.strange_S):
            figures[f"off_topic_ap_{name}"] = _off_topic_ap(one, draws)
    if f"off_topic_ap_{first}" in figures:
        figures["off_topic_ap"] = figures[f"off_topic_ap_{first}"]
    for name in scored:
        if name != first and precision[name].value > 0:
            figures[f"copies_over_{name}"] = _ratio(ours, scored[name], draws)
    peers = [name for name in scored if name not in (first, *_OURS_TOO) and precision[name].value]
    if peers:
        best = max(peers, key=lambda name: precision[name].value)
        figures["copies_over_best_peer"] = figures[f"copies_over_{best}"]
    for name, one in scored.items():
        took_s, memory_mb = one.answer.cpu_s, one.answer.memory_mb
        figures[f"seconds_{name}"] = Figure(took_s, "s", 1, (took_s, took_s))
        figures[f"memory_{name}"] = Figure(memory_mb, "MB", 1, (memory_mb, memory_mb))
    return figures


_OURS_TOO = (OWN[1],)
"""The project's own hashes are no peer."""


def plain_values(one: Scored, kinds: Sequence[str], draws: int) -> dict[str, Any]:
    """Return a method's values for the JSON; an interval is [value, low, high]."""
    images = len(one.planted.names)
    precision, recall = map(_plain, one.pairs.among_first(OFTEN))
    values: dict[str, Any] = {
        "copies": {
            "average_precision": _listed(_copies_ap(one, draws)),
            "auroc": _plain(one.pairs.auroc(images * (images - 1) // 2)),
            f"precision_at_{OFTEN}": precision,
            f"recall_at_{OFTEN}": recall,
            "recall_at_no_false": _bounds(one.recall_at_no_false()),
            "links": int(one.answer.accepted_P.sum()),
            "false_links": int((one.answer.accepted_P & ~one.same).sum()),
            "false_links_between": one.false_between(),
            "false_share": _bounds(one.false_links()[0]),
            "largest_group": one.largest_group(),
            "misled_by_overlays": _bounds(one.misled()[0]),
        },
        "recall": {kind: _bounds(one.recall(kind)[0]) for kind in kinds},
        "families_across_splits": {kind: _bounds(one.torn(kind)[0]) for kind in kinds},
        "processor_seconds": one.answer.cpu_s,
        "wall_seconds": one.answer.wall_s,
        "memory_mb": one.answer.memory_mb,
        "version": one.answer.version,
    }
    if len(one.answer.strange_S):
        precision, recall = map(_plain, one.off_topic.among_first(OFTEN))
        values["off_topic"] = {
            "average_precision": _listed(_off_topic_ap(one, draws)),
            "auroc": _plain(one.off_topic.auroc(images)),
            f"precision_at_{OFTEN}": precision,
            f"recall_at_{OFTEN}": recall,
        }
    return values


def _copies_ap(one: Scored, draws: int) -> Figure:
    measure = one.pairs.average_precision()
    interval = bootstrap_interval(measure, np.arange(measure.images), draws=draws)
    return _share(interval, int(one.pairs.hits_U.sum()))


def _off_topic_ap(one: Scored, draws: int) -> Figure:
    measure = one.off_topic.average_precision()
    interval = bootstrap_interval(measure, np.arange(measure.images), draws=draws)
    return _share(interval, int(one.off_topic.hits_U.sum()))


def _ratio(ours: Scored, other: Scored, draws: int) -> Figure:
    """Return how many times the other's average precision ours is, on the same draws of roots."""
    top, below = ours.pairs.average_precision(), other.pairs.average_precision()
    most = 1 / below.value
    measure = Ranked(
        lambda weights_DR: top.weigh(weights_DR) / np.maximum(below.weigh(weights_DR), 1e-9),
        top.images,
        high=most,
    )
    interval = bootstrap_interval(measure, np.arange(top.images), draws=draws)
    return Figure.of(interval, "×", top.images)


def _share(share: Interval, n: int) -> Figure:
    return Figure.of(share, "", n)


def _count(share: Interval, n: int, unit: str) -> Figure:
    """Return a share of n as a number with its bounds; nothing of nothing is nought."""
    if n == 0:
        return Figure(0.0, unit, 0, (0.0, 0.0))
    return Figure(round(share.value * n), unit, n, (share.low * n, share.high * n))


def _bounds(share: Interval) -> list[float | None]:
    return [_plain(value) for value in (share.value, share.low, share.high)]


def _plain(value: float) -> float | None:
    """Return None for what is not defined: JSON has no word for it."""
    return None if math.isnan(value) else value


def _listed(figure: Figure) -> list[float | None]:
    return _bounds(Interval(figure.value, *figure.spread))


LINKS = "links-{method}.csv"
RECALL = "recall.md"
COLUMNS = (
    *("truth", "first_is", "second_is", "score"),
    *("first_of", "second_of", "first", "second"),
)


def write_lists(out: Path, scored: Mapping[str, Scored], kinds: Sequence[str]) -> None:
    """Write the links that each method makes, false ones first, and recall.md."""
    for name, one in scored.items():
        rows = [
            (
                "same" if same else "different",
                *(f"{one.planted.parts[i]} {one.planted.kinds[i]}".strip() for i in pair),
                f"{score:.4f}",
                *(one.planted.origins[i] for i in pair),
                *(one.planted.names[i] for i in pair),
            )
            for pair, score, accepted, same in zip(
                one.answer.pairs_P2.tolist(),
                one.answer.score_P.tolist(),
                one.answer.accepted_P.tolist(),
                one.same.tolist(),
                strict=True,
            )
            if accepted
        ]
        columns = (
            "truth",
            "first_is",
            "second_is",
            "score",
            "first_of",
            "second_of",
            "first",
            "second",
        )
        write_csv(out / LINKS.format(method=name), columns, sorted(rows))
    recalls = [
        [kind, *(f"{one.recall(kind)[0].value:.2f}" for one in scored.values())] for kind in kinds
    ]
    torn = [
        [kind, *(f"{one.torn(kind)[0].value:.2f}" for one in scored.values())] for kind in kinds
    ]
    write_text(
        out / RECALL,
        "Share of copies that a method links with their original, at its own threshold.\n\n"
        + markdown_table(("kind", *scored), recalls)
        + "\nShare of copies in another split than their original, when its links make the groups."
        + "\n\n"
        + markdown_table(("kind", *scored), torn),
    )


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
    """A folder with the environments that `python -m skindx_bench.harness.environments` made."""
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
