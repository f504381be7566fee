# SPDX-License-Identifier: Apache-2.0
"""Training without a GPU: what stands in for one inside `training()`, and that nothing stays."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from megatron.torch_profile.cpu import device as cpu_device
from megatron.torch_profile.cpu import megatron_names
from megatron.torch_profile.cpu import training as cpu

OWNERS = (
    torch.cuda,
    torch.cuda.random,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.distributed.device_mesh.DeviceMesh,
    torch.Tensor,
)


def snapshot() -> list[dict[str, int]]:
    return [{name: id(value) for name, value in vars(owner).items()} for owner in OWNERS]


def test_everything_is_undone_on_exit_to_the_identical_objects() -> None:
    with cpu.training():  # what torch imports lazily is there from now on
        pass
    before = snapshot()
    with cpu.training():
        assert snapshot() != before
    assert snapshot() == before
    assert "KINETO_LOG_LEVEL" not in os.environ
    assert not torch._dynamo.config.disable


def test_everything_is_undone_when_training_fails() -> None:
    with cpu.training():
        pass
    before = snapshot()
    with pytest.raises(ZeroDivisionError), cpu.training():
        raise ZeroDivisionError
    assert snapshot() == before


def test_entered_twice_it_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with cpu.training("no CUDA device found"):
        inside = snapshot()
        with cpu.training():
            assert snapshot() == inside
        assert cpu.active()
        assert snapshot() == inside
    out = capsys.readouterr().out
    assert out == "[torch-profile cpu] no CUDA device found: training on the CPU over gloo\n"


def test_only_rank_0_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    with cpu.training():
        cpu.adjust_arguments(Namespace(distributed_backend="nccl"))
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("on_cpu")
class TestACudaDeviceIsTheCpu:
    @pytest.mark.parametrize("device", ["cuda", "cuda:1", 0, torch.device("cuda", 1)], ids=str)
    def test_for_new_tensors_and_for_moved_ones(self, device: Any) -> None:
        assert torch.ones(2, device=device).device.type == "cpu"
        assert torch.ones(2).to(device).device.type == "cpu"
        assert torch.ones(2).to(device=device).device.type == "cpu"
        assert torch.empty_like(torch.ones(2), device=device).device.type == "cpu"

    def test_for_tensors_and_modules_sent_there(self) -> None:
        tensor = torch.ones(2)
        assert tensor.cuda(non_blocking=True) is tensor
        assert tensor.pin_memory() is tensor
        assert torch.ones(2, pin_memory=True).device.type == "cpu"
        assert next(torch.nn.Linear(2, 2).cuda(0).parameters()).device.type == "cpu"

    def test_and_other_moves_stay_what_they_are(self) -> None:
        assert torch.ones(2).to(torch.float64).dtype == torch.float64
        assert torch.ones(2).to("meta").device.type == "meta"

    def test_while_a_tensor_still_calls_itself_a_cuda_tensor(self) -> None:
        assert torch.ones(2).type() == "torch.cuda.FloatTensor"
        assert torch.ones(2).type(torch.float64).dtype == torch.float64

    def test_with_streams_and_events_that_order_nothing(self) -> None:
        stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            torch.ones(2).record_stream(stream)
            event.record(stream)
            stream.wait_event(event)
        torch.cuda.synchronize()
        assert event.query()
        assert event.elapsed_time(torch.cuda.Event()) == 0.0
        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)

    def test_with_one_generator_for_both(self) -> None:
        torch.cuda.manual_seed(1)
        state = torch.cuda.get_rng_state()
        first = torch.rand(3)
        torch.cuda.set_rng_state(state)
        assert torch.equal(torch.rand(3), first)

    def test_and_there_is_one_device_but_no_cuda(self) -> None:
        assert torch.cuda.device_count() == 1
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_properties(0).total_memory > 0


def test_compiled_functions_run_uncompiled(on_cpu: None) -> None:
    compiled = torch.compile(lambda x: (x + 1, torch.compiler.is_compiling()))
    result, was_compiled = compiled(torch.ones(2, device="cuda"))
    assert result.tolist() == [2, 2]
    assert not was_compiled


def test_torch_compile_can_list_torchs_functions_among_stand_ins(on_cpu: None) -> None:
    # torch.distributed makes it forget the list; it refuses one object under two rules.
    rules = torch._dynamo.trace_rules
    rules.clear_lru_cache()
    assert rules.get_torch_obj_rule_map()


def test_torch_compile_forgets_the_stand_ins_afterwards() -> None:
    with cpu.training():
        stand_in = torch.cuda.synchronize
        torch._dynamo.trace_rules.clear_lru_cache()
        assert stand_in in torch._dynamo.trace_rules.get_torch_obj_rule_map()
    assert stand_in not in torch._dynamo.trace_rules.get_torch_obj_rule_map()


def test_process_groups_are_of_gloo_and_of_no_device(on_cpu: None) -> None:
    torch.distributed.init_process_group(
        backend="nccl",
        store=torch.distributed.HashStore(),
        rank=0,
        world_size=1,
        device_id=torch.device("cuda", 0),
    )
    try:
        group = torch.distributed.new_group([0], backend="nccl", pg_options=object())
        assert torch.distributed.get_backend() == "gloo"
        assert torch.distributed.get_backend(group) == "gloo"
    finally:
        torch.distributed.destroy_process_group()


def test_the_mesh_that_fsdp2_is_given_is_of_cpus(on_cpu: None) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        mesh = DeviceMesh.from_group(torch.distributed.group.WORLD, "cuda")
        model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        gradient = model.weight.grad
        assert mesh.device_type == "cpu"
        assert gradient is not None
        assert gradient.to_local().shape == (4, 4)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("given", [((), {"backend": "nccl"}), (("nccl",), {})])
def test_a_backend_is_gloo_however_it_is_given(given: tuple[Any, dict[str, Any]]) -> None:
    def torchs(backend: str = "", world_size: int = 0, *, device_id: Any = None) -> Any:
        return backend, world_size, device_id

    args, kwargs = given
    create = cpu_device._over_gloo(torchs)
    assert create(*args, **kwargs, world_size=2, device_id=0) == ("gloo", 2, None)
    assert create("fake") == ("fake", 0, None)


def test_a_group_of_a_wrapper_without_names_gets_what_it_is_given() -> None:
    create = cpu_device._over_gloo(lambda *args, **kwargs: (args, kwargs))
    assert create([0], backend="nccl", device_id=0) == (([0],), {"backend": "gloo"})


def test_a_tensor_may_be_freed_as_soon_as_it_is_sent() -> None:
    sent: list[Any] = []
    send = cpu_device._own_tensor(lambda tensor, *args, **kwargs: sent.append(tensor))
    tensor = torch.ones(3, requires_grad=True) * 2
    send(tensor, 1)
    tensor.data = torch.empty(1)  # as Megatron's deallocate_output_tensor does
    assert sent[0].tolist() == [2, 2, 2]


def wrapped(name: str) -> Callable[..., Any]:
    """Megatron's function of that name as it is inside; it returns what reaches it."""
    wrapper = next(patch.wrapper for patch in megatron_names.PATCHES if patch.name == name)
    return lambda *args, **kwargs: wrapper(lambda *a, **k: (a, k), None, args, kwargs)


def test_megatron_is_told_that_it_needs_no_cuda() -> None:
    assert wrapped("initialize_megatron")(1, x=2) == ((1,), {"x": 2, "allow_no_cuda": True})


def test_megatron_warms_up_no_fused_kernels() -> None:
    assert wrapped("set_jit_fusion_options")() is None


def test_megatrons_random_states_are_the_cpus() -> None:
    state = wrapped("_get_cuda_rng_state")()
    first = torch.rand(3)
    wrapped("_set_cuda_rng_state")(state)
    assert torch.equal(torch.rand(3), first)
    wrapped("_set_cuda_rng_state")(new_state=state, device=-1)
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize(
    ("helpers", "result"), [(ModuleType("helpers"), None), (None, ((), {}))], ids=["there", "not"]
)
def test_dataset_helpers_are_compiled_unless_they_are_there(
    helpers: ModuleType | None, result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "megatron.core", ModuleType("megatron.core"))
    monkeypatch.setitem(sys.modules, "megatron.core.datasets", ModuleType("megatron.core.datasets"))
    monkeypatch.setitem(sys.modules, "megatron.core.datasets.helpers", helpers)  # None: no such
    assert wrapped("compile_helpers")() == result


def test_without_a_launcher_a_process_is_the_only_rank() -> None:
    found = cpu.alone({"PATH": "/bin"})
    assert int(found.pop("MASTER_PORT")) > 1023
    assert found == {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip
    assert cpu.alone({"RANK": "3", "WORLD_SIZE": "8"}) == {}


def test_a_rendezvous_that_is_given_stays() -> None:
    given = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert not given.keys() & cpu.alone(given).keys()
