# SPDX-License-Identifier: Apache-2.0
"""How long the graph of spans takes for many ranks: recorded ranks, as so many copies of the model.

python benchmarks/span_graph.py tests/data/pp4-interleaved-spans --copies 256
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from megatron.torch_trace.analysis.replay.change_parser import read_text
from megatron.torch_trace.analysis.replay.spans.span_replay import SpanReplay
from megatron.torch_trace.analysis.run.recorded import recorded

CHANGES = ("--micro-batches 16", "--stages balanced")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="the folder of a window")
    parser.add_argument("--copies", type=int, default=256, help="of the recorded ranks")
    arguments = parser.parse_args()
    outcomes = list(recorded(arguments.path).by_rank.values())
    ranks = [
        (
            replace(
                one.result,
                rank=copy * len(outcomes) + one.result.rank,
                coordinates={**one.result.coordinates, "dp": copy},
            ),
            one.calls,
        )
        for copy in range(arguments.copies)
        for one in outcomes
    ]
    began = time.process_time()
    graph = SpanReplay.of(ranks)
    missed = graph.simulated_ns / graph.recorded_ns - 1
    print(
        f"{len(ranks):,} ranks, {graph.passes.nodes:,} nodes: {time.process_time() - began:.2f} "
        f"CPU s to build; misses the recorded iteration by {100 * missed:.2f} %"
    )
    for text in CHANGES:
        began = time.process_time()
        found = graph.simulate([read_text(text)])
        took = time.process_time() - began
        print(f"{text}: {took:.3f} CPU s, {found.iteration_ns / 1e6:.1f} ms an iteration")


if __name__ == "__main__":
    main()
