# SPDX-License-Identifier: Apache-2.0
"""Values for fields of Megatron's TransformerConfig that Megatron itself would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Optional

import pytest

from megatron.torch_profile.component.ready.config_values import check_values
from megatron.torch_trace.errors import UsageError


@dataclass
class Newer:
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    fp8: Optional[Literal["e4m3", "hybrid"]] = None  # noqa: UP045 - as Megatron writes it
    num_query_groups: int | None = None
    layernorm_epsilon: float = 1e-5
    gated_linear_unit: bool = False
    layer_freq: int | list[int] = 1
    scope: str | Literal["full"] | None = None


@dataclass
class Older:
    normalization: str = "LayerNorm"


@pytest.mark.parametrize(
    ("config", "name", "value", "sentence"),
    [
        (Newer, "normalization", "LayerNrom", "'LayerNrom'; did you mean `LayerNorm`?"),
        (Older, "normalization", "BatchNorm", "'BatchNorm'; there are LayerNorm, RMSNorm."),
        (Newer, "fp8", "int4", "'int4'; there are e4m3, hybrid."),
        (Newer, "num_query_groups", "two", "'two'; must be int or null, not str."),
        (Newer, "gated_linear_unit", 1, "1; must be bool, not int."),
        (Newer, "layernorm_epsilon", "small", "'small'; must be float, not str."),
    ],
)
def test_a_value_that_a_field_cannot_have_is_one_sentence(
    config: type, name: str, value: Any, sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_values(config, {name: value})
    assert str(caught.value) == f"arguments.{name}: {sentence}"


def test_values_that_fields_can_have_are_taken() -> None:
    given = {
        "normalization": "RMSNorm",
        "fp8": None,
        "num_query_groups": 2,
        "layernorm_epsilon": 1,
        "layer_freq": [0, 1],
        "scope": "attention",
        "of another version": object(),
    }
    check_values(Newer, given)
