# SPDX-License-Identifier: Apache-2.0
"""The wait for data where Megatron has no iterator of its own that could be wrapped: before 0.10.

There `train` is handed the data loader's plain iterator (one for each model chunk, None on ranks
that read nothing), and whoever asks it is the user's script. So `train` gets it in a wrapper.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import wrapt

NextBatch = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_OWN_ITERATOR = "megatron.core.rerun_state_machine"
_ARGUMENT = "train_data_iterator"


class _Timed(wrapt.ObjectProxy):  # type: ignore[type-arg]
    def __init__(self, iterator: Any, next_batch: NextBatch) -> None:
        super().__init__(iterator)
        self._self_next_batch = next_batch

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._self_next_batch(next, (self.__wrapped__,), {})


def with_timed_data(
    train: Callable[..., Any], args: Any, kwargs: Any, next_batch: NextBatch
) -> tuple[Any, Any]:
    """Arguments for `train` whose data iterators tell when they are asked.

    Args:
        train: Megatron's, with `args` and `kwargs` as it is called.
        args: positional arguments.
        kwargs: named arguments.
        next_batch: called in place of `next`, in wrapt's form (wrapped, args, kwargs).
    """
    if find_spec(_OWN_ITERATOR) is not None:  # that one is wrapped, see patches.py
        return args, kwargs
    bound = inspect.signature(train).bind(*args, **kwargs)
    iterators = bound.arguments.get(_ARGUMENT)
    if isinstance(iterators, list):
        timed: Any = [one if one is None else _Timed(one, next_batch) for one in iterators]
    elif iterators is None:
        return args, kwargs
    else:
        timed = _Timed(iterators, next_batch)
    bound.arguments[_ARGUMENT] = timed
    return bound.args, bound.kwargs
