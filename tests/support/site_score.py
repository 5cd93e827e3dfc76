"""How well a build reports the faults that are planted on the synthetic site."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skindx.data.manifest import Issue
from skindx.data.synthetic.site import SiteTruth


@dataclass(frozen=True, slots=True)
class FaultScore:
    """How well a build reports one kind of fault; `name` is the reason an issue carries.

    `planted`, `reported` (under that reason) and `true_reported` count URLs.
    """

    name: str
    planted: int
    reported: int
    true_reported: int

    @property
    def precision(self) -> float:
        """Share of the reports that are true; 1 when nothing was reported."""
        return self.true_reported / self.reported if self.reported else 1.0

    @property
    def recall(self) -> float:
        """Share of the planted faults that were reported; 1 when nothing was planted."""
        return self.true_reported / self.planted if self.planted else 1.0


def score_build(truth: SiteTruth, issues: Sequence[Issue], origin: str) -> list[FaultScore]:
    """Score the issues of a build of the site that was served at `origin`.

    Every planted fault counts in one row. A group of n copies under one class plants n - 1
    duplicates; an issue is true when its URL and the image kept in its place belong to the same
    planted group of its kind. All members of a group under several classes are to be reported as
    conflicting-duplicate.
    """
    reported: dict[str, dict[str, Issue]] = {}
    for issue in issues:
        reported.setdefault(issue.reason, {})[issue.url.removeprefix(origin)] = issue
    groups = (*truth.exact_groups, *truth.near_groups)
    conflicting = [path for group in groups if truth.conflicting(group) for path in group]

    def listed(name: str, planted: Iterable[str]) -> FaultScore:
        paths, by_path = set(planted), reported.get(name, {})
        return FaultScore(name, len(paths), len(by_path), len(paths & by_path.keys()))

    def copies(name: str, planted: Iterable[tuple[str, ...]]) -> FaultScore:
        agreeing = [group for group in planted if not truth.conflicting(group)]
        by_path = reported.get(name, {})
        true = sum(_true_copies(truth, group, by_path) for group in agreeing)
        return FaultScore(name, sum(len(group) - 1 for group in agreeing), len(by_path), true)

    return [
        listed("dead-link", truth.dead_links),
        listed("not-a-picture", truth.not_pictures),
        listed("robots", truth.disallowed),
        copies("exact-duplicate", truth.exact_groups),
        copies("near-duplicate", truth.near_groups),
        listed("conflicting-duplicate", conflicting),
    ]


def _true_copies(truth: SiteTruth, group: tuple[str, ...], by_path: dict[str, Issue]) -> int:
    """Count the members of a group that were dropped for another member of it."""
    true = 0
    for path in group:
        other_sha256s = {truth.pictures[other].sha256 for other in group if other != path}
        true += path in by_path and by_path[path].kept_sha256 in other_sha256s
    # Dropping every member for another one loses the image: the last report is false.
    return min(true, len(group) - 1)
