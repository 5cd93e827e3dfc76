"""Which image of a dataset an entry of a box file means: by SHA-256, else by its path.

Tools rename: Label Studio puts eight hexadecimal digits before what is uploaded, leaves out
characters that Django does not allow in a file name, and drops the ending in its VOC export;
addresses are URL-encoded; macOS decomposes letters (NFD) that others compose (NFC). So names are
compared in steps, from the name as it is to the loosest, and the first step that knows the name
counts. Of several images of one name the one with the longest common path is meant; where two are
equally near, none is.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from skindx.core.text import folded_name
from skindx.data.boxes.box_file import BoxEntry

UNKNOWN = "the dataset has no such image"
AMBIGUOUS = "several images of the dataset have this file name"
CLAIMED = "several images of the box file may be this one image"
ELSEWHERE = "the dataset has an image of this name in another folder only"

DOUBTFUL = "the file gives it two names, and each is another image of the dataset"
COPY = "the dataset has this image once, with the boxes of another name of it"

_Key = tuple[str, ...]
"""SHA-256 of an entry, and its paths."""
_UPLOADED = re.compile(r"^[0-9a-f]{8}-(?=.)")
_IMAGE = re.compile(r"\.(jpe?g|jfif|png|webp|bmp|tiff?|gif|heic|heif)$", re.IGNORECASE)
_DEEPEST = 50
"""Folders of a path that are compared."""
_SURE = 1_000_000
"""Nearness of an entry that gives the image's SHA-256."""


@dataclass(frozen=True, slots=True)
class Matches:
    """What became of each entry, by its position."""

    image: Mapping[int, str]
    """Position -> SHA-256 of its image."""
    refused: Mapping[int, str]
    """Position -> why it has none."""


@dataclass(slots=True)
class _Claim:
    """One image that an entry may mean."""

    sha256: str
    name: str
    """Name under which the dataset knows it."""
    nearness: int
    """Equal parts at the end of the two paths."""
    foreign: bool
    """Both have folders, and the last ones differ."""
    exact: bool = True
    """The names are equal without folding."""

    @property
    def rank(self) -> tuple[int, bool]:
        return self.nearness, self.exact


def match_entries(entries: Sequence[BoxEntry], images: Iterable[tuple[str, str]]) -> Matches:
    """Match entries to images, given as (SHA-256, path or URL); one image may have several.

    Entries of the same paths are answers about one image and go together.
    """
    index = _Index(images, ((*entry.paths, *entry.also) for entry in entries))
    places: dict[_Key, list[int]] = defaultdict(list)
    for position, entry in enumerate(entries):
        places[entry.image.sha256, *entry.paths, *entry.also].append(position)
    claims: dict[_Key, _Claim] = {}
    refused: dict[_Key, str] = {}
    for key, positions in places.items():
        entry = entries[positions[0]]
        claim = index.by_sha(entry.image.sha256) if entry.image.sha256 else index.claim(entry.paths)
        if isinstance(claim, str):
            refused[key] = claim
        elif not entry.image.sha256 and index.contradict(claim, entry):
            refused[key] = DOUBTFUL
        else:
            claims[key] = claim
    refused |= _rivals(claims)
    refused |= _strangers({key: claim for key, claim in claims.items() if key not in refused})
    return Matches(
        {
            position: claim.sha256
            for key, claim in claims.items()
            if key not in refused
            for position in places[key]
        },
        {position: why for key, why in refused.items() for position in places[key]},
    )


def _rivals(claims: Mapping[_Key, _Claim]) -> dict[_Key, str]:
    """Refuse all but the nearest of the entries that mean one image; of equally near ones, all.

    Where an image came under several names, entries of each may stand in the file: one counts.
    """
    by_name: dict[tuple[str, str], list[_Key]] = defaultdict(list)
    for key, claim in claims.items():
        by_name[claim.sha256, claim.name].append(key)
    refused: dict[_Key, str] = {}
    left: dict[str, list[_Key]] = defaultdict(list)
    for (sha256, _), keys in by_name.items():
        best = max(claims[key].rank for key in keys)
        nearest = [key for key in keys if claims[key].rank == best]
        far = [key for key in keys if claims[key].rank < best]
        refused |= {key: UNKNOWN if claims[key].foreign else CLAIMED for key in far}
        if len(nearest) > 1:
            refused |= dict.fromkeys(nearest, CLAIMED)
        else:
            left[sha256] += nearest
    for keys in left.values():
        first = max(keys, key=lambda key: claims[key].nearness)
        refused |= {key: COPY for key in keys if key != first}
    return refused


def _strangers(claims: Mapping[_Key, _Claim]) -> dict[_Key, str]:
    """Refuse entries in other folders, where the file has the dataset's folders otherwise."""
    if not any(1 < claim.nearness < _SURE for claim in claims.values()):
        return {}
    return {key: ELSEWHERE for key, claim in claims.items() if claim.foreign}


@dataclass(slots=True)
class _Known:
    """A name under which the dataset knows an image."""

    sha256: str
    name: str
    parents: tuple[str, ...]
    """Folders, the innermost first, as `_folded`."""


class _Index:
    """The images of a dataset by those names that the box file may mean, step by step."""

    def __init__(self, images: Iterable[tuple[str, str]], paths: Iterable[Sequence[str]]) -> None:
        files = {_parts(path)[-1] for each in paths for path in each}
        wanted = [{form for file in files for form in theirs(file)} for theirs, _ in _STEPS]
        self._sha256s = set[str]()
        self._steps: list[dict[str, list[_Known]]] = [defaultdict(list) for _ in _STEPS]
        self._nearer: dict[tuple[int, str], dict[tuple[str, ...], list[_Known]]] = {}
        for sha256, name in images:
            self._sha256s.add(sha256)
            *folders, file = _parts(name)
            inner = folders[-_DEEPEST:]
            known = _Known(sha256, name, tuple(map(_folded, reversed(inner))))
            for step, forms, (_, ours) in zip(self._steps, wanted, _STEPS, strict=True):
                for form in dict.fromkeys(ours(file)):
                    if form in forms:
                        step[form].append(known)

    def by_sha(self, sha256: str) -> _Claim | str:
        if sha256 not in self._sha256s:
            return UNKNOWN
        return _Claim(sha256, "", _SURE, foreign=False)

    def claim(self, paths: Sequence[str]) -> _Claim | str:
        """Return the image that the paths of an entry mean, or why there is none."""
        parts = [_parts(path) for path in paths]
        for number, (theirs, _) in enumerate(_STEPS):
            forms = sorted({form for each in parts for form in theirs(each[-1])})
            known = [form for form in forms if form in self._steps[number]]
            if known:
                folders = [tuple(map(_folded, reversed(each[:-1]))) for each in parts]
                parents = [()] if theirs in _FOLDERLESS else folders
                matches = [self._nearest(number, form, each) for form in known for each in parents]
                best = max(nearness for nearness, _ in matches)
                nearest = [each for nearness, near in matches if nearness == best for each in near]
                if len({each.sha256 for each in nearest}) > 1:
                    return AMBIGUOUS
                one = nearest[0]
                apart = best == 1 and bool(one.parents) and all(parents)
                foreign = apart and "://" not in one.name
                return _Claim(one.sha256, one.name, best, foreign, theirs is not _alike)
        return UNKNOWN

    def contradict(self, claim: _Claim, entry: BoxEntry) -> bool:
        """Tell whether another name of an entry is another image than the one it claims."""
        first = folded_name(_parts(entry.paths[0])[-1])
        others = (
            path for path in (*entry.paths, *entry.also) if folded_name(_parts(path)[-1]) != first
        )
        claims = (self.claim([path]) for path in others)
        return any(isinstance(other, _Claim) and other.sha256 != claim.sha256 for other in claims)

    def _nearest(
        self, number: int, form: str, parents: tuple[str, ...]
    ) -> tuple[int, list[_Known]]:
        """Return how many parts are equal at the end at most, and one or two such images.

        Thousands of images may have one name, so each folder above it is looked up, and of images
        that are equally near no more than two are kept: they tell that neither is meant.
        """
        if (number, form) not in self._nearer:
            by_end: dict[tuple[str, ...], list[_Known]] = defaultdict(list)
            for known in self._steps[number][form]:
                for depth in range(len(known.parents) + 1):
                    same = by_end[known.parents[:depth]]
                    if not same or (len(same) == 1 and same[0].sha256 != known.sha256):
                        same.append(known)
            self._nearer[number, form] = by_end
        by_end = self._nearer[number, form]
        depth = 0
        while depth < len(parents) and parents[: depth + 1] in by_end:
            depth += 1
        return 1 + depth, by_end[parents[:depth]]


def _parts(path: str) -> tuple[str, ...]:
    """Return the folders and the file name of a path or address, in composed letters.

    Label Studio serves local files under `?d=PATH`; what else stands after a ? of an address names
    no file.
    """
    _, local, named = path.partition("?d=")
    if local:
        path = unquote(named) if "%2f" in named.lower() else named
    elif "://" in path:
        try:
            split = urlsplit(path)
        except ValueError:
            split = SplitResult("", "", path, "", "")
        path = f"{split.netloc}/{unquote(split.path)}"
    path = unicodedata.normalize("NFC", path.replace("\\", "/"))
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return tuple(parts) or (path,)


def _folded(folder: str) -> str:
    return folded_name(unquote(folder))


def _as_it_is(name: str) -> Iterator[str]:
    yield name


def _unquoted(name: str) -> Iterator[str]:
    yield name
    yield unicodedata.normalize("NFC", unquote(name))


def _alike(name: str) -> Iterator[str]:
    """Yield a name as Windows and macOS compare it: IMG_1.JPG is img_1.jpg."""
    yield folded_name(unquote(name))


def _without_prefix(name: str) -> Iterator[str]:
    for form in _unquoted(name):
        if _UPLOADED.match(form):
            yield _UPLOADED.sub("", form)


def _uploaded(name: str) -> Iterator[str]:
    """Yield the forms under which Django stores an upload: no spaces, few signs."""
    for form in _unquoted(name):
        yield form
        for letters in ("NFC", "NFD"):
            plain = unicodedata.normalize(letters, form).strip().replace(" ", "_")
            yield unicodedata.normalize("NFC", re.sub(r"[^-\w.]", "", plain))


def _stem(name: str) -> Iterator[str]:
    """Yield a name of which a tool took the ending away, as Label Studio's VOC export does."""
    if not _IMAGE.search(name):
        yield from _unquoted(name)


def _stem_without_prefix(name: str) -> Iterator[str]:
    if not _IMAGE.search(name):
        yield from _without_prefix(name)


def _without_ending(name: str) -> Iterator[str]:
    for form in _unquoted(name):
        yield _IMAGE.sub("", form)


def _uploaded_without_ending(name: str) -> Iterator[str]:
    for form in _uploaded(name):
        yield _IMAGE.sub("", form)


_Forms = Callable[[str], Iterator[str]]
_STEPS: Sequence[tuple[_Forms, _Forms]] = (
    (_as_it_is, _as_it_is),
    (_unquoted, _unquoted),
    (_alike, _alike),
    (_without_prefix, _uploaded),
    (_stem, _without_ending),
    (_stem_without_prefix, _uploaded_without_ending),
)
"""Forms of the name in the box file and of that in the dataset; equal ones are one name."""
_FOLDERLESS = (_without_prefix, _stem_without_prefix)
"""Forms of uploads: they lie in a folder that Label Studio named."""
