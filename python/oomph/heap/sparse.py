"""Sparse tensors are made of others, which have the memory."""

from __future__ import annotations

import torch


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Those that a sparse one consists of; of any other none."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
