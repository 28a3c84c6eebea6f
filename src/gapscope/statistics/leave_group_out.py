r"""Predictions of kernel ridge regression without the predicted sample, or without its whole group.

The residuals of the fit with an intercept are $\tilde R b$ with $\tilde R = I - U E U^\top$ (see
`gapscope.statistics.kernel_ridge`), where U holds the eigenvectors of the kernel and the column
$R 1 / \sqrt{1^\top R 1}$. The fit without a group B leaves the residuals

$$e_B = \tilde R_{BB}^{-1}\, (\tilde R b)_B$$

on that group, exactly: one block per group in place of one fit. Groups with more samples than eigenvectors use the
Woodbury identity.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from gapscope.statistics.kernel_ridge import MIN_DEGREES_OF_FREEDOM, Columns, Spectrum

# folds of predictions that fits to the others give: the usual number
N_FOLDS = 5
# samples up to which every ridge is tried with groups too: a second of one core
MAX_EVERY_RIDGE = 2000
# entries of one batch of blocks, 128 MB
_MAX_ENTRIES = 2**24


class LeaveGroupOut:
    """Held-out predictions for any ridge, from one decomposition.

    Args:
        kernel: Decomposition of the kernel.
        targets: Targets [n, k].
        groups: Group of each sample, 0, 1, ...; None for one group per sample.
    """

    def __init__(
        self,
        kernel: Spectrum,
        targets: Columns,
        groups: Int[Tensor, " n"] | None = None,
    ) -> None:
        # all rows: a kernel of many samples computes them in blocks
        self.vectors = torch.cat([part for _, part in kernel.blocks()])
        self.values = kernel.values
        self.targets = targets.double()
        self.inside = self.vectors.T @ self.targets
        self.ones_inside = self.vectors.sum(0)
        self.blocks: list[Tensor] | None = None
        if groups is None:
            self.squares = self.vectors.square()
        else:
            self.blocks = _blocks_by_size(groups)
        self._grams: dict[int, Tensor] = {}

    def predictions(self, ridge: float) -> Columns:
        """Return the predictions of every sample by the fit without its group.

        Args:
            ridge: Ridge strength, in the units of the kernel.
        """
        vectors = self.vectors
        values = self.values
        fitted = values / (values + ridge)
        # R 1 and its sum
        ones = 1 - vectors @ (fitted * self.ones_inside)
        column = ones / ones.sum().sqrt()
        residuals = self.targets - vectors @ (fitted[:, None] * self.inside)
        residuals -= ones[:, None] * (ones @ self.targets) / ones.sum()
        if self.blocks is None:
            freedom = 1 - self.squares @ fitted - column.square()
            freedom = freedom.clamp_min(MIN_DEGREES_OF_FREEDOM)
            return self.targets - residuals / freedom[:, None]
        left_out = torch.empty_like(residuals)
        for rows in self.blocks:
            left_out[rows] = self._solve(rows, fitted, column, residuals[rows])
        return self.targets - left_out

    def _solve(self, rows: Tensor, fitted: Tensor, column: Tensor, residuals: Tensor) -> Tensor:
        """Return the residuals [groups, g, k] without each of several groups of one size g."""
        if rows.shape[1] <= self.vectors.shape[1]:
            part = self.vectors[rows]
            of_column = column[rows][:, :, None] * column[rows][:, None, :]
            block = -(part * fitted) @ part.transpose(1, 2) - of_column
            block.diagonal(dim1=1, dim2=2).add_(1)
            return _solve_positive(block, residuals)
        return torch.stack(
            [self._woodbury(*item, fitted, column) for item in zip(rows, residuals, strict=True)]
        )

    def _woodbury(self, rows: Tensor, residuals: Tensor, fitted: Tensor, column: Tensor) -> Tensor:
        """Return the residuals of one large group: (I - W W^T)^-1 = I + W (I - W^T W)^-1 W^T."""
        part = self.vectors[rows]
        root = fitted.sqrt()
        first = int(rows[0])
        if first not in self._grams:
            self._grams[first] = part.T @ part
        r = len(root)
        inner = torch.empty(r + 1, r + 1, dtype=part.dtype, device=part.device)
        inner[:r, :r] = -root[:, None] * self._grams[first] * root
        inner[:r, r] = inner[r, :r] = -root * (part.T @ column[rows])
        inner[r, r] = -column[rows].square().sum()
        inner.diagonal().add_(1)
        of_vectors = root[:, None] * (part.T @ residuals)
        of_column = column[rows][None] @ residuals
        solved = _solve_positive(inner, torch.cat([of_vectors, of_column]))
        return residuals + part @ (root[:, None] * solved[:r]) + column[rows][:, None] * solved[r]


def _solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve positive definite systems, which rounding may make slightly indefinite."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if bool(info.any()):
        return torch.linalg.solve(matrix, right)
    return torch.cholesky_solve(right, factor)


def _blocks_by_size(groups: Tensor) -> list[Tensor]:
    """Return rows [groups, g] of the groups of each size g, in batches of limited memory."""
    sizes = groups.bincount()
    order = groups.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    batches: list[Tensor] = []
    for size in sizes[sizes > 0].unique().tolist():
        first = starts[sizes == size]
        rows = order[first[:, None] + torch.arange(size, device=groups.device)]
        groups_per_batch = max(1, _MAX_ENTRIES // (size * max(size, 1024)))
        batches += rows.split(groups_per_batch)
    return batches


def select_held_out(
    kernel: Spectrum,
    targets: Columns,
    ridges: tuple[float, ...],
    groups: Int[Tensor, " n"] | None = None,
) -> tuple[float, Columns]:
    """Return the ridge of the smallest held-out squared error, and its predictions.

    With groups and many samples the error is followed downhill from the middle of the grid, since each ridge takes one
    block per group; it rarely has a second minimum.

    Args:
        kernel: Decomposition of the kernel.
        targets: Targets [n, k].
        ridges: Ridge strengths, in units of the mean eigenvalue.
        groups: Group of each sample, 0, 1, ...; None for one group per sample.
    """
    solver = LeaveGroupOut(kernel, targets, groups)
    unit = kernel.mean or 1.0

    def evaluate(number: int) -> tuple[float, int, Tensor]:
        predictions = solver.predictions(ridges[number] * unit)
        error = float((predictions - solver.targets).square().sum())
        return error, number, predictions

    if groups is None or len(targets) <= MAX_EVERY_RIDGE:
        _, number, predictions = min(map(evaluate, range(len(ridges))), key=lambda item: item[0])
        return ridges[number], predictions
    best = evaluate(len(ridges) // 2)
    for step in (1, -1):
        while 0 <= best[1] + step < len(ridges):
            candidate = evaluate(best[1] + step)
            if candidate[0] >= best[0]:
                break
            best = candidate
    return ridges[best[1]], best[2]
