# SPDX-License-Identifier: Apache-2.0
"""The slowdown S of ByteDance's published traces, by our graph of spans.

    git clone https://github.com/ByteDance-Seed/StragglerAnalysis
    python benchmarks/stragglers.py StragglerAnalysis/data

S (Lin et al. 2025, "Understanding Stragglers in Large Model Training Using What-if Analysis",
equation 1) is the mean step without launch delays over the mean step in which every operation of a
kind takes equally long: computation its mean, communication its median. Their records fill `Passes`
and nothing else is ours: each forward and backward is a pass, a copy of the model in a step a lane.
Printed beside theirs: both steps, S, and by how much these differ.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from megatron.torch_trace.analysis.replay.spans.orders import Shape
from megatron.torch_trace.analysis.replay.spans.passes import Passes
from megatron.torch_trace.analysis.replay.spans.simulation import simulate

Times = npt.NDArray[np.float64]
COMPUTES = ("forward-compute", "backward-compute")
GATHER, REDUCE, CLIP = "params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad"
NORMS, EMBEDDING, OPTIMIZER = (
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer",
)
MEETS = {
    GATHER: ("step", "stage"),
    REDUCE: ("step", "stage"),
    CLIP: ("step",),
    EMBEDDING: ("step", "dp_rank"),
    NORMS: ("step", "stage", "dp_rank"),
    OPTIMIZER: ("step", "stage", "dp_rank"),
}
"""Who takes part: ranks that are equal in these."""


class Records:
    """One trace, in ns.

    Args:
        file: its Parquet file.
    """

    def __init__(self, file: Path) -> None:
        table = pl.read_parquet(file).with_columns(
            pl.col("optype").cast(pl.String),
            (pl.col("start_ts").cast(pl.Float64) * 1e9).alias("start"),
            (pl.col("duration").cast(pl.Float64) * 1e9).alias("took"),
        )
        self.table = table.with_columns((pl.col("start") + pl.col("took")).alias("end"))
        if table["mc"].max() != 0:
            raise ValueError(f"{file}: has virtual stages, which this reader does not place")
        self.steps = sorted(table["step"].unique())
        self.copies = 1 + int(table["dp_rank"].cast(pl.Int64).max())  # type: ignore[arg-type]
        self.stages = 1 + int(table["stage"].cast(pl.Int64).max())  # type: ignore[arg-type]
        computes = table.filter(pl.col("optype") == COMPUTES[0])
        self.microbatches = 1 + int(computes["seq_id"].max())  # type: ignore[arg-type]

    def by_lane(self, rows: pl.DataFrame, value: str, *more: str) -> Times:
        """Values of rows by step, copy, stage, and what else tells them apart."""
        step = np.searchsorted(np.array(self.steps), rows["step"].to_numpy())
        places = [step, rows["dp_rank"].to_numpy(), rows["stage"].to_numpy()]
        places += [rows[name].to_numpy() for name in more]
        found = np.zeros(
            (len(self.steps), self.copies, self.stages, *(self.microbatches for _ in more))
        )
        found[tuple(place.astype(np.int64) for place in places)] = rows[value].to_numpy()
        return found

    def computes(self) -> Times:
        """By lane, stage, direction, chunk and micro-batch."""
        found = [
            self.by_lane(self.table.filter(pl.col("optype") == kind), "took", "seq_id")
            for kind in COMPUTES
        ]
        size = (len(self.steps) * self.copies, self.stages, 2, 1, self.microbatches)
        return np.stack(found, axis=3).reshape(size)

    def transfers(self, kind: str) -> Times:
        """By step, copy and stage: the time since all who take part have begun."""
        rows = self.table.filter(pl.col("optype") == kind).with_columns(
            (pl.col("end") - pl.col("start").max().over(MEETS[kind])).clip(0).alias("moved")
        )
        return self.by_lane(rows, "moved")

    def sends(self) -> Times:
        """Of each forward's send and receive, the same."""
        sent, got = (
            self.by_lane(self.table.filter(pl.col("optype") == f"forward-{kind}"), value, "seq_id")
            for kind, value in (("send", "start"), ("recv", "end"))
        )
        began = self.by_lane(
            self.table.filter(pl.col("optype") == "forward-recv"), "start", "seq_id"
        )
        moved = got[:, :, 1:] - np.maximum(sent[:, :, :-1], began[:, :, 1:])
        return np.maximum(0.0, moved)

    def passes(self) -> Passes:
        """What the graph of spans needs, launch delays left out."""
        computes = self.computes()
        lanes = len(self.steps) * self.copies
        gathered = self.transfers(GATHER).reshape(lanes, self.stages)
        ends = [self.transfers(kind) for kind in (NORMS, EMBEDDING, REDUCE)]
        # All ranks meet twice behind the last backward: over copies, then over everything.
        tail = sum(ends).max(axis=1)[:, 0] + self.transfers(CLIP).max(axis=(1, 2))  # type: ignore[union-attr]
        tail = tail + self.transfers(OPTIMIZER).max(axis=(1, 2))
        return Passes(
            shape=Shape(self.stages, 1, self.microbatches),
            cpu=np.zeros_like(computes),
            gpu=computes,
            head=gathered,
            tail=np.asarray(tail, dtype=np.float64),
            step_of=np.repeat(np.arange(len(self.steps)), self.copies),
            recorded=np.ones(len(self.steps)),
            transfer=float(np.median(self.sends())) if self.stages > 1 else 0.0,
            is_blocking=False,
            ranks=tuple(
                tuple((lane * self.stages + stage,) for stage in range(self.stages))
                for lane in range(lanes)
            ),
        )

    def ideal(self, passes: Passes) -> Passes:
        """Every operation of a kind takes equally long."""
        means = passes.gpu.mean(axis=(0, 1, 3, 4), keepdims=True)
        usual = {kind: self.usual(kind) for kind in MEETS}
        tail = sum(usual[kind] for kind in MEETS if kind != GATHER)
        return replace(
            passes,
            gpu=np.broadcast_to(means, passes.gpu.shape).copy(),
            head=np.full_like(passes.head, usual[GATHER]),
            tail=np.full_like(passes.tail, tail),
        )

    def usual(self, kind: str) -> float:
        """The optimizer computes; the rest communicates."""
        found = self.transfers(kind)
        if kind == EMBEDDING:
            found = found[:, :, [0, -1]]
        return float(found.mean() if kind == OPTIMIZER else np.median(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with trace-NAME.parquet and result-NAME.json")
    options = parser.parse_args()
    print("trace  lanes   step, s (theirs)   ideal, s (theirs)   S (theirs)   off by")
    for file in sorted(options.folder.glob("trace-*.parquet")):
        name = file.stem.removeprefix("trace-")
        told = json.loads((options.folder / f"result-{name}.json").read_text())
        records = Records(file)
        passes = records.passes()
        found = simulate(passes).steps.mean() / 1e9
        ideal = simulate(records.ideal(passes)).steps.mean() / 1e9
        theirs = [float(np.mean(list(told[key].values()))) for key in ("step_t_nodelay",
                                                                       "step_t_noblk")]  # fmt: skip
        slowdown, published = found / ideal, told["blocking_slowdown"]
        print(
            f"{name:5}  {len(passes.step_of):5,}  {found:7.3f} ({theirs[0]:.3f})    "
            f"{ideal:7.3f} ({theirs[1]:.3f})    {slowdown:.3f} ({published:.3f})  "
            f"{100 * (slowdown / published - 1):+.2f} %"
        )


if __name__ == "__main__":
    main()
