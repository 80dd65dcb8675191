"""The forms in which one symmetric m×m curvature can be given: stored, as a low-rank factor, as products, by sample.

Only the mathematics of the matrix lives here. Solving with it is in `_solve.py`.
"""

from abc import ABCMeta
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


# Products that the scale or the trace of a matrix takes where it is not stored.
PROBES = 16


def widened(tensor: Tensor) -> Tensor:
    """In float64 where the device has it: squares of float32 numbers soon leave the range of float32."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def wide_dtype(device: torch.device) -> torch.dtype:
    """What `widened` makes of a tensor on this device."""
    return torch.float32 if device.type == "mps" else torch.float64


def symmetric(matrix: Tensor) -> Tensor:
    """Rounding makes a Hessian a little unsymmetric, and the solvers may read one triangle only."""
    return (matrix + matrix.mT) / 2


@dataclass(frozen=True)
class Dense(metaclass=ABCMeta):
    """C, stored as an `(m, m)` symmetric tensor; `semidefinite` where no eigenvalue can be negative.

    `count` is how many samples C is the mean over, where that is not all with a finite gradient.
    """

    matrix: Tensor
    semidefinite: bool = False
    count: Tensor | None = None

    def dense(self) -> Tensor:
        return self.matrix

    def product(self, vectors: Tensor) -> Tensor:
        """Rows of `(K, m)` times C."""
        return vectors @ self.matrix

    def mean_square(self) -> Tensor:
        """The mean square of the m eigenvalues, ‖C‖²_F / m: a scale of C that no sign cancels."""
        return widened(self.matrix).square().sum() / self.matrix.shape[-1]


@dataclass(frozen=True)
class LowRank(metaclass=ABCMeta):
    """C = AᵀA, given by its factor A of shape `(K, m)`. The empirical Fisher with N < m, where A = G/√N.

    Where the gradients gᵢ of the batch are themselves in it, `scale` and `first` say how: gᵢ = scale · A[first + i].
    """

    factor: Tensor
    scale: Tensor | None = None
    first: int = 0

    def dense(self) -> Tensor:
        return self.factor.mT @ self.factor

    def product(self, vectors: Tensor) -> Tensor:
        """Rows of `(K, m)` times C."""
        return (vectors @ self.factor.mT) @ self.factor

    def mean_square(self) -> Tensor:
        """The mean square of the m eigenvalues, from the small Gram matrix: it has the same non-zero ones."""
        wide = widened(self.factor)
        return (wide @ wide.mT).square().sum() / wide.shape[-1]


@dataclass(frozen=True)
class Products:
    """C as a function that maps rows `(K, m)` to rows times C; nothing of size m² is ever stored.

    `example` is any tensor of the dtype and on the device that the function works with, `size` is m.
    With a `group`, the function is made of what all its ranks know: they have to
    call it together and with the same rows.
    """

    function: Callable[[Tensor], Tensor]
    size: int
    example: Tensor
    group: "ProcessGroup | None" = None

    def dense(self) -> Tensor:
        return self.function(torch.eye(self.size, dtype=self.example.dtype, device=self.example.device))

    def product(self, vectors: Tensor) -> Tensor:
        """Rows of `(K, m)` times C."""
        return self.function(vectors)

    def mean_square(self) -> Tensor:
        """The mean square of the m eigenvalues; for more than 16, estimated with 16 probes of ±1, always the same."""
        if self.size <= PROBES:
            return widened(self.dense()).square().sum() / max(1, self.size)
        return widened(self.function(signs(PROBES, self.size, self.example))).square().mean()


@dataclass(frozen=True)
class Exchangeable:
    """The curvature of outputs whose order has no meaning: `among` on differences of items, `common` on their mean.

        Cᵢ = a (I − J/mᵢ) + b J/mᵢ,   J = 11ᵀ over the mᵢ items of list i

    Averaging a symmetric H over all permutations Π of its m items, (1/m!) Σ ΠᵀHΠ, gives a matrix that no permutation
    changes. Any two diagonal entries can be exchanged by one, and any two others, so that each kind is equal:
    the average is αI + βJ. Its eigenvalues are b on the constant list and a on the m − 1 directions that sum to 0.
    Permutations keep tr H and 1ᵀH1, which gives both:

        b = 1ᵀH1/m,   a = (tr H − b)/(m − 1)

    Over a batch of lists of different lengths the numerators and the denominators are summed, so that each list counts
    by its items: b = (1/N) Σ 1ᵀHᵢ1/mᵢ and a = Σ (tr Hᵢ − 1ᵀHᵢ1/mᵢ) / Σ (mᵢ − 1). No square of H can turn negative:
    a and b are means of its diagonal in rotated coordinates.

    `mask` `(N, m)` says which outputs exist; without one, all do. `lists` is N, and `freedom` is Σ (mᵢ − 1).
    """

    among: Tensor
    common: Tensor
    size: int
    lists: Tensor
    freedom: Tensor
    mask: Tensor | None = None

    def dense(self) -> Tensor:
        """The matrix of a list in which all outputs exist."""
        share = (self.common - self.among) / max(1, self.size)
        identity = torch.eye(self.size, dtype=self.among.dtype, device=self.among.device)
        return self.among * identity + share

    def product(self, vectors: Tensor) -> Tensor:
        """Rows of `(K, m)` times C; row i is list i where there is a mask for it."""
        return self.scaled(vectors, self.among, self.common)

    def scaled(self, rows: Tensor, among: Tensor, common: Tensor) -> Tensor:
        """Each row's mean times `common`, and what differs from it times `among`."""
        if self.mask is None or len(self.mask) != len(rows):
            mean = rows.mean(-1, keepdim=True)
            return (rows - mean) * among + mean * common
        rows = torch.where(self.mask, rows, 0.0)
        mean = rows.sum(-1, keepdim=True) / self.mask.sum(-1, keepdim=True).clamp(min=1)
        return torch.where(self.mask, (rows - mean) * among + mean * common, 0.0)

    def mean_square(self) -> Tensor:
        """The mean square of the eigenvalues over all outputs that exist."""
        total = widened(self.freedom * self.among.square() + self.lists * self.common.square())
        return total / (self.freedom + self.lists).clamp(min=1)


@dataclass(frozen=True)
class Masked:
    """C where not all samples have all outputs, over the samples that have them.

    Sample i is solved with the part of `matrix` `(m, m)` that belongs to its own outputs, `mask` `(N, m)`: what does
    not exist gets no step and takes nothing from the others. `pairs` `(m, m)` counts the samples that have both
    outputs, n_jk, and n_j on its diagonal. Of a Hessian each entry is the mean over these samples, (1/n_jk) Σ Hᵢ.
    Of an empirical Fisher, which is `semidefinite`, such means over different samples would make some eigenvalues
    negative; its entries are (1/√(n_j n_k)) Σ gᵢⱼgᵢₖ, the products of gradients in which each output has a scale
    of its own. Where all samples have both outputs, it is their mean.
    """

    matrix: Tensor
    mask: Tensor
    pairs: Tensor
    semidefinite: bool = False

    @property
    def size(self) -> int:
        return self.matrix.shape[-1]

    def dense(self) -> Tensor:
        return self.matrix

    def product(self, vectors: Tensor) -> Tensor:
        """Rows of `(K, m)` times C; row i is sample i where there are as many."""
        if len(vectors) != len(self.mask):
            return vectors @ self.matrix
        return torch.where(self.mask, torch.where(self.mask, vectors, 0.0) @ self.matrix, 0.0)

    def parts(self, start: int, stop: int) -> Tensor:
        """The matrices of some samples, `(K, m, m)`, zero outside of their own outputs."""
        mask = self.mask[start:stop]
        return torch.where(mask.unsqueeze(-1) & mask.unsqueeze(-2), self.matrix, 0.0)

    def mean_square(self) -> Tensor:
        """The mean square of the eigenvalues of all samples' matrices, over the outputs that exist."""
        squares = widened(self.matrix).square() * self.pairs
        return squares.sum() / self.pairs.diagonal().sum().clamp(min=1)


@dataclass(frozen=True)
class OwnParts:
    """Each sample's own part of the empirical Fisher: Cᵢ = gᵢgᵢᵀ/N, which add up to it.

    Sample i is solved with Cᵢ alone, in closed form: (Cᵢ + λI)⁻¹gᵢ = gᵢ/(λ + ‖gᵢ‖²/N). Small gradients keep their
    step, large ones are softly clipped, and no direction is turned.

    `gradient` `(N, m)` and `value` `(N,)` are those of the samples, of which only the finite ones count. `mask`
    `(N, m)` says which outputs exist; a sample without any is not one of the N. Where several processes share the
    batch, `sums` holds Σ ‖gᵢ‖⁴, Σ ‖gᵢ‖², the number of outputs that exist and N, all over the samples of every rank.
    """

    gradient: Tensor
    value: Tensor | None = None
    mask: Tensor | None = None
    sums: Tensor | None = None

    @property
    def size(self) -> int:
        return self.gradient.shape[-1]

    def usable(self) -> Tensor:
        """Which samples have a finite value and gradient, `(N,)` boolean."""
        usable = torch.isfinite(self.gradient).all(1)
        return usable if self.value is None else usable & torch.isfinite(self.value)

    def rows(self) -> Tensor:
        """The gradients in float64, zero where a sample does not count."""
        return widened(torch.where(self.usable()[:, None], self.gradient.detach(), 0.0))

    def summed(self) -> Tensor:
        """Σ ‖gᵢ‖⁴, Σ ‖gᵢ‖², the number of outputs that exist and N, `(4,)`: of all ranks where they share the batch."""
        if self.sums is not None:
            return self.sums
        squares, usable = self.rows().square().sum(1), self.usable()
        counts = (count.to(squares) for count in self.counted(usable))
        return torch.stack([squares.square().sum(), squares.sum(), *counts])

    def counted(self, usable: Tensor) -> tuple[Tensor, Tensor]:
        """How many outputs the usable samples have, and how many of these samples have any."""
        if self.mask is None:
            return usable.sum() * self.size, usable.sum()
        exists = self.mask & usable[:, None]
        return exists.sum(), exists.any(1).sum()

    def dense(self) -> Tensor:
        """The sum of all own parts, (1/N) Σ gᵢgᵢᵀ."""
        rows = self.rows()
        return rows.mT @ rows / self.summed()[3].clamp(min=1)

    def product(self, vectors: Tensor) -> Tensor:
        """Rows of `(N, m)`, each times its own sample's Cᵢ; of any other number, times the sum of all of them."""
        rows = self.rows()
        if len(vectors) != len(rows):
            return (vectors.to(rows.dtype) @ self.dense()).to(vectors.dtype)
        along = (vectors * rows).sum(1, keepdim=True)
        return (along * rows / self.summed()[3].clamp(min=1)).to(vectors.dtype)

    def mean_square(self) -> Tensor:
        """(1/m) Σ (‖gᵢ‖²/N)²: that of the empirical Fisher's m eigenvalues where the gradients are orthogonal."""
        fourth, _, outputs, count = self.summed().unbind()
        return fourth / (count * outputs).clamp(min=1)


Curvature = Dense | LowRank | Products | Exchangeable | Masked | OwnParts


def signs(count: int, size: int, example: Tensor) -> Tensor:
    """`(count, size)` of ±1 that are as good as random, in the dtype and on the device of `example`.

    A hash of each position instead of a random generator: no state, equal on every device. It has to mix well: signs
    that follow each other in a pattern meet the patterns of smooth and of alternating matrices.
    """
    mixed = torch.arange(1, count * size + 1, device=example.device).reshape(count, size)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 16)) & 1).to(example.dtype) * 2 - 1
