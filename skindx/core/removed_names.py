"""Every stable name that versions before had and this one has not, and what to do instead.

One table: the command line and the settings answer by it, so that whoever follows an older guide
reads one sentence, and a test holds it beside the changelog. Names are written as in
docs/reference/stable-names.txt, with `=` before a value. A name that still warns stands in
DEPRECATED of skindx/core/errors.py first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from skindx.core.errors import UserError


@dataclass(frozen=True)
class Removal:
    """What to do instead of using a name, and the first version that lacks it."""

    instead: str
    why: str = ""
    """Reason, which follows "because"; "" where what to do says it."""
    since: str = "1.0"

    def sentence(self, name: str) -> str:
        """Return what is said of the name, without a full stop."""
        why = f", because {self.why}" if self.why else ""
        return f"{name} was removed in skindx {self.since}{why}; {self.instead}"


_NO_GAIN = "measurements showed no gain"
_FITS = "use owt, or engine.zero=3 for a network that is too large for one GPU"
_FITTED = (
    "use mean or vote",
    "fitted weights were worse than the plain mean on images that they were not fitted on",
)
_TABLE = (
    "give this option to `skindx dedup embed` instead, which writes the table that the audit reads"
)

REMOVED = {
    name: Removal(instead) if isinstance(instead, str) else Removal(*instead)
    for name, instead in {
        "verb gallery": "run `skindx review DATASET` to see the images that were kept and "
        "excluded, and delete galleries of older versions",
        "verb annotate": "run `skindx review DATASET --reason box`, and `skindx boxes propose` "
        "in place of --bundle",
        "verb screen": "run `skindx new FOLDER` before the build, and `skindx review DATASET` "
        "after it to see the excluded images",
        "verb dedup sweep": "set `dedup.copies` to verify what hashes find, or run `skindx bench "
        "data threshold` to measure a threshold",
        "verb plan network": "run `skindx bench network` to measure the network between ranks",
        "verb audit --weights": _TABLE,
        "verb audit --bundle": _TABLE,
        "verb audit --quality": (
            "remove it",
            "the build excludes dark, blurred and blank images by `screen` in the recipe",
        ),
        "verb audit --plant": "run `skindx bench honesty labels`, which plants wrong labels and "
        "scores the ranking",
        "verb audit --combine": ("remove it", "the ranking always combines all evidence"),
        "verb build --diff": "compare the columns sha256, label and split of both manifest.parquet",
        "verb remove --gallery": "remove it, and delete galleries of older versions yourself "
        "(DATASET/gallery is deleted automatically)",
        "verb train --suggest": ("train members with `trunk: frozen` instead", _NO_GAIN),
        "verb plan --html": (
            "remove it",
            "the terminal shows the plan and --json writes every candidate",
        ),
        "verb plan make --devices": "measure on the other device with `skindx plan measure`",
        "verb plan make --one-rank-s": "run `skindx plan measure` to time a step, and give its "
        "file with --trace",
        "verb plan check --nodes": ("remove it", "the run stores its number of nodes"),
        "verb publish --format=webdataset": "use hub or imagefolder (the Parquet files of hub can "
        "be streamed too)",
        "verb export --to=sparse": (
            "use onnx or openvino, with --precision int8 for speed",
            _NO_GAIN,
        ),
        "train soups": ("keep the members themselves or use recipe.ema", _NO_GAIN),
        "train distil": ("train the small network as a separate member", _NO_GAIN),
        "train members[].snapshots": ("remove it", _NO_GAIN),
        "train members[].targets": ("remove it", _NO_GAIN),
        "train members[].trunk=lora": ("use trained or frozen", _NO_GAIN),
        "train ensemble.combine=weighted": _FITTED,
        "train ensemble.combine=greedy": _FITTED,
        "train engine.parallel=tensor": (_FITS, _NO_GAIN),
        "train engine.parallel=model": (
            _FITS,
            "a pipeline of stages was slower than owt in every measurement",
        ),
        "train engine.parallel=operators": ("use owt", "operators was no faster"),
        "recipe dedup.embeddings": "use `copies`, which finds and verifies what hashes miss",
        "recipe fetch.partition": ("remove it", "one crawl queries all hosts"),
        "recipe screen.ood": "run `skindx audit --off-topic` after the build instead",
    }.items()
}
"""A verb, `verb VERB --option` (also of the verbs below it), `verb VERB --option=value`, and keys
of recipes and of trainings; `[]` is each item of a list, `=` a value or the `kind` below it."""


def removed_kinds(family: str) -> dict[str, str]:
    """Return the former kinds of a setting such as `train engine.parallel`, with their sentence."""
    start = f"{family}="
    return {
        name.removeprefix(start): removal.sentence(name.removeprefix("train "))
        for name, removal in REMOVED.items()
        if name.startswith(start)
    }


_OFF: tuple[Any, ...] = (None, False, 0, "", [], {}, (), "no", "off")
"""Values of a key that changed nothing; YAML's no and off come as text."""


def removed_keys(place: str, raw: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a mapping that are gone, or whose value is, each with its sentence.

    `place` is that of the mapping, such as `train members[].`. A key that holds nothing changed
    nothing in versions that had it.
    """
    for key, value in raw.items():
        kind = value.get("kind") if isinstance(value, dict) else value
        shown = place.partition(" ")[2].replace("[]", "")
        if (removal := REMOVED.get(f"{place}{key}")) and value not in _OFF:
            yield key, removal.sentence(f"{shown}{key}")
        elif isinstance(kind, str) and (removal := REMOVED.get(f"{place}{key}={kind}")):
            yield key, removal.sentence(f"{shown}{key}={kind}")


def refuse_removed_verb(verb: str, name: str) -> None:
    """Raise UserError for a verb below `verb` (empty: the first word) that is gone."""
    called = f"{verb} {name}".strip()
    if removal := REMOVED.get(f"verb {called}"):
        raise UserError(f"{removal.sentence(f'skindx {called}')}.")


def refuse_removed_options(verb: str, words: Sequence[str], options: Iterable[str]) -> None:
    """Raise UserError where the words after a verb name an option, or its value, that is gone.

    It is said before anything else is wrong with them. `options` are those that the verb has.
    """
    known, parents = set(options), verb.split()
    for place, word in enumerate(words):
        if word == "--":
            return
        option, equals, value = word.partition("=")
        if not option.startswith("--"):
            continue
        if not equals:
            value = words[place + 1] if place + 1 < len(words) else ""
        if removal := REMOVED.get(f"verb {verb} {option}={value.lower()}"):
            raise UserError(f"{removal.sentence(f'{option} {value}')}.")
        if option in known:
            continue
        for depth in range(len(parents), 0, -1):
            if removal := REMOVED.get(f"verb {' '.join(parents[:depth])} {option}"):
                raise UserError(f"{removal.sentence(option)}.")


_NOTHING = {"", "[]", "{}", "0", "null", "~", "false"}


def refuse_removed_key(root: str, key: str, value: str) -> None:
    """Raise UserError for a `key=value` of `--set` that is gone; `root` is `train` or `recipe`."""
    parts = ["[]" if part.isdigit() else part for part in key.split(".")]
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth]).replace(".[]", "[]")
        removal = REMOVED.get(f"{root} {name}")
        if removal and not (depth == len(parts) and value.lower() in _NOTHING):
            raise UserError(f"{removal.sentence(name.replace('[]', ''))}.")
    name = ".".join(parts).replace(".[]", "[]").removesuffix(".kind")
    removal = REMOVED.get(f"{root} {name}={value}")
    if removal:
        raise UserError(f"{removal.sentence(f'{name}={value}'.replace('[]', ''))}.")
