# SPDX-License-Identifier: Apache-2.0
"""What stands in for Megatron's names that insist on a GPU or on Transformer Engine."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from megatron.torch_profile.cpu import megatron_names

BERT = "megatron.core.models.bert.bert_layer_specs"
T5 = "megatron.core.models.T5.t5_spec"


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules as Megatron has them where there is no Transformer Engine, imported already."""
    found = {name: ModuleType(name) for name in (BERT, T5)}
    vars(found[BERT])["bert_layer_local_spec"] = "layer of BERT"
    vars(found[T5]).update(LNImpl="norm of torch", TENorm="norm of nothing")
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    # Hooks would stay for all other tests of this process.
    monkeypatch.setattr(megatron_names.wrapt, "register_post_import_hook", _at_once)
    return found


def _at_once(hook: Any, name: str) -> None:
    if name in sys.modules:
        hook(sys.modules[name])


def test_sizes_of_an_all_to_all_are_an_array_as_if_they_came_from_a_gpu() -> None:
    wrapper = next(
        patch.wrapper
        for patch in megatron_names.PATCHES
        if patch.name == "maybe_move_tensor_to_cpu"
    )
    sizes = torch.tensor([2, 3])

    def moved(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor

    for args, kwargs in (((sizes, True), {}), ((sizes,), {"as_numpy": True})):
        assert type(wrapper(moved, None, args, kwargs)).__name__ == "ndarray"
    assert wrapper(moved, None, (sizes,), {"record_stream": True}) is sizes
    assert wrapper(moved, None, (None,), {"as_numpy": True}) is None


def test_local_models_need_no_transformer_engine_while_the_cpu_trains(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron_names, "find_spec", lambda name: None)
    with megatron_names.local_where_no_engine():
        assert models[BERT].bert_layer_with_transformer_engine_spec == "layer of BERT"
        assert models[T5].TENorm == "norm of torch"
    assert not hasattr(models[BERT], "bert_layer_with_transformer_engine_spec")
    assert models[T5].TENorm == "norm of nothing"


def test_transformer_engine_stays_where_it_is(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron_names, "find_spec", lambda name: object())
    with megatron_names.local_where_no_engine():
        assert models[T5].TENorm == "norm of nothing"


@pytest.mark.parametrize(
    ("engine", "given", "norms"),
    [
        (None, {}, ("WrappedTorchNorm", "WrappedTorchNorm")),
        (None, {"ln_pre_impl": str}, ("str", "WrappedTorchNorm")),
        (object(), {}, ("LayerNorm", "LayerNorm")),
    ],
    ids=["without an engine", "named by the model", "with an engine"],
)
def test_a_model_of_images_has_a_norm_that_takes_megatrons_arguments(
    engine: Any, given: dict[str, Any], norms: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron_names, "find_spec", lambda name: engine)
    norm = ModuleType("megatron.core.transformer.torch_norm")
    vars(norm)["WrappedTorchNorm"] = type("WrappedTorchNorm", (), {})
    monkeypatch.setitem(sys.modules, norm.__name__, norm)
    wrapper = next(
        patch.wrapper for patch in megatron_names.PATCHES if patch.name == "CLIPViTModel.__init__"
    )

    def model(
        config: Any, spec: Any, ln_pre_impl: Any = torch.nn.LayerNorm, ln_post_impl: Any = None
    ) -> tuple[str, str]:
        return ln_pre_impl.__name__, (ln_post_impl or torch.nn.LayerNorm).__name__

    assert wrapper(model, None, ("config", "spec"), given) == norms
