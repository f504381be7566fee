# SPDX-License-Identifier: Apache-2.0
"""Names of kernels, collectives, groups and types: whose communication they are."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import GEMM, NCCL, TraceBuilder

from megatron.torch_trace.analysis.communication.bandwidth import (
    bus_factor,
    dtype_bytes,
)
from megatron.torch_trace.analysis.communication.collectives import canonical
from megatron.torch_trace.analysis.communication.dimensions import dimension_of
from megatron.torch_trace.format.communication_names import (
    collective_of,
    is_coalesced_range,
    is_communication,
    is_range,
)


def test_kernels_of_all_libraries_are_communication(tmp_path: Path) -> None:
    names = (
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>(long)",
        "void vllm::cross_device_reduce_1stage<nv_bfloat16, 8>(RankData*)",
        "void deep_ep::internode::dispatch<false>(int)",
        "nvshmemi_transfer_rma_block",
        "oneccl_allreduce_ring<float>",
        "void hybrid_ep::combine_kernel<hybrid_ep::inter_node_group<4>>(int)",
        "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs4K)",
    )
    trace = TraceBuilder().step(1, 0, 1000)
    for number, name in enumerate(names):
        trace.gpu(name, 100 * number, 100 * number + 10, launch=1)
    timeline = trace.timeline(tmp_path)
    assert timeline.sets.communication.total == 10 * len(names)
    assert timeline.sets.compute.total == 0


@pytest.mark.parametrize(
    "name",
    [
        GEMM,
        "void hybrid_ep::scan<256, 4>(int)",
        "reduce_kernel<512>",
        "ampere_sgemm",
        "void at::native::Memcpy_like(int)",
    ],
)
def test_compute_is_not_taken_for_communication(name: str) -> None:
    assert not is_communication(name)


def test_names_of_torch_fold_into_one_name_for_each_collective() -> None:
    names = ("_allgather_base", "allgather_into_tensor_coalesced", "all_gather", "ALLGATHER")
    assert {canonical(name) for name in names} == {"allgather"}
    names = ("_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter")
    assert {canonical(name) for name in names} == {"reduce_scatter"}
    assert [canonical(n) for n in ("all_to_allv", "allreduce_coalesced", "isend", "wait")] == [
        "all_to_all",
        "allreduce",
        "send",
        "wait",
    ]


def test_megatron_s_groups_have_their_dimension() -> None:
    expected = {
        "TENSOR_MODEL_PARALLEL_GROUP": "tp",
        "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
        "DATA_PARALLEL_GROUP_WITH_CP_GLOO": "dp",
        "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "dp",
        "DATA_PARALLEL_GROUP_WITH_CP_AG": "dp",
        "DATA_PARALLEL_GROUP_WITH_CP_WITH_GTP_REMAT": "dp",
        "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp-dp",
        "CONTEXT_PARALLEL_GROUP": "cp",
        "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0": "cp",
        "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_GLOO_L1": "cp",
        "HYBRID_DP_CP_GROUP_4": "cp",
        "EXPERT_DATA_PARALLEL_GROUP_AG": "edp",
        "EXPERT_GTP_WEIGHT_REMAT_GROUP": "gtp",
        "EXPERT_MODEL_PARALLEL_GROUP": "ep",
        "EXPERT_DATA_PARALLEL_GROUP": "edp",
        "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP_WITH_EGTP": "mp",
        "EMBEDDING_GROUP": "embedding",
        "default_pg": "default",
        "mesh_dp_shard": "dp",
        "mesh_dp_replicate": "dp",
        "mesh_dp_shard_cp": "dp",
        "mesh_fsdp": "dp",
        "mesh_FSDP": "dp",
        "mesh_efsdp": "edp",
        "mesh_tp": "tp",
        "mesh_ep": "ep",
        "mesh_cp": "cp",
        "mesh_pp": "pp",
        "mesh_dim_0": "unknown",
        "fsdp": "dp",
        "dp_shard": "dp",
        "tp": "tp",
        "ep": "ep",
        "hsdp": "dp",
        "data_parallel_group": "dp",
        "world": "unknown",
        "temp": "unknown",
        "undefined": "unknown",
    }
    assert {name: dimension_of(name) for name in expected} == expected
    assert dimension_of(None) == "unknown"


def test_sizes_of_types_and_factors_of_collectives() -> None:
    assert [dtype_bytes(t) for t in ("BFloat16", "Float", "Long", "Float8_e4m3fn", "", "?")] == [
        2,
        4,
        8,
        1,
        None,
        None,
    ]
    factors = {
        1.5: ("allreduce",),
        0.75: ("allgather", "reduce_scatter", "all_to_all", "gather", "scatter"),
        1.0: ("broadcast", "reduce", "send", "recv", "send_recv"),
    }
    found = {factor: {bus_factor(c, 4) for c in names} for factor, names in factors.items()}
    assert found == {factor: {factor} for factor in factors}
    # Alone in its group a rank moves nothing over a bus.
    assert [bus_factor(c, 1) for c in ("allreduce", "allgather", "send")] == [0.0, 0.0, 1.0]
    assert bus_factor("allreduce", None) is None


def test_a_kernel_s_name_tells_the_collective() -> None:
    assert collective_of(NCCL) == "allreduce"
    assert collective_of("nccl:_all_gather_base") == "allgather"
    assert collective_of("nccl2:all_reduce") == "allreduce"
    assert collective_of("ncclDevKernel_Generic(x)") == "unknown"


def test_ranges_of_every_backend_are_known_and_operators_are_none() -> None:
    assert all(is_range(name) for name in ("nccl:all_reduce", "nccl2:send", "xccl:broadcast"))
    assert not any(is_range(name) for name in ("c10d::allreduce_", "nccl", "ncclAllReduce"))
    coalesced = ["nccl:coalesced", "nccl2:coalesced", "nccl:all_reduce_coalesced"]
    assert [is_coalesced_range(name) for name in coalesced] == [True, True, False]
