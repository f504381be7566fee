# SPDX-License-Identifier: Apache-2.0
"""How large cuBLAS's workspaces may be."""

from __future__ import annotations

import pytest

from megatron.torch_profile.memory.blas_workspace import blas_workspace_bytes

DEFAULTS = (8_519_680, 33_554_432)


@pytest.mark.parametrize(
    ("variables", "sizes"),
    [
        ({}, DEFAULTS),
        ({"CUBLAS_WORKSPACE_CONFIG": "what is this"}, DEFAULTS),
        ({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, (32 << 20,)),
        ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, (128 << 10,)),
        ({"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, DEFAULTS[:1]),
        ({"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, ()),
        ({"CUBLASLT_WORKSPACE_SIZE": "1024"}, (1 << 20, *DEFAULTS)),
        ({"CUBLASLT_WORKSPACE_SIZE": "many"}, DEFAULTS),
    ],
)
def test_sizes_are_what_torch_makes_of_the_variables(
    variables: dict[str, str], sizes: tuple[int, ...]
) -> None:
    assert blas_workspace_bytes(variables) == sizes
