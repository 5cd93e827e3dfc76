"""How different the members of an ensemble are, and what that takes off its loss.

Every figure is a mean over images of one number, so that it has an interval over groups.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from skindx.metrics import Statistic
from skindx.models.combination import log

# M = members, P = pairs of members, N = images, C = classes, D = bootstrap draws, F = features

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_NOTHING = 1e-12


def disagreement_N(members_MNC: Floats) -> Floats:  # noqa: N802
    """Return the share of the pairs of members that name different classes, for each image."""
    said_MN = members_MNC.argmax(axis=2)
    different_MMN = said_MN[:, None] != said_MN[None, :]
    share_N: Floats = _mean_of_pairs(different_MMN.astype(float))
    return share_N


def ambiguity_N(members_MNC: Floats) -> Floats:  # noqa: N802
    """Return what the geometric mean takes off the members' mean log loss, in nats, never below 0.

    -log sum_c exp(mean_m log p_m(c)): exact whatever the label is, and the mean divergence of the
    members from their geometric mean (Heskes 1998, "Bias/variance decompositions for
    likelihood-based estimators", equations 10 to 12).
    """
    gap_N: Floats = -logsumexp(log(members_MNC).mean(axis=0), axis=1)
    return gap_N


def averaging_gain_N(members_MNC: Floats, truth_N: Ints) -> Floats:  # noqa: N802
    """Return what the mean probability takes off the members' mean log loss, in nats, at least 0.

    log mean_m p_m(y) - mean_m log p_m(y): the gap of Jensen's inequality. Bundles combine members
    by the mean probability; this gap depends on the label, unlike the ambiguity.
    """
    true_MN = members_MNC[:, np.arange(len(truth_N)), truth_N]
    gap_N: Floats = log(true_MN.mean(axis=0)) - log(true_MN).mean(axis=0)
    return gap_N


def error_products_N(members_MNC: Floats, truth_N: Ints) -> tuple[Floats, Floats]:  # noqa: N802
    """Return the mean squared error of the members, and the mean product of the errors of a pair.

    A member's error on an image is its probabilities minus the one-hot truth, so its squared
    length is the Brier score. With d and o, the means of both over images, the mean Brier score of
    all ensembles of k members is o + (d - o) / k exactly: averaging takes off (d - o) (1 - 1/k),
    and no more than d - o = d (1 - rho) with any number of members (Ueda and Nakano 1996,
    "Generalization error of ensemble estimators", equation 9, without bias).
    """
    error_MNC = members_MNC - np.eye(members_MNC.shape[2])[truth_N]
    own_N: Floats = (error_MNC**2).sum(axis=2).mean(axis=0)
    product_MMN = np.einsum("inc,jnc->ijn", error_MNC, error_MNC)
    return own_N, _mean_of_pairs(product_MMN)


def mistake_correlation(right_MN: NDArray[np.bool_], weights_N: Floats) -> Statistic:
    """Return the mean correlation of two members' mistakes, as 0 and 1, over the pairs.

    A pair of which one member is always right or always wrong does not count; NaN without a pair.
    """
    members = len(right_MN)
    first, second = np.triu_indices(members, 1)
    right_NM = right_MN.T.astype(float)
    columns = (np.ones((len(right_NM), 1)), right_NM, right_NM[:, first] * right_NM[:, second])

    def finish(totals_DF: Floats) -> Floats:
        share_DF = totals_DF[:, 1:] / totals_DF[:, :1]
        mean_DM, both_DP = share_DF[:, :members], share_DF[:, members:]
        covariance_DP = both_DP - mean_DM[:, first] * mean_DM[:, second]
        variance_DM = mean_DM * (1 - mean_DM)
        scale_DP = np.sqrt(np.maximum(variance_DM[:, first] * variance_DM[:, second], 0))
        varied_DP = scale_DP > _NOTHING
        correlation_DP = np.divide(
            covariance_DP, scale_DP, out=np.zeros_like(scale_DP), where=varied_DP
        )
        pairs_D = varied_DP.sum(axis=1)
        mean_D = np.full(len(pairs_D), np.nan)
        np.divide(correlation_DP.sum(axis=1), pairs_D, out=mean_D, where=pairs_D > 0)
        return mean_D

    return Statistic(weights_N[:, None] * np.hstack(columns), finish, -1.0, 1.0)


def error_correlation(own_N: Floats, crossed_N: Floats, weights_N: Floats) -> Statistic:
    """Return rho, the mean product of two members' errors over their mean square."""
    features_NF = weights_N[:, None] * np.column_stack([crossed_N, own_N])
    return Statistic(features_NF, lambda totals_DF: totals_DF[:, 0] / totals_DF[:, 1])


def _mean_of_pairs(values_MMN: Floats) -> Floats:
    """Return the mean over the pairs of different members; 0 for a single member."""
    first, second = np.triu_indices(len(values_MMN), 1)
    if not len(first):
        return np.zeros(values_MMN.shape[2])
    mean_N: Floats = values_MMN[first, second].mean(axis=0)
    return mean_N
