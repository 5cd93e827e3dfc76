"""Every figure of an evaluation from its table of images, with numpy and scikit-learn alone.

Written from the definitions, not from skindx, which it does not import: what it computes is what a
reader of a paper would compute from predictions.csv and predictions.json.
"""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, roc_auc_score, roc_curve, top_k_accuracy_score

# N = images, C = classes, M = members, D = draws of groups

Array = NDArray[Any]
CANCERS = ("Melanoma", "Squamous cell carcinoma", "Basal cell carcinoma")
DRAWS = 50
STEPS = ("urgent", "soon", "unknown", "routine")


@dataclass
class Figure:
    """A figure, and its values on resampled groups."""

    value: float
    draws_D: Array


class Simulated:
    """A p-value of random permutations: another order of draws gives another one."""


class Table:
    """The rows, and the figures of any of them."""

    def __init__(self, folder: Path) -> None:
        with (folder / "predictions.csv").open(newline="") as file:
            self.rows = list(csv.DictReader(file))
        self.settings = json.loads((folder / "predictions.json").read_text())
        self.keys = [entry["key"] for entry in self.settings["classes"]]
        self.truth_N = np.array([self.keys.index(row["label"]) for row in self.rows])
        self.served_NC = self.numbers("probability")
        self.predicted_N = self.served_NC.argmax(axis=1)
        self.urgent_C = np.array([c["urgency"] == "urgent" for c in self.settings["classes"]])
        self.urgent_N = self.urgent_C[self.truth_N]
        _, group_N = np.unique(self.column("group"), return_inverse=True)
        groups = group_N.max() + 1
        random = np.random.default_rng(99)
        drawn_DG = random.multinomial(groups, np.full(groups, 1 / groups), size=DRAWS)
        self.groups, self.weights_DN = groups, drawn_DG[:, group_N]
        self.resampled = [np.repeat(np.arange(len(group_N)), w_N) for w_N in self.weights_DN]

    def column(self, name: str) -> Array:
        return np.array([row[name] for row in self.rows])

    def numbers(self, name: str) -> Array:
        """An empty row of cells is NaN."""
        columns = [self.column(f"{name}_{key}") for key in self.keys]
        return np.array([[float(cell or "nan") for cell in column] for column in columns]).T

    def share(self, hits_N: Array, among_N: Array) -> Figure:
        n_D = self.weights_DN @ among_N.astype(float)
        with np.errstate(invalid="ignore"):
            draws_D = self.weights_DN @ (hits_N * among_N).astype(float) / n_D
        return Figure(float(hits_N[among_N].mean()) if among_N.any() else np.nan, draws_D)

    def figure(self, function: Callable[[Array], float], among_N: Array | None = None) -> Figure:
        """A function of row numbers; among some rows, those of each draw that are among them."""
        among_N = np.ones(len(self.rows), dtype=bool) if among_N is None else among_N
        values = [function(rows[among_N[rows]]) for rows in self.resampled]
        return Figure(function(np.flatnonzero(among_N)), np.array(values))

    def figures(self, function: Callable[[Array], Array]) -> list[Figure]:
        """The same of a function that returns several figures, of all rows."""
        values_DK = np.stack([function(rows) for rows in self.resampled])
        every = function(np.arange(len(self.rows)))
        return [
            Figure(float(value), draws_D) for value, draws_D in zip(every, values_DK.T, strict=True)
        ]

    def missed(
        self, missed_N: Array, among_N: Array, name: str = "missed"
    ) -> dict[str, Any] | None:
        if not among_N.any():
            return None
        hits_N = missed_N & among_N
        rate = {"rate": self.share(hits_N, among_N), "groups": self.groups_of(among_N)}
        return {"n": among_N.sum(), name: hits_N.sum()} | rate

    def groups_of(self, among_N: Array) -> int:
        return len(set(self.column("group")[among_N]))

    def over_expected(self, of_N: Array, probability_N: Array) -> Figure:
        return self.figure(lambda rows: float(of_N[rows].sum() / probability_N[rows].sum()))


def all_figures(folder: Path) -> dict[str, Any]:
    """Return the figures in the shape of metrics.json."""
    table = Table(folder)
    truth_N, served_NC, predicted_N = table.truth_N, table.served_NC, table.predicted_N
    names = table.settings["members"]
    members = [table.numbers(f"member_{name}") for name in names]
    right_N, every_N = predicted_N == truth_N, np.ones(len(truth_N), dtype=bool)
    confidence_N = served_NC.max(axis=1)
    figures: dict[str, Any] = {
        "pictures": len(truth_N),
        "groups": table.groups,
        "k": min(5, len(table.keys)),
        "ensemble": _scores(table, served_NC),
        "members": [_scores(table, member_NC) for member_NC in members],
        "gains": _gains(table, served_NC, members),
        "classes": [
            {
                "n": (truth_N == c).sum(),
                "found": (right_N & (truth_N == c)).sum(),
                "sensitivity": table.share(right_N, truth_N == c),
                "called": ((predicted_N == c) & (truth_N != c)).sum(),
                "specificity": table.share(predicted_N != c, truth_N != c),
                "groups": table.groups_of(truth_N == c),
                "observed_over_expected": table.over_expected(truth_N == c, served_NC[:, c]),
            }
            for c in range(len(table.keys))
        ],
        "confusion": [
            [((truth_N == t) & (predicted_N == p)).sum() for p in range(len(table.keys))]
            for t in range(len(table.keys))
        ],
        "confusions": _commonest(table),
        "reliability": [
            one
            | {
                "right": table.share(
                    right_N, (one["low"] < confidence_N) & (confidence_N <= one["high"])
                )
            }
            for one in _bins(confidence_N, right_N)
        ],
        "risk_curve": [
            one | {"wrong": table.share(~right_N, confidence_N >= one["confidence"])}
            for one in _risk_curve(confidence_N, right_N)
        ],
        "urgent": table.missed(~table.urgent_C[predicted_N], table.urgent_N),
        "cancers": [_cancer(table, name) for name in CANCERS],
        "sets": _sets(table),
        "urgent_risk": _risk(table, "urgent_risk"),
        "soon_risk": _risk(table, "soon_risk"),
        "questions": [
            _question(table, ("urgent",), "urgent_risk"),
            _question(table, ("urgent", "soon"), "soon_risk"),
        ],
        "breakdowns": [
            _breakdown(table, age_bands(values) if name == "age" else values)
            for name in ("skin_type", "age", "sex", "site", "source", "confirmed_by")
            for values in (table.column(name),)
        ],
        "detector": _detector(table),
        "assisted": _assisted(table),
        "known_facts": _known_facts(table),
    }
    p_values = table.column("ood_p_value").astype(float)
    refused = table.share(p_values <= table.settings["ood_rate"], every_N)
    rate = table.settings["ood_rate"]
    other = table.share(table.column("other_modality") == "True", every_N)
    modality = {"refused": other, "promised": 0.015, "n": len(p_values)}
    ood = {"refused": refused, "promised": rate, "n": len(p_values)}
    refused_N = (p_values <= rate) | (table.column("other_modality") == "True")
    alone_N = refused_N & ~(p_values <= rate)
    return figures | {"ood": ood, "modality": modality} | _served(table, refused_N, alone_N)


def _served(table: Table, refused_N: Array, alone_N: Array) -> dict[str, Any]:
    """What the page did, and the same figures of images with and without histology.

    Of the images `alone_N`, refused for their modality alone, the next steps count that they had.
    """
    steps_N = np.where(refused_N, "none", table.column("next_step"))
    abstained_N = (table.column("abstained") == "True") & ~refused_N
    urgent_N, every_N = table.urgent_N, np.ones(len(refused_N), dtype=bool)
    names, had_N = (*STEPS, "none"), table.column("next_step")
    kinds = [(of_N, steps_N) for of_N in (urgent_N, ~urgent_N, every_N)]
    kinds += [(of_N & alone_N, had_N) for of_N in (urgent_N, ~urgent_N)]
    served = [
        {
            "n": of_N.sum(),
            "groups": table.groups_of(of_N),
            "steps": {name: (got_N[of_N] == name).sum() for name in names},
            "rates": {name: table.share(got_N == name, of_N) for name in names},
            "abstained": abstained_N[of_N].sum(),
            "abstained_rate": table.share(abstained_N, of_N),
        }
        for of_N, got_N in kinds
        if of_N.any()
    ]
    risk_N = table.served_NC[:, table.urgent_C].sum(axis=1)

    def auroc(rows: Array) -> float:
        truth = table.truth_N[rows]
        areas = [roc_auc_score(truth == c, table.served_NC[rows, c]) for c in np.unique(truth)]
        return float(np.mean(areas))

    def part(of_N: Array) -> dict[str, Any]:
        return {
            "n": of_N.sum(),
            "groups": table.groups_of(of_N),
            "majority": _majority(table, of_N),
            "top1": table.share(table.predicted_N == table.truth_N, of_N),
            "auroc": table.figure(auroc, of_N),
            "urgent_auroc": table.figure(
                lambda rows: float(roc_auc_score(urgent_N[rows], risk_N[rows])), of_N
            ),
            "urgent": table.missed(steps_N != "urgent", urgent_N & of_N),
            "others": table.missed(steps_N == "urgent", ~urgent_N & of_N, "raised"),
        }

    histology_N = table.column("confirmed_by") == "histology"
    return {
        "served": served,
        "spectrum": [part(of_N) for of_N in (histology_N, ~histology_N, every_N)],
        "majority": _majority(table, every_N),
    }


def _majority(table: Table, among_N: Array) -> dict[str, Any]:
    counts = np.bincount(table.truth_N[among_N])
    of_N = (table.truth_N == counts.argmax()) & among_N
    top1 = table.share(of_N, among_N)
    return {"n": counts.max(), "groups": table.groups_of(of_N), "top1": top1}


def _scores(table: Table, probability_NC: Array) -> dict[str, Figure]:
    truth_N = table.truth_N
    labels = np.arange(len(table.keys))
    best_N = probability_NC.argmax(axis=1)
    right_N, confidence_N = best_N == truth_N, probability_NC.max(axis=1)
    every_N = np.ones(len(truth_N), dtype=bool)
    balanced_NC = probability_NC / table.settings["mix"]
    squares_N = ((probability_NC - np.eye(len(labels))[truth_N]) ** 2).sum(axis=1)

    def top(k: int) -> Figure:
        order_NC = np.argsort(-probability_NC, axis=1, kind="stable")[:, :k]
        figure = table.share((order_NC == truth_N[:, None]).any(axis=1), every_N)
        if k < len(labels):
            official = top_k_accuracy_score(truth_N, probability_NC, k=k, labels=labels)
            assert abs(official - figure.value) < 1e-12
        return figure

    def auroc(rows: Array) -> float:
        of_class = [truth_N[rows] == c for c in labels]
        areas = [
            roc_auc_score(y, probability_NC[rows, c])
            for c, y in enumerate(of_class)
            if y.any() and not y.all()
        ]
        return float(np.mean(areas))

    def macro_f1(rows: Array) -> float:
        present = np.unique(truth_N[rows])
        return float(f1_score(truth_N[rows], best_N[rows], labels=present, average="macro"))

    def ece(rows: Array) -> float:
        bins = _bins(confidence_N[rows], right_N[rows])
        gaps = [b["n"] * abs(b["accuracy"] - b["confidence"]) for b in bins if b["n"]]
        return sum(gaps) / len(rows)

    def classwise(rows: Array) -> float:
        gaps = [
            b["n"] * abs(b["accuracy"] - b["confidence"])
            for c in labels
            for b in _bins(probability_NC[rows, c], truth_N[rows] == c)
            if b["n"]
        ]
        return sum(gaps) / len(rows) / len(labels)

    def aurc(rows: Array) -> float:
        c, wrong = confidence_N[rows], ~right_N[rows]
        order = np.argsort(-c)
        upto = np.searchsorted(-c[order], -c, side="right")
        return float((np.cumsum(wrong[order])[upto - 1] / upto).mean())

    return {
        "top1": top(1),
        "top3": top(3),
        "top_k": top(min(5, len(labels))),
        "balanced_accuracy": table.figure(lambda rows: _balanced(probability_NC, truth_N, rows)),
        "macro_f1": table.figure(macro_f1),
        "auroc": table.figure(auroc),
        "balanced_rule_top1": table.share(balanced_NC.argmax(axis=1) == truth_N, every_N),
        "balanced_rule_accuracy": table.figure(lambda rows: _balanced(balanced_NC, truth_N, rows)),
        "calibration_error": table.figure(ece),
        "classwise_calibration_error": table.figure(classwise),
        "log_loss": table.share(-np.log(probability_NC[np.arange(len(truth_N)), truth_N]), every_N),
        "brier": table.share(squares_N, every_N),
        "selective_risk_area": table.figure(aurc),
    }


def _gains(table: Table, served_NC: Array, members: list[Array]) -> list[dict[str, Any]]:
    """Without validation answers the gain over each member stands."""

    def gain(key: str, ours: dict[str, Figure], theirs: dict[str, Figure]) -> dict[str, Figure]:
        draws_D = ours[key].draws_D - theirs[key].draws_D
        return {"gain": Figure(ours[key].value - theirs[key].value, draws_D)}

    keys = ("top1", "balanced_accuracy", "balanced_rule_accuracy", "auroc", "log_loss")
    ours, scores = _scores(table, served_NC), [_scores(table, p_NC) for p_NC in members]
    return [{"gains": [gain(key, ours, one) for one in scores], "choice": None} for key in keys]


def _balanced(probability_NC: Array, truth_N: Array, rows: Array) -> float:
    truth, named = truth_N[rows], probability_NC[rows].argmax(axis=1)
    return float(np.mean([(named[truth == c] == c).mean() for c in np.unique(truth)]))


def _bins(confidence_N: Array, right_N: Array, bins: int = 15) -> list[dict[str, Any]]:
    index_N = np.minimum(np.ceil(confidence_N * bins).astype(int) - 1, bins - 1)
    made = []
    for b in range(bins):
        inside = index_N == b
        means = (
            (confidence_N[inside].mean(), right_N[inside].mean()) if inside.any() else (None,) * 2
        )
        entry = {"low": b / bins, "high": (b + 1) / bins, "n": inside.sum()}
        made.append(entry | {"confidence": means[0], "accuracy": means[1]})
    return made


def _risk_curve(confidence_N: Array, right_N: Array, steps: int = 20) -> list[dict[str, float]]:
    falling = np.sort(confidence_N)[::-1]
    n = len(falling)
    least = {falling[int(np.ceil(step * n / steps)) - 1] for step in range(1, steps + 1)}
    made = []
    for confidence in sorted(least, reverse=True):
        answered = confidence_N >= confidence
        entry = {"coverage": answered.mean(), "risk": 1 - right_N[answered].mean()}
        made.append(entry | {"confidence": confidence})
    return made


def _commonest(table: Table) -> list[dict[str, Any]]:
    pairs = []
    for truth, predicted in product(range(len(table.keys)), repeat=2):
        of_N, seen_N = table.truth_N == truth, table.predicted_N == predicted
        if truth != predicted and (n := (of_N & seen_N).sum()):
            pairs.append({"n": n, "rate": table.share(seen_N, of_N)})
    return sorted(pairs, key=lambda one: (-one["n"], -one["rate"].value))[:8]


def _cancer(table: Table, cancer: str) -> dict[str, Any]:
    """The classes of the tests have no codes, and are known by their names."""
    kinds = [
        entry["name"] if entry["name"] in CANCERS else "" for entry in table.settings["classes"]
    ]
    kind_C = np.array(kinds)
    this_N, called_N = kind_C[table.truth_N] == cancer, kind_C[table.predicted_N]
    missed_N, unwarned_N = this_N & (called_N != cancer), this_N & (called_N == "")
    return {
        "n": this_N.sum(),
        "missed": missed_N.sum(),
        "rate": table.share(missed_N, this_N),
        "unwarned": unwarned_N.sum(),
        "unwarned_rate": table.share(unwarned_N, this_N),
        "groups": table.groups_of(this_N),
    }


def _sets(table: Table) -> dict[str, Any]:
    settings, truth_N, urgent_N = table.settings, table.truth_N, table.urgent_N
    held_NC = np.array([[k in cell.split() for k in table.keys] for cell in table.column("set")])
    size_N, warned_N = held_NC.sum(axis=1), held_NC[:, table.urgent_C].any(axis=1)
    covered_N = held_NC[np.arange(len(truth_N)), truth_N]
    every_N = np.ones(len(truth_N), dtype=bool)

    def some(among_N: Array, promised: float | None = None) -> dict[str, Any]:
        size = size_N[among_N].mean() if among_N.any() else None
        coverage = table.share(covered_N, among_N)
        sizes = table.share(size_N, among_N)
        one = {"n": among_N.sum(), "coverage": coverage, "size": size, "promised": promised}
        return one | {"mean_size": sizes, "groups": table.groups_of(among_N)}

    urgency_N = np.array([entry["urgency"] for entry in settings["classes"]])[truth_N]
    types_N = table.column("skin_type")
    apart = settings["urgent_level"] is not None
    by_group = [
        some(urgent_N, settings["urgent_level"]),
        some(~urgent_N, settings["level"] if apart else None),
    ]
    for kind in sorted(set(types_N) - {""}):
        fitted = int(kind) in settings["fitted_types"]
        by_group.append(some(types_N == kind, settings["level"] if fitted else None))
    order = [name for name in ("urgent", "soon", "routine", "unknown") if name in urgency_N]
    return {
        "level": settings["level"],
        "coverage": table.share(covered_N, every_N),
        "size": table.share(size_N, every_N),
        "single": (size_N == 1).mean(),
        "one_class": table.share(size_N == 1, every_N),
        "by_group": by_group,
        "urgent_missed": table.missed(~warned_N, urgent_N),
        "false_alarms": table.missed(warned_N, ~urgent_N, "raised"),
        "by_urgency": [some(urgency_N == name) for name in order],
        "by_class": [some(truth_N == c) for c in range(len(table.keys))],
        "every_class": table.share(size_N == len(table.keys), every_N),
    }


def _risk(table: Table, question: str) -> dict[str, Any]:
    rule, types_N = table.settings[question], table.column("skin_type")
    columns = rule["urgent_columns"]
    urgent_N, risk_N = np.isin(table.truth_N, columns), table.served_NC[:, columns].sum(axis=1)
    assert np.allclose(risk_N, table.column(question).astype(float))
    named = {table.keys[c] for c in columns}
    warned_N = np.array([bool(named & set(cell.split())) for cell in table.column("set")])
    rates = [level["miss_rate"] for level in rule["levels"]]
    default = min(rates, key=lambda rate: (abs(rate - 0.05), rate))
    lesions = rule["lesions"]["all"]

    def one(level: dict[str, Any]) -> dict[str, Any]:
        least = level["thresholds"]
        least_N = np.array([least.get(f"skin type {kind}", least["all"]) for kind in types_N])
        missed_N, raised_N = risk_N < least_N, risk_N >= least_N
        rate = level["miss_rate"]
        rank = int(np.floor(round((lesions + 1) * rate, 9)))

        def at_most(bound: float) -> float:
            """The chance that a Beta(rank, n + 1 - rank) is at most the bound, as a binomial."""
            below = sum(
                comb(lesions, k) * bound**k * (1 - bound) ** (lesions - k) for k in range(rank)
            )
            return 1 - below

        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(middle) < 0.95 else (low, middle)
        return {
            "miss_rate": rate,
            "confidence": at_most(rate),
            "bound": low,
            "threshold": least["all"],
            "misses": table.missed(missed_N, urgent_N),
            "unwarned": (missed_N & urgent_N & ~warned_N).sum(),
            "false_alarms": table.missed(raised_N, ~urgent_N, "raised"),
            "by_skin_type": [
                {
                    "misses": table.missed(missed_N, urgent_N & (types_N == kind)),
                    "false_alarms": table.missed(raised_N, ~urgent_N & (types_N == kind), "raised"),
                }
                for kind in sorted(set(types_N) - {""})
            ],
            "predictive": _stated(table, risk_N >= least_N, urgent_N),
        }

    steps_N = table.column("next_step")
    return {
        "default": default,
        "chosen": table.settings["miss_rate"] or default,
        "lesions": lesions,
        "levels": [one(level) for level in rule["levels"]],
        "curve": [
            {
                "threshold": threshold,
                "missed": (risk_N[urgent_N] < threshold).mean(),
                "sent_on": (risk_N[~urgent_N] >= threshold).mean(),
            }
            for threshold in np.unique(risk_N[urgent_N])
        ],
        "steps": [
            {"n": of_N.sum()}
            | {name: (steps_N[of_N] == name).sum() for name in STEPS}
            | {"rates": {name: table.share(steps_N == name, of_N) for name in STEPS}}
            for of_N in (urgent_N, ~urgent_N)
        ],
    }


def _stated(table: Table, called_N: Array, urgent_N: Array) -> list[dict[str, Any]]:
    return [{"prevalence": p} | _bayes(table, called_N, urgent_N, p) for p in (0.01, 0.05, 0.2)]


def _bayes(table: Table, called_N: Array, urgent_N: Array, p: float) -> dict[str, Figure]:
    def values(rows: Array) -> Array:
        called, urgent = called_N[rows], urgent_N[rows]
        found, rest = called[urgent].mean(), 1 - called[~urgent].mean()
        ppv = p * found / (p * found + (1 - p) * (1 - rest))
        return np.array([ppv, (1 - p) * rest / ((1 - p) * rest + p * (1 - found))])

    ppv, npv = table.figures(values)
    return {"ppv": ppv, "npv": npv}


def _called(table: Table, risk_N: Array, question: str) -> tuple[float, Array]:
    levels = table.settings[question]["levels"]
    level = next(level for level in levels if level["miss_rate"] == 0.05)["thresholds"]
    least_N = [level.get(f"skin type {kind}", level["all"]) for kind in table.column("skin_type")]
    return level["all"], risk_N >= np.array(least_N)


def _question(table: Table, tiers: tuple[str, ...], question: str) -> dict[str, Any]:
    """ROC by scikit-learn, net benefit by its definition (Vickers and Elkin 2006)."""
    of_C = np.array([entry["urgency"] in tiers for entry in table.settings["classes"]])
    positive_N, risk_N = of_C[table.truth_N], table.served_NC[:, of_C].sum(axis=1)
    specificities = (0.6, 0.8, 0.9, 0.95)
    over = np.array([*(1 - s for s in specificities), *(n / 50 for n in range(51))])
    missed = np.arange(31) / 100
    odds_T = (thresholds_T := np.arange(1, 51) / 100) / (1 - thresholds_T)

    def area_above(positive: Array, risk: Array, least: float) -> float:
        """Where kinds are exchanged, scikit-learn's area before its correction of McClish."""
        most = 1 - least
        scaled = roc_auc_score(~positive, -risk, max_fpr=most)
        return float(most / 2 + (2 * scaled - 1) * (1 - most / 2))

    def curves(rows: Array) -> Array:
        positive, risk = positive_N[rows], risk_N[rows]
        false_T, true_T, _ = roc_curve(positive, risk, drop_intermediate=False)
        called_NT = risk[:, None] >= thresholds_T - 1e-15
        benefit_T = (called_NT & positive[:, None]).mean(axis=0)
        benefit_T = benefit_T - (called_NT & ~positive[:, None]).mean(axis=0) * odds_T
        all_T = positive.mean() - (1 - positive.mean()) * odds_T
        return np.concatenate(
            [
                [roc_auc_score(positive, risk)],
                [area_above(positive, risk, least) for least in (0.8, 0.88)],
                [true_T[false_T <= most + 1e-12].max() for most in over],
                [false_T[1 - true_T <= most + 1e-12].min() for most in missed],
                *(benefit_T, all_T, benefit_T - np.maximum(all_T, 0)),
            ]
        )

    auroc, above_80, above_88, *rest = table.figures(curves)
    points = iter(rest)
    at_over = [{"at": 1 - x, "figure": next(points)} for x in over]
    triage = [{"at": x, "figure": next(points)} for x in missed]
    benefit, refer_all, gain = ([next(points) for _ in thresholds_T] for _ in range(3))
    least, called_N = _called(table, risk_N, question)

    within_N = (risk_N >= 0.05) & (risk_N < 0.2)

    def over_all(rows: Array) -> float:
        """Net benefit of the calls minus that of calling everybody (Vickers and Elkin 2006)."""
        called, positive, odds = called_N[rows], positive_N[rows], least / (1 - least)
        benefit = (called & positive).mean() - (called & ~positive).mean() * odds
        return float(benefit - (positive.mean() - (~positive).mean() * odds))

    return {
        "n": positive_N.sum(),
        "groups": table.groups_of(positive_N),
        "others": (~positive_N).sum(),
        "other_groups": table.groups_of(~positive_N),
        "observed_over_expected": table.over_expected(positive_N, risk_N),
        "band": {
            "low": 0.05,
            "high": 0.2,
            "n": within_N.sum(),
            "groups": table.groups_of(within_N),
            "said": risk_N[within_N].mean(),
            "observed": table.share(positive_N, within_N),
        },
        "auroc": auroc,
        "partial_auroc_80": above_80,
        "partial_auroc_88": above_88,
        "sensitivity_at_specificity": at_over[:4],
        "at_threshold": [
            {
                "threshold": threshold,
                "missed": table.share(risk_N < threshold, positive_N),
                "over_triage": table.share(risk_N >= threshold, ~positive_N),
            }
            for threshold in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
        ],
        "roc": [point | {"at": 1 - point["at"]} for point in at_over[4:]],
        "triage": triage,
        "decision": [
            {"threshold": t, "net_benefit": b, "refer_all": a, "gain": g}
            for t, b, a, g in zip(thresholds_T, benefit, refer_all, gain, strict=True)
        ],
        "operating": {
            "threshold": least,
            "sensitivity": table.share(called_N, positive_N),
            "specificity": table.share(~called_N, ~positive_N),
            "over_refer_all": table.figure(over_all),
            "here": {
                "prevalence": positive_N.mean(),
                "ppv": table.share(positive_N, called_N),
                "npv": table.share(~positive_N, ~called_N),
            },
            "stated": _stated(table, called_N, positive_N),
        },
    }


def _breakdown(table: Table, values_N: Array) -> dict[str, Any]:
    """Parts with fewer than 30 images or 10 groups have no figures, nor, of urgency, 10 urgent."""
    if set(values_N) == {""}:
        return {"parts": [], "top1_gap": None, "top1_test": None, "urgent_test": None}
    right_N, urgent_N = table.predicted_N == table.truth_N, table.urgent_N
    risk_N = table.served_NC[:, table.settings["urgent_risk"]["urgent_columns"]].sum(axis=1)
    _, called_N = _called(table, risk_N, "urgent_risk")
    missed_N = urgent_N & ~called_N
    nothing = dict.fromkeys(("value", "low", "high"))
    parts, of, of_urgent = [], [], []
    for value in sorted(set(values_N), key=lambda value: (value == "", value)):
        of_N = values_N == value
        groups = len(set(table.column("group")[of_N]))
        entry = {"n": of_N.sum(), "groups": groups, "urgent_auroc": nothing}
        entry |= {"urgent": None, "others": None}
        if of_N.sum() < 30 or groups < 10:
            parts.append(entry | {"top1": nothing, "balanced_accuracy": nothing})
            continue
        of.append(value)
        balanced = table.figure(lambda rows: _balanced(table.served_NC, table.truth_N, rows), of_N)
        entry |= {"top1": table.share(right_N, of_N), "balanced_accuracy": balanced}
        if min((of_N & urgent_N).sum(), (of_N & ~urgent_N).sum()) >= 10:
            of_urgent.append(value)
            entry["urgent"] = table.missed(missed_N, urgent_N & of_N)
            entry["others"] = table.missed(called_N, ~urgent_N & of_N, "raised")
            entry["urgent_auroc"] = table.figure(
                lambda rows: float(roc_auc_score(urgent_N[rows], risk_N[rows])), of_N
            )
        parts.append(entry)
    top1 = [right_N[values_N == value].mean() for value in of if value]
    every_N = np.ones(len(values_N), dtype=bool)
    return {
        "parts": parts,
        "top1_gap": max(top1) - min(top1) if len(top1) > 1 else None,
        "top1_test": _gap(table, right_N, every_N, values_N, of),
        "urgent_test": _gap(table, missed_N, urgent_N, values_N, of_urgent),
    }


def _gap(
    table: Table, hits_N: Array, among_N: Array, values_N: Array, of: list[str]
) -> dict[str, Any] | None:
    """The largest difference of means after the classes' means are taken off; p by simulation."""
    values = [value for value in of if value]
    some_N = among_N & np.isin(values_N, values)
    if len(values) < 2:
        return None
    excess_N = hits_N.astype(float)
    for c in np.unique(table.truth_N[some_N]):
        of_class_N = some_N & (table.truth_N == c)
        excess_N[of_class_N] -= hits_N[of_class_N].mean()
    means = [excess_N[some_N & (values_N == value)].mean() for value in values]
    return {"gap": max(means) - min(means), "p": Simulated(), "permutations": 60}


def age_bands(ages_N: Array) -> Array:
    """The bands of the report, "" where the age is not known."""
    ends = ((30, "0 to 29"), (45, "30 to 44"), (60, "45 to 59"), (75, "60 to 74"))
    return np.array(
        [
            next((name for end, name in ends if float(age) < end), "75 and more") if age else ""
            for age in ages_N
        ]
    )


def _detector(table: Table) -> dict[str, Any]:
    """COCO: at most 100 boxes an image, best first; 101 points of recall."""
    parts: dict[int, tuple[int, list[float], list[list[bool]]]] = {}
    for row, (drawn, detected) in enumerate(
        zip(table.column("boxes_drawn"), table.column("boxes_detected"), strict=True)
    ):
        if drawn and detected:
            truth = np.array(json.loads(drawn), dtype=float).reshape(-1, 5)
            best = sorted(json.loads(detected), key=lambda box: -box[4])[:100]
            hits = [_hits(truth, best, least) for least in np.linspace(0.5, 0.95, 10)]
            parts[row] = (len(truth), [box[4] for box in best], hits)
    images = np.isin(np.arange(len(table.rows)), list(parts))

    def both(rows: Array) -> Array:
        several = [parts[row] for row in rows if row in parts]
        score_N = np.array([score for _, scores, _ in several for score in scores])
        boxes, order = sum(n for n, _, _ in several), np.argsort(-score_N, kind="stable")
        each = []
        for number in range(10):
            hits_N = np.array([hit for _, _, hits in several for hit in hits[number]], dtype=bool)
            found = np.cumsum(hits_N[order])
            precisions = found / np.arange(1, len(found) + 1)
            best = np.append(np.maximum.accumulate(precisions[::-1])[::-1], 0.0)
            each.append(best[np.searchsorted(found / boxes, np.linspace(0, 1, 101))].mean())
        return np.array([each[0], np.mean(each)])

    map50, map50_95 = table.figures(both)
    figures = {"map50_interval": map50, "map50_95_interval": map50_95}
    numbers = {"map50": map50.value, "map50_95": map50_95.value, "pictures": images.sum()}
    return figures | numbers | {"boxes": sum(n for n, _, _ in parts.values())}


def _hits(truth: Array, best: list[list[float]], least: float) -> list[bool]:
    free, hits = np.ones(len(truth), dtype=bool), []
    for x1, y1, x2, y2, _ in best:
        wide = np.minimum(x2, truth[:, 2]) - np.maximum(x1, truth[:, 0])
        high = np.minimum(y2, truth[:, 3]) - np.maximum(y1, truth[:, 1])
        both = np.clip(wide, 0, None) * np.clip(high, 0, None)
        areas = (truth[:, 2] - truth[:, 0]) * (truth[:, 3] - truth[:, 1])
        overlap = np.where(free, both / ((x2 - x1) * (y2 - y1) + areas - both), -1)
        hits.append(bool(len(truth) and overlap.max() >= least))
        if hits[-1]:
            free[overlap.argmax()] = False
    return hits


def _known_facts(table: Table) -> dict[str, Any]:
    known_NC, truth_N, rows = table.numbers("known"), table.truth_N, np.arange(len(table.truth_N))
    told_N = ~np.isnan(known_NC[:, 0])
    known_NC = np.where(told_N[:, None], known_NC, table.served_NC)
    gain_N = np.log(known_NC[rows, truth_N]) - np.log(table.served_NC[rows, truth_N])
    one, other = _scores(table, table.served_NC), _scores(table, known_NC)
    return {
        "pictures": len(truth_N),
        "told": told_N.sum(),
        "changed": (known_NC.argmax(axis=1) != table.predicted_N).sum(),
        "log_loss": table.figure(lambda rows: float(gain_N[rows].mean())),
        "figures": {
            key: {
                "without": one[key],
                "known": other[key],
                "difference": Figure(
                    other[key].value - one[key].value, other[key].draws_D - one[key].draws_D
                ),
            }
            for key in ("top1", "balanced_accuracy", "auroc", "brier")
        },
    }


def _assisted(table: Table) -> dict[str, Any]:
    whole_NC, truth_N = table.numbers("whole"), table.truth_N
    boxed_N = ~np.isnan(whole_NC[:, 0])
    whole_NC = np.where(boxed_N[:, None], whole_NC, table.served_NC)
    plain_N, served_N = whole_NC.argmax(axis=1), table.predicted_N
    changed_N = plain_N != served_N

    def gain(of_N: Array) -> Figure:
        return table.share((served_N == truth_N) * 1.0 - (plain_N == truth_N), of_N)

    def both(rows: Array) -> tuple[float, float]:
        return _balanced(whole_NC, truth_N, rows), _balanced(table.served_NC, truth_N, rows)

    every = np.arange(len(truth_N))
    return {
        "pictures": len(truth_N),
        "boxed": boxed_N.sum(),
        "changed": changed_N.sum(),
        "classes": [
            {
                "n": of_N.sum(),
                "boxed": (of_N & boxed_N).sum(),
                "changed": (of_N & changed_N).sum(),
                "without": table.share(plain_N == truth_N, of_N),
                "assisted": table.share(served_N == truth_N, of_N),
                "difference": gain(of_N),
            }
            for of_N in (truth_N == c for c in np.unique(truth_N))
        ],
        "without": both(every)[0],
        "assisted": both(every)[1],
        "difference": table.figure(lambda rows: both(rows)[1] - both(rows)[0]),
        "without_interval": table.figure(lambda rows: both(rows)[0]),
        "assisted_interval": table.figure(lambda rows: both(rows)[1]),
    }


def changes_elsewhere(internal: Path, external: Path, fewest: int = 20) -> dict[str, Any]:
    """Return the values of an external evaluation's changes, without their intervals."""
    tables = [Table(internal), Table(external)]
    there = set(tables[1].truth_N)
    rows = [np.flatnonzero([t in there for t in table.truth_N]) for table in tables]
    counts = [np.bincount(table.truth_N, minlength=len(table.keys)) for table in tables]
    enough = [c for c in sorted(there) if min(counts[0][c], counts[1][c]) >= fewest]
    sides = [_side(table, rows, enough) for table, rows in zip(tables, rows, strict=True)]

    def change(key: str) -> dict[str, dict[str, float]]:
        before, after = (side[key] for side in sides)
        values = {"internal": before, "external": after, "change": after - before}
        return {name: {"value": value} for name, value in values.items()}

    return {
        "internal_images": len(rows[0]),
        "internal_groups": len(set(tables[0].column("group")[rows[0]])),
        "fewest": fewest,
        "changes": [change(key) for key in sides[0] if isinstance(key, str)],
        "classes": [
            {
                "internal_images": counts[0][c],
                "external_images": counts[1][c],
                "auroc": change(("auroc", c)),
                "sensitivity": change(("sensitivity", c)),
            }
            for c in enough
        ],
    }


def _side(table: Table, rows: Array, enough: list[int]) -> dict[Any, float]:
    truth_N, p_NC = table.truth_N[rows], table.served_NC[rows]
    right_N = p_NC.argmax(axis=1) == truth_N
    area = {c: roc_auc_score(truth_N == c, p_NC[:, c]) for c in enough}
    found = {c: right_N[truth_N == c].mean() for c in enough}
    figures: dict[Any, float] = {
        "auroc": np.mean(list(area.values())),
        "balanced_accuracy": np.mean(list(found.values())),
    }
    types_N, rate = table.column("skin_type")[rows], table.settings["miss_rate"]
    for question in ("urgent", "soon"):
        rule = table.settings[f"{question}_risk"]
        level = next(level for level in rule["levels"] if level["miss_rate"] == (rate or 0.05))[
            "thresholds"
        ]
        least_N = np.array([level.get(f"skin type {kind}", level["all"]) for kind in types_N])
        called_N = p_NC[:, rule["urgent_columns"]].sum(axis=1) >= least_N
        urgent_N = np.isin(truth_N, rule["urgent_columns"])
        figures[f"{question}_sensitivity"] = called_N[urgent_N].mean()
        figures[f"{question}_specificity"] = (~called_N[~urgent_N]).mean()
    sets = [table.column("set")[row].split() for row in rows]
    figures["coverage"] = np.mean([table.keys[t] in s for t, s in zip(truth_N, sets, strict=True)])
    figures["set_size"] = np.mean([len(held) for held in sets])
    bins = _bins(p_NC.max(axis=1), right_N)
    gaps = [b["n"] * abs(b["accuracy"] - b["confidence"]) for b in bins if b["n"]]
    figures["calibration_error"] = sum(gaps) / len(rows)
    figures["log_loss"] = -np.log(p_NC[np.arange(len(rows)), truth_N]).mean()
    refused_N = table.column("ood_p_value")[rows].astype(float) <= table.settings["ood_rate"]
    figures["refused"] = refused_N.mean()
    figures["abstained"] = (table.column("abstained")[rows] == "True").mean()
    return (
        figures
        | {("auroc", c): area[c] for c in enough}
        | {("sensitivity", c): found[c] for c in enough}
    )
