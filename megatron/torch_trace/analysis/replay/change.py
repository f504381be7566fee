# SPDX-License-Identifier: Apache-2.0
"""Changes that a what-if may ask for: one frozen type a flag; its `text` is what a user writes.

A change is about one of two graphs. The graph of kernels has CPU segments, launches, kernels and
collectives of up to 16 ranks; the graph of spans has forwards and backwards of micro-batches over
all ranks. `read` makes a change from a flag and its value, and says which value would be right.

    --rank 2=median          --launch 0              --copies pageable=0     --micro-batches 16
    --comm tp*0.5            --cpu-operators '*0.7'  --sync none             --virtual-stages 2
    --overlap dp             --kernel 'gemm*0.8'     --module 'mlp*0.9'      --move-layers '3>2'
    --data-loader 0          --tiny-kernels 0        --barriers none         --stages balanced
    --gpu 2=median           --cuda-graphs layers    --garbage-collection 0
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

ALL = "all"
"""As the dimension of communication, or the kind of copies: every one."""

COPY_KINDS = ("pageable", "pinned", "device", ALL)
"""Copies from or to pageable memory of the host, from or to pinned memory, within the GPU."""

LAYERS = "layers"
"""As what CUDA graphs hold: each layer of the model."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is different in the simulated iteration."""

    flag: ClassVar[str]
    form: ClassVar[str]
    """What stands behind the flag, with the fields' names in braces."""
    of_spans: ClassVar[bool] = False
    """Whether the graph of spans answers it; else the graph of kernels."""

    @property
    def value(self) -> str:
        """What stands behind the flag."""
        return self.form.format(**{one.name: getattr(self, one.name) for one in fields(self)})

    @property
    def text(self) -> str:
        """As a user writes it, without a shell's quotes: `--rank 2=median`."""
        return f"{self.flag} {self.value}"


@dataclass(frozen=True, slots=True)
class RankAsMedian(Change):
    """The CPU of a rank takes as long as the median of the ranks that do the same work."""

    flag: ClassVar[str] = "--rank"
    form: ClassVar[str] = "{rank}=median"
    rank: int


@dataclass(frozen=True, slots=True)
class GpuAsMedian(Change):
    """The GPU of a rank takes as long as the median of the ranks that do the same work."""

    flag: ClassVar[str] = "--gpu"
    form: ClassVar[str] = "{rank}=median"
    rank: int


@dataclass(frozen=True, slots=True)
class CommunicationScaled(Change):
    """Transfers of a dimension (or of `all`) take `factor` times as long; waits for ranks stay."""

    flag: ClassVar[str] = "--comm"
    form: ClassVar[str] = "{dimension}*{factor:g}"
    dimension: str
    factor: float


@dataclass(frozen=True, slots=True)
class Overlapped(Change):
    """Compute no longer waits for communication of a dimension, as far as its data allow."""

    flag: ClassVar[str] = "--overlap"
    form: ClassVar[str] = "{dimension}"
    dimension: str


@dataclass(frozen=True, slots=True)
class LaunchScaled(Change):
    """Calls that launch GPU work take `factor` times as long."""

    flag: ClassVar[str] = "--launch"
    form: ClassVar[str] = "{factor:g}"
    factor: float


@dataclass(frozen=True, slots=True)
class CudaGraphs(Change):
    """The forward and the backward of every such module are a CUDA graph each.

    Args:
        module: `LAYERS`, or as of `ModuleScaled`.
    """

    flag: ClassVar[str] = "--cuda-graphs"
    form: ClassVar[str] = "{module}"
    module: str


@dataclass(frozen=True, slots=True)
class OperatorsScaled(Change):
    """The CPU's time in operators, launches aside, is `factor` times as long."""

    flag: ClassVar[str] = "--cpu-operators"
    form: ClassVar[str] = "*{factor:g}"
    factor: float


@dataclass(frozen=True, slots=True)
class KernelsScaled(Change):
    """Kernels whose names the regular expression finds take `factor` times as long."""

    flag: ClassVar[str] = "--kernel"
    form: ClassVar[str] = "{pattern}*{factor:g}"
    pattern: str
    factor: float


@dataclass(frozen=True, slots=True)
class ModuleScaled(Change):
    """CPU segments and GPU work launched in modules with this name take `factor` times as long.

    Args:
        module: what a module's path ends with, or its class: `mlp`, `layers.3.mlp`, `MLP`.
    """

    flag: ClassVar[str] = "--module"
    form: ClassVar[str] = "{module}*{factor:g}"
    module: str
    factor: float


@dataclass(frozen=True, slots=True)
class CopiesScaled(Change):
    """Copies of a kind, one of `COPY_KINDS`, take `factor` times as long, and at 0 block nobody."""

    flag: ClassVar[str] = "--copies"
    form: ClassVar[str] = "{kind}={factor:g}"
    kind: str
    factor: float


@dataclass(frozen=True, slots=True)
class WithoutSynchronisation(Change):
    """The CPU never waits for the GPU."""

    flag: ClassVar[str] = "--sync"
    form: ClassVar[str] = "none"


@dataclass(frozen=True, slots=True)
class DataLoaderScaled(Change):
    """The CPU's time in the data loader, on every rank, is `factor` times as long."""

    flag: ClassVar[str] = "--data-loader"
    form: ClassVar[str] = "{factor:g}"
    factor: float


@dataclass(frozen=True, slots=True)
class CollectionsScaled(Change):
    """Each collection of Python's garbage collector, on every rank, is `factor` times as long."""

    flag: ClassVar[str] = "--garbage-collection"
    form: ClassVar[str] = "{factor:g}"
    factor: float


@dataclass(frozen=True, slots=True)
class TinyKernelsScaled(Change):
    """Compute kernels shorter than 5 us, and the calls that launch them, take `factor` times as
    long: at 0 as if all of them were fused into others."""

    flag: ClassVar[str] = "--tiny-kernels"
    form: ClassVar[str] = "{factor:g}"
    factor: float


@dataclass(frozen=True, slots=True)
class WithoutBarriers(Change):
    """No rank waits in a barrier: it waits for a late rank in the next collective, if it has to."""

    flag: ClassVar[str] = "--barriers"
    form: ClassVar[str] = "none"


@dataclass(frozen=True, slots=True)
class RecordingCost(Change):
    """Each recorded operator takes so much less of the CPU: what recording it cost.

    Nobody asks for it: it is fitted, so that the iteration takes as long as the run's undisturbed
    ones. An operator never takes less than nothing; sleeps and collections are as long as before.
    """

    flag: ClassVar[str] = "--recording-cost"
    form: ClassVar[str] = "{ns:g}"
    ns: float


@dataclass(frozen=True, slots=True)
class MicroBatches(Change):
    """So many micro-batches of the recorded size an iteration."""

    flag: ClassVar[str] = "--micro-batches"
    form: ClassVar[str] = "{count}"
    of_spans: ClassVar[bool] = True
    count: int


@dataclass(frozen=True, slots=True)
class VirtualStages(Change):
    """Each pipeline rank has so many virtual stages; 1 is 1F1B without interleaving."""

    flag: ClassVar[str] = "--virtual-stages"
    form: ClassVar[str] = "{count}"
    of_spans: ClassVar[bool] = True
    count: int


@dataclass(frozen=True, slots=True)
class LayersMoved(Change):
    """Layers go from one pipeline stage to another."""

    flag: ClassVar[str] = "--move-layers"
    of_spans: ClassVar[bool] = True
    source: int
    target: int
    layers: int = 1

    @property
    def value(self) -> str:
        many = "" if self.layers == 1 else f"*{self.layers}"
        return f"{self.source}>{self.target}{many}"


@dataclass(frozen=True, slots=True)
class StagesBalanced(Change):
    """Every pipeline stage takes as long as the mean of them."""

    flag: ClassVar[str] = "--stages"
    form: ClassVar[str] = "balanced"
    of_spans: ClassVar[bool] = True
