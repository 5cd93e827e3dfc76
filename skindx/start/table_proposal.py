"""A recipe for a table that nobody knows: which columns it takes, why, and what it has to ask."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from skindx.core.errors import UserError
from skindx.core.text import folded_name
from skindx.data.layouts.folder_contents import FolderContents
from skindx.data.layouts.image_places import ImageIndex
from skindx.data.sources.columns import modality_of
from skindx.data.tables.cells import split_of
from skindx.start.proposal import Proposal, Wishes
from skindx.start.table_columns import WHAT, ColumnLook, TableLook

_LEAD, _LEAST = 1.0, 2.5
"""A column is the label without a question if its score is that high, and so far above the next."""
_NAMED = 3.0
_FACTS = ("age", "sex", "site", "skin_type", "split", "licence", "creator", "attribution", "page")
_MOST_SHOWN = 6


@dataclass
class _Draft:
    """What becomes of one kind of table: its sources, and what is said of them."""

    tables: list[TableLook]
    first: TableLook
    """All of them as one table."""
    joins: list[tuple[TableLook, str, str]] = field(default_factory=list)
    """(table, key of the first table, column of this one)."""
    lines: list[str] = field(default_factory=list)

    @property
    def looks(self) -> list[TableLook]:
        """The table and those that are joined to it."""
        return [self.first, *(look for look, _, _ in self.joins)]

    def column(self, name: str) -> ColumnLook | None:
        return next(filter(None, (look.column(name) for look in self.looks)), None)


def propose_table(contents: FolderContents, index: ImageIndex, wishes: Wishes) -> Proposal | None:
    """Return a recipe for the tables of a folder; None where none of them names an image.

    Raises UserError with one question where a column cannot be told.
    """
    looks = [TableLook.from_head(head, index) for head in contents.tables]
    if wished := wishes.columns.get("image"):
        of_images = [look for look in looks if look.column(wished)]
        if not of_images:
            raise UserError(
                f"no table in {contents.root} has a column {wished!r}; correct --column "
                f"image={wished}."
            )
    else:
        of_images = [look for look in looks if look.images]
    for what in wishes.columns:
        if what not in WHAT:
            raise UserError(f"--column {what}=… is not possible; use one of {', '.join(WHAT)}.")
    if not of_images:
        return None
    for look in of_images:
        if look.head.headless:
            raise UserError(
                f"the first line of {look.head.path} looks like data, not like column names "
                f"({', '.join(look.head.columns[:4])}); add a line of column names above it, or "
                "write a recipe whose source has `header: [image, label, ...]`."
            )
    drafts = _drafts(of_images, looks, wishes)
    sources = [source for draft in drafts for source in _sources(draft, contents, wishes)]
    lines = [line for draft in drafts for line in draft.lines]
    taken = {str(path) for source in sources for path in _paths_of(source)}
    aside = [look.head.path.name for look in looks if str(look.head.path) not in taken]
    if aside:
        lines.append(f"Not read, as nothing in them is needed: {', '.join(dict.fromkeys(aside))}.")
    return Proposal({"sources": sources}, tuple(lines))


def _paths_of(source: Mapping[str, Any]) -> list[str]:
    return [source["path"], *(one["path"] for one in source.get("join", ()))]


def _drafts(
    of_images: Sequence[TableLook], looks: Sequence[TableLook], wishes: Wishes
) -> list[_Draft]:
    """Sort tables: those that name images and say a label, and those that say more of the same."""
    alike: dict[frozenset[str], list[TableLook]] = {}
    for look in of_images:
        alike.setdefault(look.head.folded, []).append(look)
    kinds = [(_together(same), same) for same in alike.values()]
    kinds.sort(key=lambda kind: (-_label_score(kind[0], wishes), -len(kind[0].columns)))
    drafts: list[_Draft] = []
    for first, same in kinds:
        over = next((draft for draft in drafts if _share_images(draft.first, first, wishes)), None)
        if over is None:
            if not drafts or _label_score(first, wishes) > 0:
                drafts.append(_Draft(same, first))
            continue
        mine, theirs = _image(over.first, wishes), _image(first, wishes)
        new = {folded_name(one.name) for one in first.columns} - over.first.head.folded
        if len(same) == 1 and new - {folded_name(theirs.name)}:
            over.joins.append((same[0], mine.name, theirs.name))
    for draft in drafts:
        _check_apart(draft.tables, wishes)
        for look in looks:
            if look not in of_images and (key := _key(draft.first, look)):
                draft.joins.append((look, key, key))
    return drafts


def _together(same: Sequence[TableLook]) -> TableLook:
    """Return tables of the same columns as one, such as those of several splits."""
    first, *others = same
    if not others:
        return first
    lines = tuple(line for look in same for line in look.head.lines)
    head = replace(first.head, lines=lines)
    columns = [
        ColumnLook(
            one.name,
            tuple(head.cells(one.name)),
            max((look.column(one.name) or one for look in same), key=_share).places,
        )
        for one in first.columns
    ]
    return TableLook(head, tuple(columns))


def _share(column: ColumnLook) -> float:
    return column.places.share


def _label_score(look: TableLook, wishes: Wishes) -> float:
    if wishes.columns.get("label") and look.column(wishes.columns["label"]):
        return 10.0
    best = max((score for score, _ in look.labels), default=0.0)
    return max(best, _NAMED if look.classes or look.levels else 0.0)


def _image(look: TableLook, wishes: Wishes) -> ColumnLook:
    return look.column(wishes.columns.get("image", "")) or look.images[0]


def _share_images(one: TableLook, other: TableLook, wishes: Wishes) -> bool:
    first, second = set(_image(one, wishes).said), set(_image(other, wishes).said)
    return 2 * len(first & second) >= min(len(first), len(second)) > 0


def _check_apart(tables: Sequence[TableLook], wishes: Wishes) -> None:
    for place, one in enumerate(tables):
        for other in tables[:place]:
            if _share_images(one, other, wishes):
                raise UserError(
                    f"{other.head.path} and {one.head.path} have the same columns and images; "
                    "move the wrong table out of the folder, or write a recipe with the correct "
                    "one."
                )


def _key(main: TableLook, other: TableLook) -> str:
    """Return the column by which another table says more of the lines of the first; "": none."""
    for column in other.columns:
        mine = main.column(column.name)
        if mine is None or len(column.counts) < len(column.said) or len(column.said) < 3:
            continue
        known = set(column.said)
        if 2 * sum(text in known for text in mine.said) >= len(mine.said) > 0:
            return mine.name
    return ""


def _sources(draft: _Draft, contents: FolderContents, wishes: Wishes) -> list[dict[str, Any]]:
    pieces = _label(draft, wishes)
    label = pieces.get("columns", {}).get("label", "")
    columns: dict[str, Any] = dict(pieces.pop("columns", {}))
    columns |= _facts(draft, label, wishes, pieces)
    images = _several(draft.first) if "image" not in wishes.columns else []
    several = len(images) > 1
    sources = []
    for look in draft.tables:
        source: dict[str, Any] = {"kind": "files", "path": str(look.head.path)}
        if look.head.sheet:
            source["sheet"] = look.head.sheet
        image = _image(look, wishes)
        cells = image.said if not several else [t for one in images for t in one.said]
        places = ImageIndex(contents).places(cells) if several else image.places
        if not places.there:
            raise UserError(
                f"the column {image.name!r} of {look.head.path} does not name images in "
                f"{contents.root} (its values look like "
                f"{image.said[0] if image.said else 'nothing'!r}); give the right column with "
                "--column image=NAME."
            )
        source |= places.settings(contents.root, look.head.path)
        if several:
            source["images"] = [_image_column(one) for one in images]
            columns.pop("file", None)
        else:
            columns["file"] = image.name
        if draft.joins:
            source["join"] = [_joined(*join) for join in draft.joins]
        if len(draft.tables) > 1 and (split := _split_of_path(look.head.path, contents.root)):
            source["split"] = split
        sources.append({**source, **pieces, "columns": dict(columns)})
    named = " and ".join(look.head.path.name for look in draft.tables)
    if several:
        what = " and ".join(repr(one.name) for one in images)
        draft.lines.insert(0, f"The columns {what} of {named} name the images.")
    else:
        what = repr(_image(draft.first, wishes).name)
        draft.lines.insert(0, f"The column {what} of {named} names the images.")
    return sources


def _several(look: TableLook) -> list[ColumnLook]:
    """Return the columns of a row that name different images of it; one alone is not several."""
    chosen: list[ColumnLook] = []
    for one in look.images:
        if not any(_same_files(one.said, other.said) for other in chosen):
            chosen.append(one)
    places = [look.head.columns.index(one.name) for one in chosen]
    return [one for _, one in sorted(zip(places, chosen, strict=True), key=lambda pair: pair[0])]


def _same_files(first: Sequence[str], second: Sequence[str]) -> bool:
    """Tell whether two columns name the same files, one perhaps without folder or ending."""
    one, other = (
        [PurePosixPath(text.replace("\\", "/")) for text in said] for said in (first, second)
    )
    if all(any(len(path.parts) > 1 for path in paths) for paths in (one, other)):
        return bool(set(one) & set(other))
    bare, others = ({path.stem.lstrip("0").casefold() for path in paths} for paths in (one, other))
    return bool(bare & others)


def _image_column(column: ColumnLook) -> dict[str, str]:
    kind = modality_of(column.name)
    kind = kind or ("dermoscopic" if column.name.casefold().startswith("derm") else "")
    return {"file": column.name} | ({"modality": kind} if kind else {})


def _joined(look: TableLook, key: str, to: str) -> dict[str, Any]:
    join = {"path": str(look.head.path), "key": key}
    if folded_name(key) != folded_name(to):
        join["to"] = to
    return join | ({"sheet": look.head.sheet} if look.head.sheet else {})


def _split_of_path(path: Path, root: Path) -> str:
    parts = re.split(r"[\W_]+", path.relative_to(root).with_suffix("").as_posix())
    return next(filter(None, map(split_of, reversed(parts))), None) or ""


def _label(draft: _Draft, wishes: Wishes) -> dict[str, Any]:
    """Return the pieces of a recipe that give the label. Raises UserError where it is not sure."""
    scored = sorted((pair for look in draft.looks for pair in look.labels), key=lambda p: -p[0])
    best = scored[0][0] if scored else 0.0
    rival = scored[1][0] if len(scored) > 1 else 0.0
    sure = best >= _LEAST and best - rival >= _LEAD
    pieces: dict[str, Any] = {}
    if wished := wishes.columns.get("label"):
        column = draft.column(wished)
        if column is None:
            raise UserError(
                f"no table of images has a column {wished!r}; correct --column label=NAME."
            )
    elif best < _NAMED and (pieces := _of_several(draft, wishes)):
        column = None
    elif sure or (len(scored) == 1 and scored[0][1].truths):
        column = scored[0][1]
    else:
        column = _asked_label(draft, scored, wishes)
    if column:
        pieces = _checked_label(draft, column, wishes)
    return pieces | ({"labels": dict(wishes.classes)} if wishes.classes else {})


def _asked_label(
    draft: _Draft, scored: Sequence[tuple[float, ColumnLook]], wishes: Wishes
) -> ColumnLook:
    """Return the column that a person says. Raises UserError where nobody can be asked."""
    shown = [_shown(column) for _, column in scored[:_MOST_SHOWN]]
    names = [column.name for _, column in scored[:_MOST_SHOWN]]
    table = draft.first.head
    if not shown:
        said = f"is none of {', '.join(table.columns[:20])}, by their names and values"
    else:
        said = f"may be {'; or '.join(shown)}"
    answer = wishes.ask("--column label", f"The label of {table.path.name} {said}. Column", names)
    if answer and (column := draft.column(answer)):
        return column
    raise UserError(
        f"the column of labels in {table.path} is not clear: it {said}; add --column label=NAME."
    )


def _of_several(draft: _Draft, wishes: Wishes) -> dict[str, Any]:
    """Return the pieces where several columns together are the label; none where they are not."""
    for look in draft.looks:
        if look.classes:
            draft.lines.append(f"One column for each class: {', '.join(look.classes)}.")
            return {"one_hot": look.classes}
        if look.levels:
            draft.lines.append(f"The label is the deepest of {', '.join(look.levels)}.")
            return {"levels": look.levels}
    rest = next((look for look in draft.looks if look.some_classes), None)
    return _with_rest(draft, rest, wishes) if rest else {}


def _with_rest(draft: _Draft, look: TableLook, wishes: Wishes) -> dict[str, Any]:
    """Return the pieces for columns of 0 and 1 of which a line may have none."""
    names = look.some_classes
    rest = wishes.classes.get("none", "")
    shown = " and ".join(map(repr, names[:4]))
    question = f"What are the lines of {look.head.path.name} that have none of {shown}"
    rest = rest or wishes.ask("--class none", question, ())
    if not rest:
        raise UserError(
            f"{look.head.path} has 0 and 1 in {shown}, and some rows have no 1; add --class "
            "none=NAME to name the class of these rows."
        )
    draft.lines.append(f"The label is that of {shown} which is 1, or else {rest}.")
    image = _image(draft.first, wishes).name
    means: dict[str, Any] = {name: {"1": name, "0": None} for name in names}
    return {
        "combine": {"rest": [image]},
        "values": means | {"rest": {"*": rest}},
        "levels": [*names, "rest"],
    }


def _shown(column: ColumnLook) -> str:
    examples = ", ".join(text[:30] for text, _ in column.counts.most_common(3))
    return f"{column.name!r} ({len(column.counts)} values such as {examples})"


def _checked_label(draft: _Draft, column: ColumnLook, wishes: Wishes) -> dict[str, Any]:
    """Return the column as the label. Raises UserError where its values name no class."""
    if column.numbers or column.truths:
        missing = [text for text in column.counts if folded_name(text) not in
                   {folded_name(one) for one in wishes.classes}]  # fmt: skip
        for text in list(missing):
            answer = wishes.ask("--class", f"What does {text!r} of {column.name!r} mean", ())
            if answer:
                wishes.classes[text] = answer
                missing.remove(text)
        if missing:
            shown = " and ".join(repr(text) for text in sorted(missing)[:4])
            options = " ".join(f"--class {text}=NAME" for text in sorted(missing)[:4])
            raise UserError(
                f"the label {column.name!r} of {draft.first.head.path} has the values {shown}, "
                f"which are not names of classes; add the meaning of each value: {options}."
            )
    draft.lines.append(
        f"The label is {_shown(column)}; {100 * column.conditions:.0f} % of its cells name a "
        "condition."
    )
    return {"columns": {"label": column.name}}


def _facts(draft: _Draft, label: str, wishes: Wishes, pieces: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of facts and groups, and note them; filters go into `pieces`."""
    columns: dict[str, Any] = {}
    taken = {label}
    for kind in (*_FACTS, "modality", "confirmed"):
        of_name = [one for look in draft.looks for one in look.of_kind(kind)]
        wished = draft.column(wishes.columns.get(kind, ""))
        found = [wished] if wished else [one for one in of_name if one.name not in taken]
        if kind == "confirmed":
            found = [one for one in found if one.confirms] + _histology(draft, taken)
        if found and wishes.columns.get(kind) != "none":
            columns[kind] = found[0].name
            taken.add(found[0].name)
            if kind == "confirmed" and found[0].truths:
                histology = {found[0].name: {"true": "histopathology", "false": None}}
                pieces["values"] = pieces.get("values", {}) | histology
    if "site" not in columns:
        numbered = next(filter(None, (look.numbered("site") for look in draft.looks)), [])
        if numbered:
            pieces["combine"] = pieces.get("combine", {}) | {"site": numbered}
            columns["site"] = "site"
    columns["group"] = _groups(draft, wishes, taken)
    facts = ", ".join(f"{kind} ({name})" for kind, name in columns.items() if kind != "group")
    draft.lines += [f"Facts by the names of columns: {facts}."] if facts else []
    for one in (column for look in draft.looks for column in look.columns):
        if one.wrong and one.name != label:
            pieces.setdefault("where_not", {})[one.name] = one.wrong
            shown = ", ".join(map(repr, one.wrong[:3]))
            draft.lines.append(f"Lines whose {one.name!r} is {shown} are left out.")
    return columns


def _groups(draft: _Draft, wishes: Wishes, taken: set[str]) -> str | list[str]:
    """Return the columns of patients and lesions, and note them."""
    groups = [
        draft.column(wishes.columns[kind]) if kind in wishes.columns else None
        for kind in ("patient", "lesion")
    ]
    found = [one for one in groups if one]
    if not found and not {"patient", "lesion"} & set(wishes.columns):
        for kind in ("patient", "lesion"):
            found += [one for look in draft.looks for one in look.of_kind(kind)][:1]
        named = bool(found)
        if not found:
            found = [one for one in draft.first.columns if one.is_id and one.name not in taken][:1]
        if found and not named:
            draft.lines.append(f"Ids repeat in {found[0].name!r}, which is taken for the group.")
    names = list(dict.fromkeys(one.name for one in found))
    if names:
        draft.lines.append(f"No split divides what shares {' or '.join(map(repr, names))}.")
    else:
        draft.lines.append(
            "No column names patients or lesions, so a split may divide the images of a person; "
            "--column patient=NAME names one."
        )
    return names[0] if len(names) == 1 else names or ""


def _histology(draft: _Draft, taken: set[str]) -> list[ColumnLook]:
    looks = (one for look in draft.looks for one in look.columns)
    return [one for one in looks if one.truth_of_histology and one.name not in taken]
