"""A reviewer's walk through images that look like no skin, or unusual."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.answer_review import AnswerReview, held_for
from skindx.data.manifest import Issue, read_issues, read_manifest
from skindx.data.review import REVIEWED, SKIN_REASONS, Flag, read_flags
from skindx.data.skin_answers import put_skin_answer, read_skin_answers
from skindx.data.store import store_files


@dataclass(frozen=True, slots=True)
class Doubtful:
    """One image of which a program, or a person before, doubts that it shows skin."""

    sha256: str
    path: str
    """Relative to the dataset folder."""
    label: str
    detail: str
    score: float
    """The highest of its flags, 0..1; 1 for one that the build took out."""
    kept: bool
    """Whether it is in the dataset."""


class SkinReview(AnswerReview[str]):
    """One reviewer's answers for images: those in the dataset, and those taken out as no skin.

    Of the unanswered ones, the least certain flags come first.
    """

    def __init__(self, dataset: Path, by: str) -> None:
        """Read a dataset. Raises UserError for one in which nothing is flagged."""
        self.images = {image.sha256: image for image in doubtful(dataset)}
        if not self.images:
            raise UserError(
                f"{dataset} has no images that are flagged as not skin or off-topic: there is "
                f"nothing to do. A build flags them with `screen.not_skin: review`."
            )
        asked = sorted(self.images, key=lambda sha256: (self.images[sha256].score, sha256))
        super().__init__(dataset, by, asked, read_skin_answers, put_skin_answer)

    def record(self, sha256: str) -> Doubtful:
        """Return an image. Raises UserError for one that is not asked about."""
        if sha256 not in self.images:
            raise UserError("no such image is asked about; load the page again.")
        return self.images[sha256]


def doubtful(dataset: Path) -> Iterator[Doubtful]:
    """Yield the images that are flagged, taken out, or answered for, and whose bytes are here."""
    flags: dict[str, list[Flag]] = defaultdict(list)
    for flag in read_flags(dataset):
        if flag.reason in SKIN_REASONS:
            flags[flag.sha256].append(flag)
    answered, seen = read_skin_answers(dataset).keys(), set()
    for record in read_manifest(dataset):
        raised = flags.get(record.sha256, [])
        if raised or record.sha256 in answered:
            seen.add(record.sha256)
            detail = "; ".join(flag.detail or flag.reason for flag in raised)
            score = max((flag.score for flag in raised), default=0.0)
            yield Doubtful(record.sha256, record.path, record.label, detail, score, True)
    for issue in read_issues(dataset):
        files = store_files(dataset, issue.sha256) if _taken_out(issue, answered) else []
        if files and issue.sha256 not in seen:
            seen.add(issue.sha256)
            path = files[0].relative_to(dataset).as_posix()
            yield Doubtful(issue.sha256, path, issue.label, issue.detail, 1.0, False)


def _taken_out(issue: Issue, answered: Collection[str]) -> bool:
    return issue.reason == "not-skin" or (issue.reason == REVIEWED and issue.sha256 in answered)


@contextmanager
def reviewing_skin(dataset: Path, by: str) -> Iterator[SkinReview]:
    """Hold a dataset for one reviewer. Raises UserError while another reviewer holds it."""
    with held_for(dataset, by) as name:
        yield SkinReview(dataset, name)
