# SPDX-License-Identifier: Apache-2.0
"""train_rl.py on a CPU, with rollouts of a toy: its inference engine wants FlashAttention.

    python -m megatron.torch_profile --cpu scripts/toy_rollouts.py train_rl.py --perform-rl-step ...

A rollout is a row of tokens by chance, and its reward the share of even ones. Where Megatron packs
one sequence alone, attention is told of no packing, which Megatron's own attention refuses. All
else is Megatron's: the advantages, the log-probabilities of the old and the reference model that it
computes before an iteration trains, the loss, the step.
"""

from __future__ import annotations

import importlib
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import wrapt


def rollouts(groups: int, of_a_group: int, length: int, vocabulary: int, seed: int) -> list[Any]:
    """Groups of rollouts, the same for the same seed.

    Args:
        groups: how many prompts.
        of_a_group: rollouts of a prompt.
        length: tokens of a rollout; the first half is the prompt.
        vocabulary: tokens are below.
        seed: of this collection.
    """
    from megatron.rl.types import RolloutGroup, TokenRollout

    chance = random.Random(seed)

    def rollout() -> Any:
        tokens = [chance.randrange(vocabulary - 1) for _ in range(length)]
        return TokenRollout(
            trajectory=[tokens],
            reward=sum(token % 2 == 0 for token in tokens) / length,
            generation_mask=[[place >= length // 2 for place in range(length)]],
            logprobs=[[-1.0] * (length - length // 2)],
            env_id="toy",
        )

    return [RolloutGroup(rollouts=[rollout() for _ in range(of_a_group)]) for _ in range(groups)]


def collected(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """In the place of `get_environment_rollouts`: rollouts, and nothing told of their requests."""
    from megatron.training import get_args

    given = get_args()
    _, _, _, groups, of_a_group = args
    seed = given.curr_iteration
    made = rollouts(groups, of_a_group, given.seq_length, given.padded_vocab_size, seed)
    return made, {}


def unpacked(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Around the forward of a model: one sequence that is packed alone is not packed."""
    packed = kwargs.get("packed_seq_params")
    if packed is not None and len(packed.cu_seqlens_q) == 2:
        kwargs = {**kwargs, "packed_seq_params": None}
    return wrapped(*args, **kwargs)


def main() -> None:
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    wrapt.wrap_function_wrapper("megatron.rl.rl_utils", "get_environment_rollouts", collected)
    wrapt.wrap_function_wrapper("megatron.core.models.gpt.gpt_model", "GPTModel.forward", unpacked)
    # It has none, and train_rl.py asks whether it has one.
    null = importlib.import_module("megatron.core.tokenizers.text.libraries.null_tokenizer")
    null.NullTokenizer.bos_id = None
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
