"""References to an ensemble's members, and the images that each did not train on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.settings_base import read_yaml
from skindx.core.untrusted import read_json
from skindx.data.manifest import Record
from skindx.training.config.ensemble import ReusedSettings, SoupSettings
from skindx.training.config.run import SETTINGS, MemberSettings, TrainSettings
from skindx.training.ensembles.trust import refuse_special_files
from skindx.training.feeding.folds import learning, partition
from skindx.training.finished.fingerprint import fingerprint
from skindx.training.finished.member import member_folder
from skindx.training.made_from import fingerprint_of
from skindx.training.towers import with_towers

# P = images of train and val, in manifest order

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class MemberRef:
    """A trained member: the run it lies in, that run's settings, its own."""

    name: str
    run: Path
    settings: TrainSettings
    member: MemberSettings
    vouched: bool = True
    """The user gave the settings; else the run's own train.yaml did, which may be of others."""

    @property
    def family(self) -> str:
        """Key that all fold members of one kind share; a member without a fold has its own."""
        if self.member.fold is None:
            return self.name
        parts = self.member.model_dump(mode="json", exclude={"name", "fold", "snapshots"})
        recipe = self.settings.recipe_of(self.member).model_dump(mode="json")
        return fingerprint_of({**parts, "recipe": recipe, "folds": self.settings.folds})

    def held_P(self, records: Sequence[Record]) -> Mask:  # noqa: N802
        """True for the images that it was validated on and did not train on."""
        _, held = partition(records, self.member.fold, self.settings.folds)
        names = {record.path for record in held}
        return np.array([record.path in names for record in learning(records)])


def member_refs(run: Path, settings: TrainSettings) -> dict[str, MemberRef]:
    """Return the trained members by name, those of other runs last. Raises UserError."""
    own = [MemberRef(member.name, run, settings, member) for member in settings.members]
    return {ref.name: ref for ref in [*own, *(_reused(ref) for ref in settings.reused)]}


def _reused(reused: ReusedSettings) -> MemberRef:
    file = reused.run / SETTINGS
    if not file.is_file():
        if reused.config is None:
            raise UserError(
                f"reused member {reused.member}: {reused.run} is no run (it has no {SETTINGS}); "
                "give its config to train it by, or correct the path."
            )
        file = reused.config
        settings = with_towers(TrainSettings.load(file))
        vouched_for: TrainSettings | None = settings
    else:
        # What a training wrote has no variables left to expand.
        settings = TrainSettings.parse(read_yaml(file), str(file), expand=False)
        vouched_for = with_towers(TrainSettings.load(reused.config)) if reused.config else None
    members = {member.name: member for member in settings.members}
    if reused.member not in members:
        raise UserError(
            f"run {reused.run} trains no member {reused.member!r}; it has {', '.join(members)}."
        )
    member = members[reused.member]
    refuse_special_files(settings, member, file)
    return MemberRef(reused.known_as, reused.run, settings, member, vouched_for == settings)


def is_there(ref: MemberRef, dataset: Path) -> bool:
    """True when a reused member is finished. Raises UserError when it is not of this dataset."""
    file = member_folder(ref.run, ref.member.name) / "member.json"
    if not file.is_file():
        return False
    expected = fingerprint(ref.settings, ref.member, dataset)
    if read_json(file, finite=False).get("fingerprint") != expected:
        raise UserError(
            f"member {ref.member.name} of {ref.run} was trained on other data than {dataset} "
            f"or with other settings than that run's {SETTINGS}; train it again, or leave it out."
        )
    return True


def units(
    settings: TrainSettings, trained: dict[str, MemberRef], records: Sequence[Record]
) -> dict[str, dict[str, Mask]]:
    """Return the ensemble's members by unit, each with the images that it did not train on.

    A unit is a member, or all fold members of one kind: together these have out-of-fold predictions
    for every image. For a soup these are the images that no ingredient trained on. Raises UserError
    when the units share no image to be fitted on.
    """
    held = {name: ref.held_P(records) for name, ref in trained.items()}
    left_out = {name for soup in settings.soups if soup.instead for name in soup.of}
    found: dict[str, dict[str, Mask]] = {}
    for name, ref in trained.items():
        if name not in left_out:
            found.setdefault(ref.family, {})[name] = held[name]
    for soup in settings.soups:
        mask_P = np.logical_and.reduce([held[name] for name in soup.of])
        if not mask_P.any():
            raise UserError(
                f"soup {soup.name}: its ingredients leave out different folds, so that together "
                "they trained on every image; take ingredients of one fold, or none with a fold."
            )
        found[soup.name] = {soup.name: mask_P}
    if not out_of_fold_P(found).any():
        names = ", ".join(name for unit in found.values() for name in unit)
        raise UserError(
            f"there is no image that none of {names} trained on, so their weights and "
            "temperature cannot be fitted; train all folds (fold: each), or leave some out."
        )
    return found


def out_of_fold_P(found: Mapping[str, Mapping[str, Mask]]) -> Mask:  # noqa: N802
    """Return the images on which every unit has a member that did not train on them."""
    every: Mask = np.logical_and.reduce(
        [np.logical_or.reduce(list(unit.values())) for unit in found.values()]
    )
    return every


def check_soup(soup: SoupSettings, trained: dict[str, MemberRef]) -> None:
    """Raise UserError for ingredients whose weights cannot be averaged."""
    first, *others = [trained[name] for name in soup.of]
    given = first.member.weights or first.member.pretrained
    for other in others:
        for key in ("model", "model_args", "preprocess", "weights", "pretrained", "seed"):
            ours, theirs = getattr(first.member, key), getattr(other.member, key)
            # From given weights all start alike but for the head, which starts near zero.
            if ours != theirs and not (key == "seed" and given):
                raise UserError(
                    f"soup {soup.name}: {first.name} has {key} {ours} and {other.name} {theirs}; "
                    "only members of one model that started from the same weights can be averaged."
                )
    if not others and not first.member.snapshots:
        raise UserError(
            f"soup {soup.name} has one ingredient, {first.name}, which keeps no snapshots; "
            "set its snapshots, or name more members."
        )
