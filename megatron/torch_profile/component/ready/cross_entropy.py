# SPDX-License-Identifier: Apache-2.0
"""The loss over the vocabulary: Megatron's, which can be split over ranks, or torch's."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's documents call it so

from megatron.torch_profile.component.component import Component
from megatron.torch_profile.component.ready.ready_case import ReadyCase
from megatron.torch_trace.errors import UsageError

_KERNELS = ("vocab_parallel", "fused_vocab_parallel", "torch")


def cross_entropy(ready: ReadyCase) -> Component:
    """Logits `[sequence, micro-batch, vocabulary of this rank]` and targets."""
    ready.others()
    kernel = ready.choice("kernel", _KERNELS)
    ranks, vocabulary = ready.config.parallel.tensor, ready.sizes["vocabulary"]
    if vocabulary % ranks:
        raise UsageError(f"sizes.vocabulary: {vocabulary}; must be a multiple of {ranks} ranks.")
    if kernel == "torch" and ranks > 1:
        raise UsageError(
            "arguments.kernel: torch's loss cannot be split over tensor-parallel ranks."
        )
    logits = ready.normal("sequence", "micro_batch", vocabulary // ranks)
    target = ready.below(vocabulary, "sequence", "micro_batch")
    if kernel == "torch":
        return Component(_of_torch, (logits, target))
    if kernel == "fused_vocab_parallel":
        from megatron.core import parallel_state
        from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy

        group = parallel_state.get_tensor_model_parallel_group()
        return Component(fused_vocab_parallel_cross_entropy, (logits, target, group))
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    return Component(vocab_parallel_cross_entropy, (logits, target))


def _of_torch(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), reduction="none")
