# SPDX-License-Identifier: Apache-2.0
"""The model and its layout, as far as Megatron's arguments tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megatron.torch_trace.analysis.timeline.command_line import has, value_of

_NUMBERS = (
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "hidden_size",
    "ffn_hidden_size",
    "num_layers",
    "num_attention_heads",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "data_parallel_size",
    "padded_vocab_size",
)
_SWITCHES = ("sequence_parallel", "use_distributed_optimizer", "swiglu")
_WORDS = ("recompute_granularity",)
_SHARDS = ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")
"""FSDP, by the names that Megatron has had for it."""
RELEVANT = (
    *_NUMBERS,
    *_SWITCHES,
    *_WORDS,
    *_SHARDS,
    "data_parallel_sharding_strategy",
    "use_precision_aware_optimizer",
    "optimizer_offload_fraction",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "virtual_pipeline_model_parallel_size",
    "num_experts",
    "expert_model_parallel_size",
    "optimizer_cpu_offload",
    "cpu_offloading_num_layers",
    "attention_backend",
    "use_flash_attn",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "pipeline_model_parallel_layout",
    "overlap_param_gather",
    "overlap_grad_reduce",
)
"""Arguments that decide how much memory is needed."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one rank; what is unknown is None.

    Args:
        micro_batch: samples of a micro-batch.
        global_batch: samples of an iteration.
        sequence, hidden, ffn, heads, layers, vocabulary: of the whole model.
        tensor, pipeline, context: sizes of the parallel dimensions.
        data: replicas over which a distributed optimizer shards, context parallelism included.
        virtual: pipeline stages on each rank.
        stage: of this rank.
        sequence_parallel, distributed_optimizer, gated: whether they are on.
        recompute: `full`, `selective`, or empty.
        dense: no experts.
        even: every stage has as many layers as any other.
        sharded: FSDP shards parameters, gradients and optimizer state.
        offloads: the optimizer state is on the CPU; None where this Megatron cannot do that.
    """

    micro_batch: int
    global_batch: int | None
    sequence: int | None
    hidden: int | None
    ffn: int | None
    heads: int | None
    layers: int | None
    vocabulary: int | None
    tensor: int
    pipeline: int
    context: int
    data: int | None
    virtual: int
    stage: int
    sequence_parallel: bool | None
    distributed_optimizer: bool | None
    gated: bool
    recompute: str | None
    dense: bool
    even: bool
    sharded: bool
    offloads: bool | None

    @property
    def microbatches(self) -> int | None:
        """Of an iteration on this rank."""
        replicas = self.data // self.context if self.data else 0
        if not self.global_batch or not replicas:
            return None
        return max(1, self.global_batch // (self.micro_batch * replicas))

    @property
    def layers_here(self) -> int | None:
        """Of this stage; None where stages are uneven."""
        if not self.layers or not self.even or self.layers % self.pipeline:
            return None
        return self.layers // self.pipeline

    def in_flight(self, micro_batch: int | None = None) -> int | None:
        """Micro-batches that 1F1B keeps on this stage; None with virtual stages.

        Args:
            micro_batch: another size of a micro-batch, of which an iteration has fewer.
        """
        if self.virtual > 1:
            return None
        if self.pipeline == 1:
            return 1
        count = self.microbatches
        if count is None:
            return None
        if micro_batch:
            count = max(1, count * self.micro_batch // micro_batch)
        return min(self.pipeline - self.stage, count)


def shape_of(
    arguments: Mapping[str, Any], layout: Mapping[str, int], stage: int | None
) -> Shape | None:
    """The shape; None where not even the micro-batch is known."""
    micro_batch = _number(arguments, "micro_batch_size")
    if micro_batch is None:
        return None
    pipeline = _number(arguments, "pipeline_model_parallel_size") or layout.get("pp", 1)
    tensor = _number(arguments, "tensor_model_parallel_size") or layout.get("tp", 1)
    context = _number(arguments, "context_parallel_size") or layout.get("cp", 1)
    data = _number(arguments, "data_parallel_size") or layout.get("dp")
    hidden = _number(arguments, "hidden_size")
    moved = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    return Shape(
        micro_batch=micro_batch,
        global_batch=_number(arguments, "global_batch_size"),
        sequence=_number(arguments, "seq_length"),
        hidden=hidden,
        ffn=_number(arguments, "ffn_hidden_size") or (4 * hidden if hidden else None),
        heads=_number(arguments, "num_attention_heads"),
        layers=_number(arguments, "num_layers"),
        vocabulary=_number(arguments, "padded_vocab_size"),
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        data=data * context if data else None,
        virtual=_number(arguments, "virtual_pipeline_model_parallel_size") or 1,
        stage=(stage or 0) if pipeline > 1 else 0,
        sequence_parallel=_switch(arguments, "sequence_parallel"),
        distributed_optimizer=_switch(arguments, "use_distributed_optimizer"),
        gated=bool(_switch(arguments, "swiglu")),
        recompute=str(arguments["recompute_granularity"] or "")
        if "recompute_granularity" in arguments
        else None,
        dense=not _number(arguments, "num_experts"),
        sharded=any(arguments.get(one) is True for one in _SHARDS),
        offloads=_switch(arguments, "optimizer_cpu_offload"),
        even=not any(arguments.get(one) for one in (*moved, "pipeline_model_parallel_layout")),
    )


def arguments_of(argv: Sequence[str]) -> dict[str, Any]:
    """The same names from a command line; what it does not give has Megatron's default."""
    if not has(argv, "--micro-batch-size"):
        return {}
    found: dict[str, Any] = {}
    for name in _NUMBERS:
        text = value_of(argv, _flag(name)) or ""
        if text.isdecimal():
            found[name] = int(text)
    for name in (*_SWITCHES, *_SHARDS):
        found[name] = has(argv, _flag(name))
    found["recompute_granularity"] = value_of(argv, "--recompute-granularity")
    if has(argv, "--recompute-activations"):
        found["recompute_granularity"] = "selective"
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _number(arguments: Mapping[str, Any], name: str) -> int | None:
    value = arguments.get(name)
    return value if type(value) is int and value > 0 else None


def _switch(arguments: Mapping[str, Any], name: str) -> bool | None:
    value = arguments.get(name)
    return value if isinstance(value, bool) else None
