"""The compiled loops of `geometry`; importing this module imports numba."""

import numpy as np
from numpy.typing import NDArray

from skindx.core.compiled_loops import compiled

# P, Q = points of the first and the second image, M = matches


@compiled
def match(  # noqa: PLR0917 (compiled functions are called by position)
    dots_PQ: NDArray[np.float32],
    norms_P: NDArray[np.float32],
    norms_Q: NDArray[np.float32],
    points_Q4: NDArray[np.float32],
    far: float,
    ratio: float,
    apart: float,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return for each P its nearest Q, -1 for none, and how much nearer it is than the next place.

    The next place lies at least `apart` pixels from the nearest one. Distances are squared.
    """
    nearest_P = np.full(len(norms_P), -1, np.int32)
    unique_P = np.ones(len(norms_P), np.float32)
    for p in range(len(norms_P)):
        best, least = -1, far
        for q in range(len(norms_Q)):
            distance = norms_P[p] + norms_Q[q] - 2 * dots_PQ[p, q]
            if distance < least:
                best, least = q, distance
        if best < 0:
            continue
        following = np.float32(1e9)
        for q in range(len(norms_Q)):
            distance = norms_P[p] + norms_Q[q] - 2 * dots_PQ[p, q]
            if distance < following:
                x = points_Q4[q, 0] - points_Q4[best, 0]
                y = points_Q4[q, 1] - points_Q4[best, 1]
                if x * x + y * y >= apart * apart:
                    following = distance
        quotient = least / max(following, np.float32(1))
        if quotient <= ratio:
            nearest_P[p] = best
            unique_P[p] = quotient
    return nearest_P, unique_P


@compiled
def centres(
    from_M2: NDArray[np.float64], to_M2: NDArray[np.float64], inside_M: NDArray[np.bool_]
) -> tuple[float, float, float, float]:
    """Return the mean x and y of the matches inside, in the first and in the second image."""
    count, fx, fy, tx, ty = 0.0, 0.0, 0.0, 0.0, 0.0
    for m in range(len(inside_M)):
        if inside_M[m]:
            count += 1
            fx += from_M2[m, 0]
            fy += from_M2[m, 1]
            tx += to_M2[m, 0]
            ty += to_M2[m, 1]
    return fx / count, fy / count, tx / count, ty / count


@compiled
def fit_similarity(
    from_M2: NDArray[np.float64], to_M2: NDArray[np.float64], inside_M: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the least-squares similarity_6 (a, b, x, c, d, y) of the matches inside."""
    fx, fy, tx, ty = centres(from_M2, to_M2, inside_M)
    along, across, spread = 0.0, 0.0, 1e-9
    for m in range(len(inside_M)):
        if inside_M[m]:
            x, y = from_M2[m, 0] - fx, from_M2[m, 1] - fy
            u, v = to_M2[m, 0] - tx, to_M2[m, 1] - ty
            along += x * u + y * v
            across += x * v - y * u
            spread += x * x + y * y
    a, b = along / spread, across / spread
    return np.array([a, -b, tx - a * fx + b * fy, b, a, ty - b * fx - a * fy])


@compiled
def fit_affine(
    from_M2: NDArray[np.float64], to_M2: NDArray[np.float64], inside_M: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the least-squares affine_6 of the matches inside, or zeros where it has none."""
    fx, fy, tx, ty = centres(from_M2, to_M2, inside_M)
    xx, xy, yy, xu, yu, xv, yv = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for m in range(len(inside_M)):
        if inside_M[m]:
            x, y = from_M2[m, 0] - fx, from_M2[m, 1] - fy
            u, v = to_M2[m, 0] - tx, to_M2[m, 1] - ty
            xx += x * x
            xy += x * y
            yy += y * y
            xu += x * u
            yu += y * u
            xv += x * v
            yv += y * v
    determinant = xx * yy - xy * xy
    if determinant <= 1e-3 * (xx + yy) * (xx + yy):  # they lie along a line
        return np.zeros(6)
    a = (xu * yy - yu * xy) / determinant
    b = (yu * xx - xu * xy) / determinant
    c = (xv * yy - yv * xy) / determinant
    d = (yv * xx - xv * xy) / determinant
    return np.array([a, b, tx - a * fx - b * fy, c, d, ty - c * fx - d * fy])


@compiled
def agreeing(
    model_6: NDArray[np.float64],
    from_M2: NDArray[np.float64],
    to_M2: NDArray[np.float64],
    free_M: NDArray[np.bool_],
    near: float,
) -> NDArray[np.bool_]:
    """Return which free matches the model puts within `near` pixels of their place."""
    inside_M = np.zeros(len(free_M), np.bool_)
    for m in range(len(free_M)):
        if free_M[m]:
            x, y = from_M2[m, 0], from_M2[m, 1]
            u = model_6[0] * x + model_6[1] * y + model_6[2] - to_M2[m, 0]
            v = model_6[3] * x + model_6[4] * y + model_6[5] - to_M2[m, 1]
            inside_M[m] = u * u + v * v <= near * near
    return inside_M


@compiled
def distinct(
    from_M2: NDArray[np.float64],
    to_M2: NDArray[np.float64],
    inside_M: NDArray[np.bool_],
    apart: float,
) -> NDArray[np.bool_]:
    """Return the matches inside that lie `apart` from those before them, in both images."""
    chosen_M = np.zeros(len(inside_M), np.bool_)
    for m in range(len(inside_M)):
        if not inside_M[m]:
            continue
        alone = True
        for k in range(m):
            if chosen_M[k]:
                x, y = from_M2[m, 0] - from_M2[k, 0], from_M2[m, 1] - from_M2[k, 1]
                u, v = to_M2[m, 0] - to_M2[k, 0], to_M2[m, 1] - to_M2[k, 1]
                if x * x + y * y < apart * apart or u * u + v * v < apart * apart:
                    alone = False
                    break
        chosen_M[m] = alone
    return chosen_M


@compiled
def hypothesis(
    from_M4: NDArray[np.float64],
    to_M4: NDArray[np.float64],
    free_M: NDArray[np.bool_],
    near: float,
    largest: float,
) -> NDArray[np.bool_]:
    """Return the matches that agree with the one match with which most agree.

    A match (place, size, direction of both points) is a similarity by itself: all are tried, so
    that there is no chance in it (Philbin et al. 2007, "Object retrieval with large vocabularies
    and fast spatial matching").
    """
    best_M = np.zeros(len(free_M), np.bool_)
    most = 0
    inside_M = np.zeros(len(free_M), np.bool_)
    for m in range(len(free_M)):
        scale = to_M4[m, 2] / from_M4[m, 2]
        if not free_M[m] or scale > largest or scale * largest < 1:
            continue
        turn = (to_M4[m, 3] - from_M4[m, 3]) * np.pi / 180
        a, b = scale * np.cos(turn), scale * np.sin(turn)
        x, y = from_M4[m, 0], from_M4[m, 1]
        dx, dy = to_M4[m, 0] - a * x + b * y, to_M4[m, 1] - b * x - a * y
        count = 0
        for k in range(len(free_M)):
            inside_M[k] = False
            if free_M[k]:
                x, y = from_M4[k, 0], from_M4[k, 1]
                u = a * x - b * y + dx - to_M4[k, 0]
                v = b * x + a * y + dy - to_M4[k, 1]
                grown = to_M4[k, 2] / (from_M4[k, 2] * scale)
                if u * u + v * v <= near * near and 0.5 < grown < 2:
                    inside_M[k] = True
                    count += 1
        if count > most:
            most = count
            best_M[:] = inside_M
    return best_M
