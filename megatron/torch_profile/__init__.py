# SPDX-License-Identifier: Apache-2.0
"""Profile any Megatron training run, unmodified.

    python -m megatron.torch_profile pretrain_gpt.py --torch-profile ...

or, from code, before Megatron parses its arguments:

    import megatron.torch_profile
    megatron.torch_profile.install()

or, in a training loop of your own:

    with torch_profile.attach(model):
        for iteration in range(1, 1001):
            with torch_profile.step(iteration):
                ...

Importing this package imports neither torch nor Megatron, and changes nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own takes time, in which Ctrl-C prints a traceback
if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from megatron.torch_profile.config import TorchProfileConfig
    from megatron.torch_profile.hooks.other_loops import Attached
    from megatron.torch_profile.patching import PatchSet

__all__ = ["TorchProfileConfig", "attach", "install", "step", "uninstall"]

_patches: PatchSet | None = None


def __getattr__(name: str) -> Any:
    # Every module of the package passes here first: nothing may be imported until it is asked for.
    if name != "TorchProfileConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from megatron.torch_profile.config import TorchProfileConfig

    return TorchProfileConfig


def install() -> None:
    """Wrap the few Megatron names that profiling needs; again is nothing.

    Megatron and torch may be imported before or after; of torch, only the begin of a CUDA graph's
    capture is wrapped, which is noted. Without `--torch-profile` among the arguments,
    training is what it was.

    Raises:
        SystemExit: Megatron is older than the oldest that can be profiled. If Megatron is imported
            later, its import raises this.
    """
    global _patches
    from megatron.torch_profile.hooks import cuda_graphs
    from megatron.torch_profile.hooks.megatron_names import PATCHES
    from megatron.torch_profile.patching import PatchSet

    _patches = _patches or PatchSet(PATCHES)
    _patches.apply()
    cuda_graphs.captures.apply()


def uninstall() -> None:
    """Put every name back; again is nothing."""
    from megatron.torch_profile.hooks import cuda_graphs

    if _patches is not None:
        _patches.remove()
    cuda_graphs.captures.remove()


def attach(
    model: Any = None,
    *,
    optimizer: Any = None,
    config: TorchProfileConfig | Mapping[str, Any] | str | Path | None = None,
    first_iteration: int = 1,
    last_iteration: int | None = None,
    arguments: Any = None,
    mesh: Any = None,
    loop: str = "pytorch",
    flops_per_iteration: int | None = None,
    tokens_per_iteration: int | None = None,
) -> Attached:
    """Follow a training loop that is not Megatron's, from now on. Call it on every rank.

    Nothing happens, and `step` costs nothing, unless somebody switches profiling on: `config`, a
    YAML file, or `MEGATRON_TORCH_PROFILE=1` in the environment (docs/other-loops.md).

    Args:
        model: for spans of modules: a module, or a list of model chunks. Of a loop with several
            models a mapping, from a name of one word to each.
        optimizer: for the owners of memory; of several models a list, or a mapping like theirs.
        config: what is recorded where the environment says nothing else: a configuration, its
            fields by name, or the path of a YAML file that holds them.
        first_iteration: the first that this process will run, counted over the whole training.
        last_iteration: the last; None if nobody knows.
        arguments: of the run, for `run.json`: a namespace, a dataclass, a mapping.
        mesh: torch's DeviceMesh over all ranks, for coordinates; without one megatron-core's
            groups are asked, where they exist.
        loop: its name, for the trace. `megatron` means that `arguments` are Megatron's and that
            advice may name its flags.
        flops_per_iteration: of the model over all ranks, for MFU.
        tokens_per_iteration: over all ranks.

    Returns:
        What ends the following: as a context manager, or by `detach()`. The end of the process
        does it too. A second call with a mapping of other names, or of the same models, adds these
        models to the loop that the first one follows and returns what the first one returned: its
        other arguments are not looked at. Any other second call ends that loop, and says so.

    Raises:
        SystemExit: a setting is wrong; one sentence says which, and the status is 2.
    """
    # Not above: the programs beside training import this package, too, and need none of it.
    from megatron.torch_profile.hooks import other_loops

    return other_loops.attach(
        model,
        optimizer=optimizer,
        config=config,
        first_iteration=first_iteration,
        last_iteration=last_iteration,
        arguments=arguments,
        mesh=mesh,
        loop=loop,
        flops_per_iteration=flops_per_iteration,
        tokens_per_iteration=tokens_per_iteration,
    )


def step(iteration: int | None = None, *, model: str | None = None) -> AbstractContextManager[None]:
    """One iteration of an attached loop: one optimizer step, with all its micro-batches.

    Args:
        iteration: counted from 1 over the whole training; None is the one after the last.
        model: the name of one of several models, whose own step this is. Inside another `step` it
            is a part of that iteration; elsewhere an iteration is a round of the models' steps.
    """
    from megatron.torch_profile.hooks import other_loops

    return other_loops.step(iteration, model)
