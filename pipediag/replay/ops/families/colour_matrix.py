"""Multiply the channels of images by a matrix, as plain code does: to other colours, or to fewer channels.

The CPU's library chooses the order of the sums, so that the last digits may differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..exactness import approximate
from ..op import NotRecordable, Op, State
from ..operation import Functional, Operation, Static

#: The ways in which plain code multiplies, besides an equation of ``torch.einsum``.
FLAT, LAST, DOT = "flat", "channels last", "tensordot"
_MOST = 4  # channels of a result


def colour_matrix(image: Tensor, matrix: Tensor, how: str) -> Tensor:
    """Return the product of a matrix ``(K, C)`` and an image ``(C, H, W)``, by the call that the user's code makes.

    If ``how`` is :data:`LAST`, the matrix is ``(C, K)``.
    """
    if how == FLAT:
        return torch.matmul(matrix, image.reshape(len(image), -1)).view(-1, *image.shape[1:])
    if how == LAST:
        return torch.matmul(image.permute(1, 2, 0), matrix).permute(2, 0, 1)
    return torch.tensordot(matrix, image, dims=1) if how == DOT else torch.einsum(how, matrix, image)


def _encoded(state: State, matrix: Tensor, how: str) -> list[Op]:
    rows = matrix.T if how == LAST else matrix
    if state.dtype != torch.float32 or not 0 < len(rows) <= _MOST:
        raise NotRecordable(f"a matrix is recorded for float32 images, and for at most {_MOST} channels of the result")
    # The way decides how the result lies in memory.
    shape = (len(rows), *state.shape[1:])
    return [state.op("colour_matrix", *rows.flatten().tolist(), static=(how,), shape=shape)]


def _kernel(x: Tensor, numbers: Tensor, static: Static, bulk: Tensor) -> Tensor:
    columns = numbers.to(torch.float32).reshape(len(x), -1, x.size(1), 1, 1).unbind(2)
    first, *others = zip(x.split(1, 1), columns, strict=True)
    made = torch.mul(*first)
    for channel, column in others:  # a matrix product may be rounded to TF32 on a GPU
        made.addcmul_(channel, column)
    return made


OPERATIONS = (Operation("colour_matrix", _kernel, approximate, by_order=True),)
FUNCTIONALS = (Functional("colour_matrix", _encoded),)
