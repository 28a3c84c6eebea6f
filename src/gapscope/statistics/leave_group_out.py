r"""Predictions of kernel ridge regression without the predicted sample, or without its whole group.

The residuals of the fit with an intercept are $\tilde R b$ with $\tilde R = I - U E U^\top$ (see
`gapscope.statistics.kernel_ridge`), where U holds the eigenvectors of the kernel and the column
$R 1 / \sqrt{1^\top R 1}$. The fit without a group B leaves the residuals

$$e_B = \tilde R_{BB}^{-1}\, (\tilde R b)_B$$

on that group, exactly: one block per group in place of one fit. Groups with more samples than eigenvectors use the
Woodbury identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from gapscope.statistics.kernel_ridge import (
    BLOCK_ROWS,
    MAX_ROWS_IN_MEMORY,
    BlockedSpectrum,
    Columns,
    Spectrum,
    select_ridge,
)

# folds of predictions that fits to the others give: the usual number
N_FOLDS = 5
# samples up to which every ridge is tried with groups too: a second of one core
MAX_EVERY_RIDGE = 2000
# entries of one batch of blocks, 128 MB
_MAX_ENTRIES = 2**24
# groups, by judgment, that select the ridge of many samples at least
_MIN_SELECTING_GROUPS = 5


class LeaveGroupOut:
    """Held-out predictions for any ridge, from one decomposition.

    Args:
        kernel: Decomposition of the kernel. Of one that is computed in blocks, a batch of groups is in memory.
        targets: Targets [n, k].
        groups: Group of each sample, 0, 1, ...
    """

    def __init__(self, kernel: Spectrum, targets: Columns, groups: Int[Tensor, " n"]) -> None:
        self.kernel = kernel
        self.targets = targets.double()
        self.groups = groups.to(kernel.device)
        ones = torch.ones_like(self.targets[:, :1])
        self.inside = kernel.project(self.targets)
        self.ones_inside = kernel.project(ones).flatten()
        # what lies outside of the eigenvectors: nothing, if there are as many as samples
        self.ones_outside = 0.0
        self.targets_outside = torch.zeros_like(self.targets[0])
        if len(kernel.values) < len(kernel):
            self.ones_outside = max(0.0, len(kernel) - float(self.ones_inside.square().sum()))
            self.targets_outside = self.targets.sum(0) - self.ones_inside @ self.inside
        self._grams: dict[int, Tensor] = {}
        self._kept: tuple[Tensor, Tensor] | None = None

    def keep(self, every: int) -> None:
        """Keep the eigenvectors at the first of `every` so many groups in memory, unless they are many; 0 drops them.

        Args:
            every: As for `squared_error`.
        """
        self._kept = None
        if every:
            rows = torch.nonzero(self.groups % every == 0).flatten()
            if len(rows) > 2 * MAX_ROWS_IN_MEMORY:
                return
            place = torch.full_like(self.groups, -1)
            place[rows] = torch.arange(len(rows), device=rows.device)
            self._kept = (self.kernel.rows(rows), place)

    def _rows(self, rows: Tensor) -> Tensor:
        """Return the eigenvectors [b, r] at rows."""
        if self._kept is None:
            return self.kernel.rows(rows)
        kept, place = self._kept
        return kept[place[rows]]

    def predictions(self, ridge: float) -> Columns:
        """Return the predictions of every sample by the fit without its group.

        Args:
            ridge: Ridge strength, in the units of the kernel.
        """
        result = self.targets.clone()
        for rows, residuals in self._residuals(ridge, self._batches(self.groups)):
            result[rows] -= residuals
        return result

    def squared_error(self, ridge: float, every: int) -> float:
        """Return the sum of squared held-out residuals of the first of `every` so many groups.

        Args:
            ridge: Ridge strength, in the units of the kernel.
            every: 1 for all groups.
        """
        batches = self._batches(torch.where(self.groups % every == 0, self.groups, -1))
        return sum(
            float(residuals.square().sum())
            for _, residuals in self._residuals(ridge, batches, keeps_grams=True)
        )

    def _batches(self, groups: Tensor) -> list[Tensor]:
        return _blocks_by_size(groups, len(self.kernel.values))

    def _residuals(
        self, ridge: float, batches: list[Tensor], *, keeps_grams: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows [groups, g] and residuals [groups, g, k] of the fits without each group."""
        values = self.kernel.values
        fitted = values / (values + ridge)
        free = ridge / (values + ridge) * self.ones_inside
        # 1^T R 1 and 1^T R b
        total = float(free @ self.ones_inside) + self.ones_outside
        shift = (free @ self.inside + self.targets_outside) / total
        of_ones = fitted * self.ones_inside
        of_targets = fitted[:, None] * self.inside

        def residuals_of(rows: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
            """Return R 1 over the root of its sum, and the residuals of the fit to all samples."""
            ones = 1 - part @ of_ones
            residuals = self.targets[rows] - part @ of_targets - ones[..., None] * shift
            return ones / math.sqrt(total), residuals

        for rows in batches:
            if rows.shape[1] > len(values):
                for group in rows:
                    residuals = self._woodbury(group, fitted, residuals_of, keeps_grams)
                    yield group[None], residuals[None]
                continue
            part = self._rows(rows.flatten()).unflatten(0, rows.shape)
            column, residuals = residuals_of(rows, part)
            block = -(part * fitted) @ part.transpose(1, 2)
            block -= column[:, :, None] * column[:, None, :]
            block.diagonal(dim1=1, dim2=2).add_(1)
            yield rows, _solve_positive(block, residuals)

    def _woodbury(
        self,
        group: Tensor,
        fitted: Tensor,
        residuals_of: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        keeps_gram: bool,
    ) -> Tensor:
        """Return the residuals [g, k] of one large group: (I - W W^T)^-1 = I + W (I - W^T W)^-1 W^T."""
        root = fitted.sqrt()
        r = len(root)
        pieces = group.split(BLOCK_ROWS)
        gram = self._grams.get(int(group[0]))
        is_known = gram is not None
        if gram is None:
            gram = fitted.new_zeros(r, r)
        inner = torch.zeros(r + 1, r + 1, dtype=fitted.dtype, device=fitted.device)
        right = fitted.new_zeros(r + 1, self.targets.shape[1])
        columns: list[Tensor] = []
        residuals: list[Tensor] = []
        parts: list[Tensor | None] = []
        fits = len(group) * r <= _MAX_ENTRIES
        for rows in pieces:
            part = self._rows(rows)
            parts.append(part if fits else None)
            column, of_rows = residuals_of(rows, part)
            if not is_known:
                gram += part.T @ part
            inner[r, :r] -= root * (part.T @ column)
            inner[r, r] -= column.square().sum()
            right[:r] += root[:, None] * (part.T @ of_rows)
            right[r] += column @ of_rows
            columns.append(column)
            residuals.append(of_rows)
        if keeps_gram:
            self._grams[int(group[0])] = gram
        inner[:r, r] = inner[r, :r]
        inner[:r, :r] = -root[:, None] * gram * root
        inner.diagonal().add_(1)
        solved = _solve_positive(inner, right)
        for k, rows in enumerate(pieces):
            part = parts[k]
            if part is None:
                part = self._rows(rows)
            of_vectors = part @ (root[:, None] * solved[:r])
            residuals[k] += of_vectors + columns[k][:, None] * solved[r]
        return torch.cat(residuals)


def _solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve positive definite systems, which rounding may make slightly indefinite."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if bool(info.any()):
        return torch.linalg.solve(matrix, right)
    return torch.cholesky_solve(right, factor)


def _blocks_by_size(groups: Tensor, rank: int) -> list[Tensor]:
    """Return rows [groups, g] of the groups of each size g, in batches of limited memory.

    Args:
        groups: Group of each sample; -1 for samples of none.
        rank: Number of eigenvectors of the kernel.
    """
    members = torch.nonzero(groups >= 0).flatten()
    sizes = groups[members].bincount()
    order = members[groups[members].argsort(stable=True)]
    starts = sizes.cumsum(0) - sizes
    batches: list[Tensor] = []
    for size in sizes[sizes > 0].unique().tolist():
        first = starts[sizes == size]
        rows = order[first[:, None] + torch.arange(size, device=groups.device)]
        groups_per_batch = max(1, _MAX_ENTRIES // (size * max(size, rank)))
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
    block per group; it rarely has a second minimum. A kernel that is computed in blocks selects the ridge on the groups
    of about 20,000 samples.

    Args:
        kernel: Decomposition of the kernel.
        targets: Targets [n, k].
        ridges: Ridge strengths, in units of the mean eigenvalue.
        groups: Group of each sample, 0, 1, ...; None for one group per sample.
    """
    if groups is None:
        ridge, result = select_ridge(kernel, targets.double(), ridges)
        return ridge, result.predictions
    solver = LeaveGroupOut(kernel, targets, groups)
    unit = kernel.mean or 1.0
    every = 1
    if isinstance(kernel, BlockedSpectrum):
        n_groups = int(groups.max()) + 1
        every = max(1, min(len(kernel) // MAX_ROWS_IN_MEMORY, n_groups // _MIN_SELECTING_GROUPS))
        solver.keep(every)

    def evaluate(number: int) -> tuple[float, int]:
        return solver.squared_error(ridges[number] * unit, every), number

    if len(targets) <= MAX_EVERY_RIDGE:
        _, number = min(map(evaluate, range(len(ridges))))
    else:
        best = evaluate(len(ridges) // 2)
        for step in (1, -1):
            while 0 <= best[1] + step < len(ridges):
                candidate = evaluate(best[1] + step)
                if candidate[0] >= best[0]:
                    break
                best = candidate
        number = best[1]
    solver.keep(0)
    return ridges[number], solver.predictions(ridges[number] * unit)
