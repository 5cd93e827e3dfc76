"""`skindx new`."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from skindx.cli.train import NEEDS

if TYPE_CHECKING:
    from skindx.start.first_estimate import Estimated, TimedNetwork
    from skindx.start.first_files import FirstAnswers
    from skindx.start.image_folder import ImageFolder
    from skindx.taxonomy import Urgency


def new(
    folder: Annotated[
        Path, typer.Argument(help="A folder of images: a known dataset, a table, or class folders.")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Run folder to write; default: runs/NAME of FOLDER."),
    ] = None,
    taxonomy: Annotated[
        str | None,
        typer.Option(help="own: each folder is a class; or skin10, isic9, ..., a YAML file."),
    ] = None,
    urgency: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=TIER", help="urgent, soon or routine for a class; repeatable."),
    ] = None,
    modality: Annotated[
        Literal["dermoscopic", "clinical", "mixed"] | None,
        typer.Option(help="What the images are; default: what a sample of them looks like."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="The known dataset that it is (skindx datasets), or none of them."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=COLUMN",
            help="The column of the image, label, patient, lesion, age ...; repeatable.",
        ),
    ] = None,
    class_: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="LABEL=CLASS", help="What a label means; repeatable."),
    ] = None,
    group_pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Its first group is the patient or lesion in a file name; none: names do not "
            "tell. Default: what the names suggest.",
        ),
    ] = None,
    effort: Annotated[
        Literal["quick", "usual", "thorough"] | None,
        typer.Option(
            help="quick: from pretrained weights only the last layer learns, 128 pixels; usual, "
            "thorough: the whole network, 12 or 30 epochs of 160 or 224 pixels. Default: quick "
            "for fewer than 1,000 images, else usual."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help="A network of timm; default: one whose pretrained weights are here."),
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Let the training fetch timm's weights, once.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing; take the defaults and name them.")
    ] = False,
) -> None:
    """Look at a folder of images, and write a recipe and training settings for it.

    Known datasets (skindx datasets) are recognised by their tables and folders; of any other table
    it takes columns by their names and values, and says which; else each folder is a class. It says
    what the folder holds, asks what it cannot be sure of, writes OUT/recipe.yaml and
    OUT/config.yaml, and prints the next commands with the time and memory that they are expected to
    take here. Options answer questions in advance; without a terminal defaults are taken, and
    named, and what has none stops it. The images stay as they are.

    Example: skindx new my/images --out runs/mine --yes
    """
    from skindx.core.errors import UserError
    from skindx.core.machine import cpu_count, free_memory
    from skindx.core.progress import progress_bars
    from skindx.core.text import size
    from skindx.data.recipe import urgency_of
    from skindx.start.first_estimate import estimates, machine_is_busy, time_network
    from skindx.start.first_files import batch_of, check_out, write_first_files
    from skindx.start.image_folder import look, proposal_of
    from skindx.start.proposal import Wishes, nobody
    from skindx.taxonomy import load_taxonomy

    name = "-".join(folder.resolve().name.split()) or "new"
    out = out or Path("runs") / name
    check_out(out, folder)
    given = dict(map(urgency_of, urgency or ()))
    if taxonomy not in (None, "own"):
        load_taxonomy(taxonomy)
    if problem := _pattern_problem(group_pattern or "none"):
        raise UserError(f"--group-pattern {problem}.")
    asking = not yes and sys.stdin.isatty() and sys.stdout.isatty()
    columns, classes = dict(map(_pair, column or ())), dict(map(_pair, class_ or ()))
    wishes = Wishes(dataset, columns, classes, _ask if asking else nobody)
    proposal = proposal_of(folder, wishes)  # it may ask, which no progress bar should hide
    with progress_bars() as progress:
        seen = look(folder, progress, proposal)
    print("\n".join(seen.lines()))
    answers = _answers(seen, _Questions(asking), taxonomy, given, modality, group_pattern, effort)
    batch, side = batch_of(seen.images), answers.side(seen)
    print("Timing a network for some seconds …", flush=True)
    busy, cores = machine_is_busy(), cpu_count()
    timed = time_network(network, side, batch, len(seen.counts), pretrained)
    write_first_files(out, seen, answers, timed.member, pretrained=timed.pretrained)
    frozen, epochs = answers.frozen(timed.pretrained), answers.epochs(timed.pretrained)
    expected = estimates(seen, timed, batch=batch, epochs=epochs, frozen=frozen, cores=cores)
    _print_next(out, seen, timed, expected, f"{side} pixels, {epochs} epochs", frozen=frozen)
    if busy:
        print("Other programs keep this machine busy; the times are those without them.")
    if max(one.memory_bytes for one in expected) > free_memory():
        print(f"That is more memory than is free now ({size(free_memory())}); lower recipe.batch.")


def _print_next(
    out: Path,
    seen: "ImageFolder",
    timed: "TimedNetwork",
    expected: "Sequence[Estimated]",
    how: str,
    *,
    frozen: bool,
) -> None:
    """Say what was written, and the next commands with what they take."""
    from skindx.core.machine import cpu_count, how_to_install, missing_modules
    from skindx.core.text import size
    from skindx.start.first_files import commands

    *steps, page = commands(out)
    print(f"\nWritten: {out}/recipe.yaml and {out}/config.yaml. Each choice in them has a comment.")
    learns = "only its last layer learns" if frozen else "all of it learns"
    print(f"Training: {timed.member['model']} at {how}; {learns}.")
    if not timed.pretrained:
        print("It starts from random weights: expect little. --pretrained fetches better ones.")
    elif timed.no_hub:
        print(f"Step 2 fetches its weights, and {timed.no_hub}; connect before it.")
    if missing := missing_modules(*NEEDS):
        print(f"It needs {', '.join(missing)}: {how_to_install('train')}.")
    print(f"\nNext, with the time and memory expected on {cpu_count()} cores here:")
    for number, (words, one) in enumerate(zip(steps, expected, strict=True), 1):
        print(f"  {number}. {shlex.join(words)}\n     {one.words}")
    print(f"Then the page: {shlex.join(page)}")
    disk = size(seen.images * seen.mean_bytes)
    print(f"The dataset takes about {disk} of disk beside your images.")


def _pair(text: str) -> tuple[str, str]:
    from skindx.core.errors import UserError

    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise UserError(f"{text!r} is not NAME=VALUE; write it like --column label=dx.")
    return name.strip(), value.strip()


def _ask(option: str, question: str, choices: Sequence[str]) -> str:
    """Ask on a terminal until the answer is one of the choices, if there are any."""
    while True:
        answer: str = typer.prompt(f"{question} ({', '.join(choices)})" if choices else question)
        if not choices or answer.strip() in choices:
            return answer.strip()
        print(f"{answer!r} is none of {', '.join(choices)}.")


class _Questions:
    """Asks on a terminal; elsewhere takes the default and says so."""

    def __init__(self, asking: bool) -> None:
        self._asking = asking

    def ask(self, option: str, question: str, default: str, choices: Sequence[str] = ()) -> str:
        """Return one of the choices, or else a pattern; `option` would have given it."""
        if not self._asking:
            print(f"{question}: {default} (default; {option} changes it)")
            return default
        text = f"{question} ({', '.join(choices)})" if choices else question
        while True:
            answer: str = typer.prompt(text, default=default).strip()
            none_of = f"{answer!r} is none of {', '.join(choices)}"
            problem = none_of if choices else _pattern_problem(answer)
            if answer in choices or not problem:
                return answer
            print(f"{problem}.")


def _pattern_problem(pattern: str) -> str:
    from skindx.core.settings_base import with_group

    try:
        with_group("()" if pattern == "none" else pattern)
    except ValueError as error:
        return f"{pattern!r}: {error}"
    return ""


def _answers(  # noqa: PLR0917
    seen: "ImageFolder",
    questions: _Questions,
    taxonomy: str | None,
    given: "dict[str, Urgency]",
    modality: str | None,
    group_pattern: str | None,
    effort: str | None,
) -> "FirstAnswers":
    """Ask what no option has answered. Raises UserError for options that do not fit the folder."""
    from typing import cast

    from skindx.data.labels import map_labels
    from skindx.data.origin import Modality
    from skindx.start.first_files import EFFORTS, MODALITIES, TIERS, Effort, FirstAnswers, effort_of
    from skindx.taxonomy import load_taxonomy

    if taxonomy is None:
        taxonomy = "own"
        if known := seen.known_by():
            question = "Classes: your folders, or a shipped list that knows all of them"
            wanted = str(seen.proposal.raw.get("taxonomy")) if seen.proposal else "own"
            default = wanted if wanted in known else "own"
            taxonomy = questions.ask("--taxonomy", question, default, ["own", *known])
    if taxonomy == "own":
        missing = {key: kind for key, kind in seen.dangerous().items() if key not in given}
        if missing:
            names = ", ".join(f"{key} looks like {kind}" for key, kind in missing.items())
            tier = questions.ask(
                "--urgency", f"Urgency, where {names} and has none", "urgent", TIERS
            )
            given |= dict.fromkeys(missing, cast("Urgency", tier))
        print("Confirm what each class is taken for; another name of its folder mends it:")
        print("\n".join(seen.matches(given)))
    else:
        map_labels(seen.counts.elements(), load_taxonomy(taxonomy))
    if modality is None and seen.stated_modality:
        modality = cast(Modality, seen.stated_modality)
    if modality is None:
        default = seen.modality or "mixed"
        modality = questions.ask("--modality", "The images are", default, MODALITIES)
    if group_pattern is None and not seen.by_folders:
        group_pattern = "none"  # the source says what belongs together
    elif group_pattern is None:
        default = seen.group_pattern or "none"
        group_pattern = questions.ask(
            "--group-pattern",
            "Patient or lesion in a file name, as a regular expression, or none",
            default,
        )
    if effort is None:
        effort = questions.ask("--effort", "Training", effort_of(seen.images), list(EFFORTS))
    return FirstAnswers(
        None if taxonomy == "own" else taxonomy,
        given,
        cast(Modality, modality),
        "" if group_pattern == "none" else group_pattern,
        cast(Effort, effort),
    )
