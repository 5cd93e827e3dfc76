"""A recipe: where a dataset's images come from and how they are cleaned and split."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from pydantic import AfterValidator, Field, PrivateAttr

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.secret_hosts import ANY_HOST, check_sent, host_of, variables, without_values
from skindx.core.settings_base import Settings
from skindx.data.boxes.box_formats import BoxSource
from skindx.data.copies.deduplicate import DedupSettings
from skindx.data.crawl.fetch_settings import FetchSettings
from skindx.data.screening.screen import ScreenSettings
from skindx.data.sources.source_kinds import Source
from skindx.data.splits.groups import GroupSettings
from skindx.data.splits.split import SplitSettings
from skindx.taxonomy import Urgency


def _decided(urgency: Urgency) -> Urgency:
    if urgency == "unknown":
        raise ValueError("write urgent, soon or routine")
    return urgency


class BuildSettings(Settings):
    """All settings of a build."""

    name: str = Field(min_length=1)
    taxonomy: str | None = None
    """Name or YAML path of a taxonomy; null keeps the labels of the sources."""
    urgency: Mapping[str, Annotated[Urgency, AfterValidator(_decided)]] = Field(
        default_factory=dict, exclude_if=lambda urgency: not urgency
    )
    """Class -> urgent, soon or routine, where the taxonomy or the shipped ones say otherwise."""
    min_known: float = Field(default=0.5, ge=0, le=1)
    """Least share of images whose label the taxonomy must know; below it, the build is refused."""
    targets: Mapping[str, Annotated[int, Field(ge=1, le=10**12)]] = Field(default_factory=dict)
    """Class -> target number of images; the build reports what is missing."""
    sources: tuple[Source, ...] = Field(min_length=1)
    fetch: FetchSettings = Field(default_factory=FetchSettings)
    screen: ScreenSettings = ScreenSettings()
    dedup: DedupSettings = DedupSettings()
    groups: GroupSettings = GroupSettings()
    split: SplitSettings = SplitSettings()
    boxes: BoxSource | None = None
    """Lesion boxes (COCO, YOLO, VOC, CVAT, FiftyOne, Label Studio, masks), or their path.

    Joined by SHA-256 where the file has it, else by the file name of each image's URL."""
    blocklist: Path | None = None
    """A block list that several datasets share; that of the dataset folder always counts too."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    workers: int = Field(default=0, ge=0, le=4096)
    """Processes that screen images on this machine; 0 takes all cores that this one may use."""

    _sent: frozenset[str] = PrivateAttr(frozenset())
    """Variables whose values stand in the URLs."""

    def check_sent(self, raw: Mapping[str, Any], origin: str) -> None:
        """Raise UserError for a variable that a source sends to a host not named for it."""
        given = raw.get("sources")
        for number, source in enumerate(self.sources):
            part = given[number] if isinstance(given, list | tuple) else {}
            check_sent(_sent(part, source), source.hosts(), origin)
        fetch = raw.get("fetch")
        contact = fetch.get("contact") if isinstance(fetch, Mapping) else None
        if set(variables(contact)) - {"SKINDX_CONTACT"}:
            check_sent(contact, [ANY_HOST], origin)
        self._sent = frozenset(variables(raw, of_urls=True))

    def save(self, path: Path) -> None:
        """Write the settings as YAML; a variable in a URL stays one: it may be a secret."""
        values = without_values(self.model_dump(mode="json"), self._sent)
        write_text(path, yaml.safe_dump(values, sort_keys=False))


def _sent(raw: Any, value: object) -> Any:
    """Return what of a source's plain values may be sent; `value` is what became of them.

    Paths of this machine are sent nowhere, and a URL is checked for its own host already.
    """
    if isinstance(value, Path) or (isinstance(value, str) and host_of(value)):
        return None
    if isinstance(raw, Mapping):
        inner = value if isinstance(value, Mapping) else vars(value)
        return {key: _sent(one, inner.get(key)) for key, one in raw.items()}
    return raw


def load_build_settings(
    source: Path,
    sets: Sequence[str] = (),
    taxonomy: str | None = None,
    urgencies: Sequence[str] = (),
) -> BuildSettings:
    """Return the settings for `skindx build SOURCE`: a recipe YAML or a folder of class folders.

    `taxonomy` wins over the recipe's, and so do `urgencies`, each CLASS=urgent|soon|routine, class
    by class. Raises UserError.
    """
    settings = _load(source, sets, taxonomy)
    if not urgencies:
        return settings
    return settings.model_copy(
        update={"urgency": {**settings.urgency, **dict(map(urgency_of, urgencies))}}
    )


def urgency_of(text: str) -> tuple[str, Urgency]:
    """Return class and urgency of CLASS=urgent|soon|routine. Raises UserError."""
    label, _, urgency = text.rpartition("=")
    if not label.strip() or urgency.strip() not in ("urgent", "soon", "routine"):
        raise UserError(
            f"--urgency {text!r} has the wrong form; write CLASS=urgent, CLASS=soon or "
            "CLASS=routine, such as --urgency melanoma=urgent."
        )
    return label.strip(), cast(Urgency, urgency.strip())


def _load(source: Path, sets: Sequence[str], taxonomy: str | None) -> BuildSettings:
    if taxonomy is not None:
        sets = [*sets, f"taxonomy={json.dumps(taxonomy)}"]
    if source.is_dir():
        folder = source.resolve()
        raw = {"name": folder.name, "sources": [{"kind": "folder", "path": str(folder)}]}
        return BuildSettings.load(None, sets, start=raw)
    if source.exists() and source.suffix not in (".yaml", ".yml"):
        raise UserError(
            f"{source} is neither a folder of class folders nor a recipe (.yaml); give one of them."
        )
    return BuildSettings.load(source, sets)
