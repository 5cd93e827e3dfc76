"""The kinds of a family (exchanges, sources, optimizers, …) by name, each loaded when it is used.

A family is one dict, kind -> "module:Object". The object imports no torch and holds all that others
derive from: for most families a settings class with `kind: Literal[...]`, its help as docstring,
its price for the plan as methods, and the name of its code for `load_object`. Kinds from outside
the package are entry points of the family's group, with the kind as their name:

    [project.entry-points."skindx.exchanges"]
    toy = "my_package.toy:ToySettings"

A kind of the package keeps its name: an entry point cannot replace it. A kind that the methods kit
or the lab brings is named here as well, so that a message says what to install. Both stand beside
skindx in its checkout, and neither is on a package index: no message gives a name to install, since
a stranger could take it.
"""

import difflib
import importlib
import shlex
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import skindx
from skindx.core.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


LAB, METHODS, BOX = "skindx-bench", "skindx-methods", "skindx-ham10000"
FOLDERS = {LAB: ("methods", "benchmarks"), METHODS: ("methods",), BOX: ("models/ham10000",)}
"""Distribution -> the folders in the checkout that it is installed from.

The lab needs the kit: with both in one command pip asks no index for the kit's name.
"""


def how_to_install(distribution: str) -> str:
    """Return the command that installs one of FOLDERS in the version of this skindx."""
    checkout = Path(skindx.__file__).resolve().parents[1]
    local = [checkout / folder for folder in FOLDERS[distribution]]
    if all((folder / "pyproject.toml").is_file() for folder in local):
        return f"run `pip install {shlex.join(map(str, local))}`"
    folders = " ".join(f"./{folder}" for folder in FOLDERS[distribution])
    return f"run `pip install {folders}` in a checkout of skindx {skindx.__version__}"


def missing(what: str, distribution: str) -> str:
    """Return why `what` (a verb or a kind, as a message names it) is not there, and what to do."""
    return f"{what} needs {distribution}, which is not installed; {how_to_install(distribution)}"


def check_version(entry: "EntryPoint") -> None:
    """Raise UserError where one of FOLDERS that brings an entry point has another version."""
    name, version = (entry.dist.name, entry.dist.version) if entry.dist else ("", "")
    if name in FOLDERS and version != skindx.__version__:
        raise UserError(
            f"{name} has version {version}, but skindx has version {skindx.__version__}, and both "
            f"must be the same; {how_to_install(name)}."
        )


def entry_of(group: str, name: str) -> "EntryPoint | None":
    """Return the entry point of that name, of two the first; None where nothing installed has it.

    Metadata of packages is read at each call: it takes tens of milliseconds.
    """
    from importlib.metadata import entry_points

    return next((entry for entry in entry_points(group=group) if entry.name == name), None)


def load_entry(entry: "EntryPoint", what: str) -> Any:
    """Return what an entry point names. Raises UserError, with `what` as the message names it."""
    check_version(entry)
    try:
        return entry.load()
    except Exception as error:  # code of others: whatever it raises, it is not there
        distribution = entry.dist.name if entry.dist else entry.value
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"{what} comes from the package {distribution}, which cannot be imported ({reason}); "
            f"update or uninstall {distribution}."
        ) from error


class Family:
    """Kinds of one family: names without an import, objects on demand, a union of settings."""

    def __init__(
        self,
        noun: str,
        group: str,
        kinds: Mapping[str, str],
        *,
        gone: Mapping[str, str] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        travels: bool = False,
    ) -> None:
        """`noun` names one kind in messages; `gone` maps a former kind to what is said of it.

        `elsewhere` maps a kind to the distribution that brings it, `METHODS` or `LAB`. A kind that
        `travels` is named in files that other people open, who may lack what brings it.
        """
        self.noun, self.group, self._travels = noun, group, travels
        self._kinds, self._gone = dict(kinds), dict(gone or {})
        self._elsewhere = dict(elsewhere or {})
        self._loaded: dict[str, Any] = {}

    @cached_property
    def added(self) -> "dict[str, EntryPoint]":
        """Kinds of other distributions; of two with one name the first."""
        points = sorted(_entry_points().select(group=self.group), key=lambda point: point.name)
        return {point.name: point for point in reversed(points) if point.name not in self._kinds}

    @property
    def missing(self) -> list[str]:
        """Names of kinds that the methods kit or the lab would bring, where it is not installed."""
        return [kind for kind in self._elsewhere if kind not in self.added]

    @property
    def names(self) -> list[str]:
        """Names of all kinds: the package's in their order, then those of entry points."""
        return [*self._kinds, *sorted(self.added)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, kind: object) -> bool:
        return kind in self._kinds or kind in self.added

    def load(self, kind: str) -> Any:
        """Return a kind's object. Raises UserError for an unknown, former or broken kind."""
        if kind in self._loaded:
            return self._loaded[kind]
        if kind in self._kinds:
            result = load_object(self._kinds[kind])
        elif kind in self.added:
            result = load_entry(self.added[kind], f"{self.noun} {kind!r}")
        else:
            raise UserError(self._unknown(kind))
        self._loaded[kind] = result
        return result

    def _unknown(self, kind: str) -> str:
        if kind in self._elsewhere:
            return f"{missing(f'{self.noun} {kind!r}', self._elsewhere[kind])}."
        if kind in self._gone:
            return f"{self._gone[kind]}."
        near = difflib.get_close_matches(kind, self.names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        valid = f"{hint}Valid: {', '.join(self.names)}" if self.names else "none is installed"
        if self._travels:
            return (
                f"there is no {self.noun} {kind!r} here; choose another ({valid}), or install the "
                "package that has it."
            )
        return f"{kind!r} is not a valid {self.noun}; {valid}."

    def loaded(self) -> dict[str, Any]:
        """Return the objects of all kinds, without the entry points that cannot be imported."""
        objects = {}
        for kind in self.names:
            try:
                objects[kind] = self.load(kind)
            except UserError:
                if kind in self._kinds:
                    raise
        return objects

    def summaries(self) -> dict[str, str]:
        """Return the first sentence of each kind's docstring, for help and tables."""
        return {
            kind: " ".join((item.__doc__ or "").split("\n\n", 1)[0].split())
            for kind, item in self.loaded().items()
        }

    def union(self, *, optional: bool = False) -> Any:
        """Return the settings classes as one type for pydantic, told apart by `kind`.

        A value that names a former kind, or an entry point that cannot be imported, is refused with
        what to do; the other kinds work all the same. `optional`: None is a value too.
        """
        from pydantic import BeforeValidator, Field  # which `skindx --help` does not load

        classes = list(self.loaded().values())
        if not classes:
            refuse = self._refuse_any_but_none if optional else self._refuse_all
            return Annotated[Any, BeforeValidator(refuse)]
        one = classes[0] if len(classes) == 1 else reduce(or_, classes)
        tagged = Annotated[one, Field(discriminator="kind")] if len(classes) > 1 else one
        return Annotated[tagged | None if optional else tagged, BeforeValidator(self._refuse)]

    def _refuse(self, raw: Any) -> Any:
        kind = raw.get("kind") if isinstance(raw, dict) else raw
        known = {*self._gone, *self._elsewhere, *self.added}
        if isinstance(kind, str) and (kind in known or self._travels):
            try:
                self.load(kind)
            except UserError as error:  # whose full stop the settings' own sentence brings
                raise UserError(str(error).removesuffix(".")) from None
        return raw

    def _refuse_all(self, raw: Any) -> Any:
        kind = raw.get("kind") if isinstance(raw, dict) else raw
        # Settings need not say their kind where a family has one alone.
        kind = kind or next(iter(self._elsewhere), "")
        raise UserError(self._unknown(str(kind)).removesuffix("."))

    def _refuse_any_but_none(self, raw: Any) -> Any:
        return None if raw is None else self._refuse_all(raw)


@cache
def _entry_points() -> Any:
    """Return those of all distributions, read once: it takes tens of milliseconds."""
    from importlib.metadata import entry_points

    return entry_points()


def load_object(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
