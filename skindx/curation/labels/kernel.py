"""Predictions for each image from all images of other groups: kernel ridge regression.

The kernel is Gaussian, and its width the mean distance of two images. A ridge regression needs no
training to leave images out: what is predicted without a group follows from the whole fit
(Rifkin, Lippert 2007, "Notes on Regularized Least-Squares", section 3, here with groups in place of
single images). All that is dear is independent of the labels, so other labels cost little.

N = images, D = dimensions, M = landmarks (Williams, Seeger 2001: the Nyström method), C = classes
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

PENALTIES = (0.05, 0.1, 0.2, 0.4, 0.8)
_LANDMARKS = 2500
_JITTER = 1e-9


class GroupedKernel:
    """The kernel of these images; `predict` answers for any labels of them.

    Exact up to 2,500 images. Beyond, so many of them, drawn at random, span the predictions; memory
    is N x M numbers.
    """

    def __init__(
        self,
        vectors_ND: NDArray[np.float32],
        groups_N: NDArray[np.str_],
        landmarks: int = _LANDMARKS,
    ) -> None:
        count = len(vectors_ND)
        chosen_M = np.random.default_rng(0).permutation(count)[:landmarks]
        distance_NM = _squared_distances(vectors_ND, vectors_ND[chosen_M])
        kernel_NM = np.exp(-distance_NM / max(float(distance_NM.mean()), _JITTER)) + 1
        values_M, vectors_MM = np.linalg.eigh(kernel_NM[chosen_M])
        used = values_M > _JITTER * values_M[-1]
        features_NM = kernel_NM @ (vectors_MM[:, used] / np.sqrt(values_M[used]))
        self._power_M, turn_MM = np.linalg.eigh(features_NM.T @ features_NM)
        self._basis_NM = features_NM @ turn_MM
        _, group_N = np.unique(groups_N, return_inverse=True)
        order_N = np.argsort(group_N, kind="stable")
        groups = np.split(order_N, np.flatnonzero(np.diff(group_N[order_N])) + 1)
        self._several = [rows for rows in groups if len(rows) > 1]

    def predict(self, labels_N: Ints, penalty: float) -> Floats:
        """Return scores N x C, near 1 for the class that the images of other groups suggest.

        They sum to about 1 and may leave 0 to 1.
        """
        given_NC = np.eye(int(labels_N.max()) + 1)[labels_N]
        shrink_M = 1 / (np.maximum(self._power_M, 0) + penalty)
        fitted_NC = self._basis_NM @ (shrink_M[:, None] * (self._basis_NM.T @ given_NC))
        error_NC = given_NC - fitted_NC
        own_N = (self._basis_NM**2) @ shrink_M
        left_NC = error_NC / (1 - own_N)[:, None]
        for rows in self._several:
            basis_GM = self._basis_NM[rows]
            remains_GG = np.eye(len(rows)) - (basis_GM * shrink_M) @ basis_GM.T
            left_NC[rows] = np.linalg.solve(remains_GG, error_NC[rows])
        return np.asarray(given_NC - left_NC)

    def best_penalty(self, labels_N: Ints) -> float:
        """Return the penalty whose predictions miss these labels least, squared."""
        given_NC = np.eye(int(labels_N.max()) + 1)[labels_N]
        errors = [((self.predict(labels_N, at) - given_NC) ** 2).sum() for at in PENALTIES]
        return PENALTIES[int(np.argmin(errors))]


def as_probabilities(scores_NC: Floats) -> Floats:
    """Return the scores, at least 0.001 each, as shares of 1."""
    least_NC = np.maximum(scores_NC, 1e-3)
    return np.asarray(least_NC / least_NC.sum(axis=1, keepdims=True))


def _squared_distances(left_ND: NDArray[np.float32], right_MD: NDArray[np.float32]) -> Floats:
    squares_NM = (left_ND**2).sum(1)[:, None] + (right_MD**2).sum(1) - 2 * left_ND @ right_MD.T
    return np.asarray(np.maximum(squares_NM, 0), np.float64)
