# SPDX-License-Identifier: Apache-2.0
"""How ranks tell each other of requests: a few keys in the store that they met in.

No collective: a rank that does not look costs the others nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from megatron.torch_profile.plan.topology import distributed

_SECONDS = 10.0
"""How long a thread of ours waits for a store that does not answer."""


class Channel(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str) -> None:
        """Put a value under a key."""

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""

    def add(self, key: str, amount: int) -> int:
        """The sum of a counter after adding to it."""


class OneProcess:
    """The same where there is one process only."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._counters: dict[str, int] = {}

    def set(self, key: str, value: str) -> None:
        """Put a value under a key."""
        self._values[key] = value.encode()

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return all(key in self._values for key in keys)

    def add(self, key: str, amount: int) -> int:
        """The sum of a counter after adding to it."""
        self._counters[key] = self._counters.get(key, 0) + amount
        return self._counters[key]


def open_channel(run: str) -> Channel:
    """The channel of a run, over a connection of its own where torch can make one.

    Args:
        run: name of the run; keys of two trainings of one process must not be the same.
    """
    if not distributed():
        return OneProcess()
    from torch.distributed import PrefixStore, distributed_c10d

    store: Any = distributed_c10d._get_default_store()
    try:
        store = store.clone()
        store.set_timeout(timedelta(seconds=_SECONDS))
    except (AttributeError, RuntimeError, NotImplementedError):
        pass  # older torch, or a store of another kind: training's own connection
    channel: Channel = PrefixStore(f"torch-profile/{run}", store)
    return channel
