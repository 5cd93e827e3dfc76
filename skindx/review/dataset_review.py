"""A dataset as the review page sees it: what to look at, why, and what people have answered.

An item is an image, or a pair of images that may be copies. It is open while one of its reasons
waits for an answer: a flag, a pair that the build could not verify, a box that a model proposes.
Reviewers work side by side, also in several processes; answers go to the log at once.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from skindx.core.errors import UserError
from skindx.core.text import printable
from skindx.data.answer_log import QUESTION_OF, AnswerLog, Key, Question, answer_now
from skindx.data.box import Box
from skindx.data.boxes.annotations import check_person
from skindx.data.copies.verified import (
    CopyRecord,
    answered_same,
    families,
    labels_apart,
    read_answers,
    read_copies,
)
from skindx.data.copies.verify import ACCEPT, REVIEW
from skindx.data.decisions import REVIEWED, Flag, Reason, read_flags, settles
from skindx.data.layout import COPIES, ISSUES, MANIFEST, TAXONOMY, store_files
from skindx.data.manifest import Issue, Record, image_facts, read_issues, read_manifest
from skindx.data.tables.cells import no_formula
from skindx.review.box_review import BoxReview
from skindx.taxonomy import load_taxonomy

REASONS: dict[str, str] = {
    "face": "face",
    "text": "text",
    "intimate": "intimate region",
    "label": "doubtful label",
    "not-skin": "no skin",
    "off-topic": "off-topic",
    "quality": "quality",
    "copy": "possible copies",
    "box": "box",
    "left-out": "left out",
    "": "no reason",
}
"""Reason -> its name on the page, the most urgent first; "": nothing asks for a look."""
LEFT_OUT = "left-out"
"""An image that the build left out; it is shown with the reason, and asks nothing."""
_UNREAD = ("damaged", "not-a-picture", "unsupported-format", "decode-")
"""How the reasons of images begin that nothing here should try to decode."""
assert set(get_args(Reason)) < REASONS.keys()

_LONGEST_NOTE = 1000


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """One image or pair. `rank` orders those of one reason, the smallest first."""

    key: Key
    path: str
    """Path of the first image, relative to the dataset folder."""
    label: str
    source: str
    reasons: tuple[str, ...]
    rank: float = 0.0
    kept: bool = True
    """Whether it is in the dataset."""


class DatasetReview:
    """The items of a dataset in the order of a review, and their answers.

    Every method may be called from any thread.
    """

    def __init__(self, dataset: Path) -> None:
        """Read a dataset. Raises UserError for what is none, and for damaged answers."""
        self.dataset = dataset
        self._lock = threading.RLock()
        self._state = _signature(dataset)
        self.records = {record.sha256: record for record in read_manifest(dataset)}
        if not self.records:
            raise UserError(f"{dataset} has no images; build it again from a recipe with images.")
        self.log = AnswerLog(dataset)
        self.boxes = BoxReview(dataset, self.records)
        self.flags: dict[str, list[Flag]] = defaultdict(list)
        for flag in read_flags(dataset):
            self.flags[flag.sha256].append(flag)
        self.left_out: dict[str, Issue] = {}
        copies = read_copies(dataset / COPIES) if (dataset / COPIES).exists() else []
        self.pairs: dict[Key, CopyRecord] = {
            r.pair: r for r in copies if self.records.keys() >= {*r.pair}
        }
        labels = {sha256: record.label for sha256, record in self.records.items()}
        same = families([*self.pairs.values()], answered_same(read_answers(dataset)))
        for sha256, why in labels_apart(same, labels).items():
            self.flags[sha256].append(Flag(sha256, "label", 1.0, why))
        items = [*self._images(), *self._taken_out(), *map(self._pair, self.pairs.values())]
        first = {reason: at for at, reason in enumerate(REASONS)}

        def order(item: ReviewItem) -> tuple[bool, int, float, Key]:
            waiting = self.waiting(item)
            reasons = waiting or item.reasons or ("",)
            return not waiting, min(first[one] for one in reasons), item.rank, item.key

        self.items: tuple[ReviewItem, ...] = tuple(sorted(items, key=order))
        self._place = {item.key: at for at, item in enumerate(self.items)}
        self._changed: list[int] = []
        """Places of items in the order of their changes, for pages that ask what is new."""
        self.names = _names(dataset)
        self.labels = tuple(sorted({*self.names, *labels.values()}))

    def _images(self) -> Iterator[ReviewItem]:
        for record in self.records.values():
            flags = self.flags.get(record.sha256, ())
            reasons: list[str] = [flag.reason for flag in flags]
            proposed = self.boxes.proposed(record.sha256)
            if record.boxes is not None or proposed is not None:
                reasons.append("box")
            rank = min((_rank(flag) for flag in flags), default=proposed or 0.0)
            yield ReviewItem(
                (record.sha256,), record.path, record.label, record.source,
                tuple(dict.fromkeys(reasons)), rank,
            )  # fmt: skip

    def _taken_out(self) -> Iterator[ReviewItem]:
        """Yield what was left out, has bytes here, and decodes; once for each image."""
        seen = {"", *self.records}
        for issue in read_issues(self.dataset) if (self.dataset / ISSUES).exists() else ():
            if issue.sha256 in seen or issue.reason.startswith(_UNREAD):
                continue
            seen.add(issue.sha256)
            flags = self.flags.get(issue.sha256, [])
            if issue.reason in ("not-skin", REVIEWED):
                flags = [*flags, Flag(issue.sha256, "not-skin", 1.0, issue.detail)]
                self.flags[issue.sha256] = flags
            else:
                self.left_out[issue.sha256] = issue
            if files := store_files(self.dataset, issue.sha256):
                path = files[0].relative_to(self.dataset).as_posix()
                left_out = (LEFT_OUT,) if issue.sha256 in self.left_out else ()
                reasons = tuple(dict.fromkeys((*(flag.reason for flag in flags), *left_out)))
                yield ReviewItem((issue.sha256,), path, issue.label, "", reasons, 1.0, kept=False)

    def _pair(self, row: CopyRecord) -> ReviewItem:
        sure = row.probability >= ACCEPT
        first = self.records[row.sha256_a]
        rank = row.probability if sure else -row.probability
        return ReviewItem(row.pair, first.path, first.label, first.source, ("copy",), rank)

    def waiting(self, item: ReviewItem) -> tuple[str, ...]:
        """Return the reasons of an item that wait for an answer."""
        if len(item.key) > 1:
            unsure = REVIEW <= self.pairs[item.key].probability < ACCEPT
            return () if not unsure or self.log.latest("copy", item.key) else ("copy",)
        return tuple(reason for reason in item.reasons if not self._settled(item, reason))

    def _settled(self, item: ReviewItem, reason: str) -> bool:
        (sha256,) = item.key
        if reason == LEFT_OUT:
            return True
        if reason != "box":
            return settles(self.log, sha256, reason)  # type: ignore[arg-type]
        record, image = self.records[sha256], self.log.latest("image", item.key)
        answered = record.boxes is not None or self.log.latest("box", item.key) is not None
        return answered or (image is not None and image.verdict == "remove")

    def state(self, at: int) -> dict[str, Any]:
        """Return what waits of an item, and its answers with their revisions."""
        item = self.items[at]
        answers = {
            question: {
                "verdict": answer.verdict if answer else "",
                "label": answer.label if answer else "",
                "by": answer.by if answer else "",
                "note": answer.note if answer else "",
                "revision": revision,
            }
            for question in get_args(Question)
            if (revision := self.log.revision(question, item.key))
            for answer in (self.log.latest(question, item.key),)
        }
        return {"at": at, "waiting": self.waiting(item), "answers": answers}

    def whole(self) -> dict[str, Any]:
        """Return all that a page begins with: names, and one short row an item."""
        with self._lock:
            self._refresh()
            sources = sorted({item.source for item in self.items})
            labels = {label: at for at, label in enumerate(self.labels)}
            extra = sorted({item.label for item in self.items} - labels.keys())
            labels |= {label: len(labels) + at for at, label in enumerate(extra)}
            reasons = {reason: at for at, reason in enumerate(REASONS)}
            number = {source: at for at, source in enumerate(sources)}
            rows, answered = [], []
            for at, item in enumerate(self.items):
                waiting = self.waiting(item)
                rows.append(
                    [
                        labels[item.label],
                        number[item.source],
                        [reasons[one] for one in item.reasons],
                        [reasons[one] for one in waiting],
                        len(item.key),
                        int(self.asks(item)),
                    ]
                )
                if any(self.log.revision(one, item.key) for one in get_args(Question)):
                    answered.append(self.state(at))
            return {
                "name": printable(self.dataset.resolve().name),
                "reasons": list(REASONS.items()),
                "labels": [[label, self.names.get(label, _words(label))] for label in labels],
                "classes": len(self.labels),
                "box_labels": list(self.boxes.labels),
                "sources": [printable(source) or "not named" for source in sources],
                "items": rows,
                "answered": answered,
                "cursor": len(self._changed),
            }

    def detail(self, at: int) -> dict[str, Any]:
        """Return the facts of one item, and its boxes."""
        item = self.items[at]
        if len(item.key) > 1:
            row, first = self.pairs[item.key], self.records[item.key[0]]
            second = self.records[item.key[1]]
            facts = [
                ("probability", f"{row.probability:.3f}"),
                ("points that agree", str(row.inliers)),
                ("overlap", f"{100 * row.covered:.0f} % of the smaller image"),
                *([("mirrored", "yes")] if row.mirrored else []),
                ("left", f"{_words(first.label)}, {first.split}: {first.source_url}"),
                ("middle", f"{_words(second.label)}, {second.split}: {second.source_url}"),
            ]
            return {**self.state(at), "facts": _plain(facts)}
        (sha256,) = item.key
        flags = self.flags.get(sha256, [])
        shown = {
            "why": _plain([(REASONS[flag.reason], flag.detail) for flag in flags]),
            "facts": _plain([("SHA-256", sha256)]),
        }
        record, issue = self.records.get(sha256), self.left_out.get(sha256)
        if issue is not None:
            beside = [("copy of", issue.kept_sha256), ("from", issue.url), ("SHA-256", sha256)]
            shown["why"] += _plain([(issue.reason, issue.detail or "left out by the build")])
            shown["facts"] = _plain(beside)
        if record is not None:
            origin = [("split", record.split), ("from", record.source_url), *image_facts(record)]
            shown["facts"] = _plain([*origin, ("SHA-256", sha256)])
            shown |= self.boxes.shown(sha256)
        return {**self.state(at), **shown}

    def answer(
        self,
        at: int,
        verdict: str,
        by: str,
        revision: int,
        *,
        label: str = "",
        note: str = "",
        boxes: Sequence[Box] = (),
    ) -> list[dict[str, Any]]:
        """Write an answer, on disk when this returns; return the states that it changed.

        Raises UserError for what cannot be answered so, and AnsweredMeanwhileError.
        """
        item = self._item(at)
        question = QUESTION_OF.get(verdict)
        pair = len(item.key) > 1
        if item.reasons == (LEFT_OUT,) and question != "note":
            raise UserError("the build excluded this image; change the recipe and build again.")
        if question is None or (question in ("copy", "note")) < pair or (question == "copy") > pair:
            raise UserError(f"the answer {verdict!r} is unknown; reload the page.")
        if question == "label" and label not in self.labels:
            raise UserError(f"{label!r} is no class of this dataset; choose another.")
        note = str(no_formula(printable(" ".join(note.split()))[:_LONGEST_NOTE]))
        given = answer_now(
            verdict, name_of(by), label=label if question == "label" else "", note=note
        )

        def write() -> None:
            if question != "box":
                self.log.add(item.key, given, revision)
                return
            if not item.kept:
                raise UserError(
                    "this image is not in the dataset, so it cannot have boxes; include it in "
                    "the dataset first."
                )
            with self.boxes.held():
                self._refresh()
                self.log.check("box", item.key, revision)
                if verdict == "box right":
                    self.boxes.accept(item.key[0], boxes, given.by)
                self.log.add(item.key, given)
                if verdict == "box wrong":
                    self.boxes.reject(item.key[0])

        return self._change(at, write)

    def undo(
        self, at: int, question: Question, before: int, by: str, revision: int
    ) -> list[dict[str, Any]]:
        """Give a question the answer again that it had at revision `before`; as `answer` does."""
        item = self._item(at)
        if question not in get_args(Question):
            raise UserError("the page asks what the server no longer asks; reload the page.")

        def write() -> None:
            name = name_of(by)
            if question != "box":
                self.log.restore(question, item.key, before, name, revision)
                return
            with self.boxes.held():
                self._refresh()
                self.boxes.check_undo(item.key[0])
                self.log.restore("box", item.key, before, name, revision)
                self.boxes.undo(item.key[0])

        return self._change(at, write)

    def changes(self, cursor: int) -> dict[str, Any]:
        """Return the states of the items that changed since a page's `cursor`, and the new one."""
        with self._lock:
            self._refresh()
            places = dict.fromkeys(self._changed[max(0, cursor) :])
            return {"changes": [self.state(at) for at in places], "cursor": len(self._changed)}

    def _item(self, at: int) -> ReviewItem:
        if not 0 <= at < len(self.items):
            raise UserError("this image is no longer in the dataset; reload the page.")
        return self.items[at]

    def _change(self, at: int, write: Callable[[], None]) -> list[dict[str, Any]]:
        with self._lock:
            self._refresh()
            try:
                write()
            finally:
                self._state = _signature(self.dataset)
                self._note(self.log.take_changes())
            return [self.state(at)]

    def _refresh(self) -> None:
        if _signature(self.dataset) != self._state:
            self._take_boxes()
        self.log.refresh()
        self._note(self.log.take_changes())

    def _take_boxes(self) -> None:
        """Read the manifest again, which another reviewer, or an import, gave other boxes."""
        state = _signature(self.dataset)
        renewed = {record.sha256: record for record in read_manifest(self.dataset)}
        if _shown(renewed) != _shown(self.records):
            raise UserError("the dataset was built again meanwhile; start `skindx review` again.")
        self._note([(sha,) for sha, one in renewed.items() if one != self.records[sha]])
        self.records.update(renewed)
        self.boxes.read_again()
        self._state = state

    def _note(self, keys: Sequence[Key]) -> None:
        self._changed += [self._place[key] for key in keys if key in self._place]

    def progress(self) -> tuple[int, int]:
        """Return how many of the items that ever asked for an answer have one, and how many ask."""
        asking = [item for item in self.items if self.asks(item)]
        return sum(not self.waiting(item) for item in asking), len(asking)

    def asks(self, item: ReviewItem) -> bool:
        """Tell whether an item waits for an answer, or did before it had one."""
        if len(item.key) > 1:
            return REVIEW <= self.pairs[item.key].probability < ACCEPT
        return bool(set(item.reasons) - {LEFT_OUT})


EXPORTED = (
    *("sha256", "sha256_b", "path", "class", "source", "reasons", "question", "verdict", "label"),
    *("by", "when", "note"),
)


def exported(dataset: Path) -> Iterator[tuple[object, ...]]:
    """Yield the answers that count, a row each in the columns `EXPORTED`; no cell computes."""
    review = DatasetReview(dataset)
    known = {item.key: item for item in review.items}
    for question in get_args(Question):
        for key, answer in sorted(review.log.answers(question).items()):
            item = known.get(key) or ReviewItem(key, "", "", "", ())
            row = (
                *(key if len(key) > 1 else (*key, "")),
                *(item.path, item.label, item.source, " ".join(item.reasons), question),
                *(answer.verdict, answer.label, answer.by, answer.when, answer.note),
            )
            yield tuple(no_formula(printable(cell)) for cell in row)


def name_of(by: str) -> str:
    """Return a reviewer's name as it is stored. Raises UserError for none."""
    name = str(no_formula(printable(" ".join(by.split()))[:100]))
    if not name:
        raise UserError("the name of the reviewer is missing; add --by NAME.")
    check_person(name)
    return name


def summary(review: DatasetReview) -> str:
    """Tell how far a review is, in a sentence."""
    done, asking = review.progress()
    waiting = Counter(one for item in review.items for one in review.waiting(item))
    left = ", ".join(f"{count} {REASONS[reason]}" for reason, count in waiting.most_common())
    return f"{done} of {asking} items are answered{f'; waiting: {left}' if left else ''}."


def _rank(flag: Flag) -> float:
    """Return less for what a person should see first: of no skin the least certain flags."""
    return flag.score if flag.reason in ("not-skin", "off-topic") else -flag.score


def _signature(dataset: Path) -> object:
    state = (dataset / MANIFEST).stat() if (dataset / MANIFEST).exists() else None
    return state and (state.st_ino, state.st_mtime_ns)


def _shown(records: Mapping[str, Record]) -> dict[str, tuple[str, str]]:
    return {sha256: (record.path, record.label) for sha256, record in records.items()}


def _names(dataset: Path) -> dict[str, str]:
    """Return the names of the classes by key, as far as the dataset's taxonomy has them."""
    try:
        return {one.key: one.name for one in load_taxonomy(dataset / TAXONOMY).classes}
    except UserError:  # built by other means, or before a taxonomy was stored beside it
        return {}


def _words(label: str) -> str:
    words = label.replace("_", " ").strip() or label
    return printable(words[:1].upper() + words[1:])


def _plain(facts: Sequence[tuple[str, str]]) -> list[list[str]]:
    return [[name, printable(value)[:500]] for name, value in facts if value]
