"""Least squares with coefficients that may not be negative, from the normal equations."""

_SMALL = 1e-10


def solve_nonnegative(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """argmin over x >= 0 of x' `matrix` x / 2 - x' `vector`, with `matrix` symmetric positive definite.

    The active-set method of Lawson and Hanson (1974, chapter 23) in the form of Bro and de Jong (1997). Coefficients
    are scaled to a unit diagonal first, so units do not matter.
    """
    size = len(vector)
    scale = [matrix[i][i] ** -0.5 for i in range(size)]
    a = [[matrix[i][j] * scale[i] * scale[j] for j in range(size)] for i in range(size)]
    b = [vector[i] * scale[i] for i in range(size)]
    tolerance = _SMALL * max(1.0, *(abs(value) for value in b))
    x = [0.0] * size
    free: list[int] = []
    # Each round frees one coefficient and lowers the objective, so the number of rounds is finite; the bound is a
    # guard against rounding that frees and binds one coefficient for ever.
    for _ in range(8 * size):
        gradient = [b[i] - sum(a[i][j] * x[j] for j in free) for i in range(size)]
        bound = [i for i in range(size) if i not in free and gradient[i] > tolerance]
        if not bound:
            break
        free.append(max(bound, key=gradient.__getitem__))
        while True:
            trial = _solve([[a[i][j] for j in free] for i in free], [b[i] for i in free])
            if all(value > 0.0 for value in trial):
                break
            step = min(
                x[i] / (x[i] - value) if x[i] > 0.0 else 0.0
                for i, value in zip(free, trial, strict=True)
                if value <= 0.0
            )
            for i, value in zip(free, trial, strict=True):
                x[i] += step * (value - x[i])
            free = [i for i in free if x[i] > _SMALL]
            x = [x[i] if i in free else 0.0 for i in range(size)]
        for i, value in zip(free, trial, strict=True):
            x[i] = value
    return [x[i] * scale[i] for i in range(size)]


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """`matrix`^-1 `vector` by Cholesky; `matrix` is symmetric positive definite."""
    size = len(vector)
    lower: list[list[float]] = []
    for i in range(size):
        row: list[float] = []
        for j in range(i):
            row.append((matrix[i][j] - sum(row[k] * lower[j][k] for k in range(j))) / lower[j][j])
        pivot = matrix[i][i] - sum(value * value for value in row)
        row.append(max(pivot, _SMALL) ** 0.5)
        lower.append(row)
    forward: list[float] = []
    for i in range(size):
        forward.append((vector[i] - sum(lower[i][k] * forward[k] for k in range(i))) / lower[i][i])
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(lower[k][i] * solution[k] for k in range(i + 1, size))
        solution[i] = (forward[i] - rest) / lower[i][i]
    return solution
