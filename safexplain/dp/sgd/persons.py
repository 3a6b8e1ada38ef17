"""Records that belong together: rows of one person are drawn together, averaged, and clipped once.

A person then stands where a record stands in DP-SGD. Each person joins a batch by one coin; the gradient that is
clipped is that of the mean loss of their rows; so one person, whatever their rows are, changes the sum by at most C (2C
where all their rows are replaced), and every formula for records holds with the number of persons in place of that of
records (user-level differential privacy, McMahan et al. 2018, arXiv 1710.06963, and Charles et al. 2024, arXiv
2407.07737, whose "user-level sampling" this is). Sampling rows one by one instead, each clipped, needs group privacy
for as many rows as a person has, which is much looser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._digest import digest
from safexplain._secure_random.generators import Randomness
from safexplain._validate import whole_number
from safexplain.errors import InputError

Piece = tuple[list[int], list[int]]
"""Numbers of rows, and for each whose it is: 0 for the first person of the piece, and so on."""


class Persons:
    """Whose each row is.

    Args:
        groups: one whole number or text a row, the same for rows of one person.
        rows: how many rows there are.
        most: rows of a person that a step takes; of those who have more, another choice at random in each step.

    Raises:
        InputError: not one id a row, or ids that are neither whole numbers nor texts.
    """

    def __init__(self, groups: Any, rows: int, most: int) -> None:
        self.most = whole_number("rows_per_group", most, 1)
        numbers = np.unique(_ids(groups, rows), return_inverse=True)[1].reshape(-1)
        self._order = np.argsort(numbers, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(numbers))])
        self._numbers = numbers

    def __len__(self) -> int:
        """How many persons."""
        return len(self._starts) - 1

    @property
    def with_more(self) -> int:
        """Persons with more rows than a step takes."""
        return int((np.diff(self._starts) > self.most).sum())

    def rows_of(self, person: int, chosen: Randomness) -> NDArray[np.int64]:
        """Numbers of at most `most` rows of a person, in order."""
        rows = self._order[self._starts[person] : self._starts[person + 1]]
        return rows if len(rows) <= self.most else np.sort(chosen.choice(rows, self.most, replace=False))

    def pieces(self, persons: Sequence[int], size: int, chosen: Randomness) -> list[Piece]:
        """The rows of some persons in pieces of at most `size` rows, each person whole in one.

        Args:
            persons: their numbers.
            size: at least `most`.
            chosen: draws the rows of those who have too many.
        """
        pieces: list[Piece] = []
        for person in persons:
            rows = self.rows_of(person, chosen).tolist()
            if not pieces or len(pieces[-1][0]) + len(rows) > size:
                pieces.append(([], []))
            whose = pieces[-1][1]
            pieces[-1][0].extend(rows)
            whose.extend([whose[-1] + 1 if whose else 0] * len(rows))
        return pieces

    def digest(self) -> str:
        """Of who owns which rows, whatever the ids are."""
        return digest(self._numbers, self.most)


def means(gradients: Tensor, whose: Tensor) -> Tensor:
    """Mean gradient of each person, (persons, ...), of gradients of single rows (rows, ...).

    Args:
        gradients: one for each row.
        whose: (rows,) the person of each, from 0 without a gap.
    """
    counts = torch.bincount(whose)
    sums = gradients.new_zeros((len(counts), *gradients.shape[1:])).index_add_(0, whose, gradients)
    return sums / counts.to(gradients).view(-1, *[1] * (gradients.dim() - 1))


def _ids(groups: Any, rows: int) -> NDArray[Any]:
    """As an array of whole numbers or texts."""
    found = np.asarray(groups.detach().cpu() if isinstance(groups, Tensor) else groups)
    if found.shape != (rows,):
        raise InputError(f"groups: expected one id for each of the {rows} records, got shape {found.shape}")
    if found.dtype == object:
        kinds = {type(i) for i in found.tolist()}
        if kinds <= {str}:
            return found.astype(str)
        if kinds <= {int}:
            return found.astype(np.int64) if max(map(abs, found.tolist())) < 2**63 else found.astype(str)
    elif found.dtype.kind in "iuU":
        return found
    kind = ", ".join(sorted({type(i).__name__ for i in found.ravel()[:100].tolist()}))
    raise InputError(
        f"groups: expected whole numbers or texts, one kind throughout, got {found.dtype} ({kind}); a row whose person"
        " is not known needs an id of its own"
    )
