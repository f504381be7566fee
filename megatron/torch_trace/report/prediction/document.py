# SPDX-License-Identifier: Apache-2.0
"""`torch-trace whatif --json`: schema 1. Times are integer ns an iteration; unknown is null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from megatron.torch_trace.analysis.replay.answers import PathPiece
from megatron.torch_trace.analysis.run.whatif import WhatIf

SCHEMA = 1


def document(answer: WhatIf) -> dict[str, Any]:
    """The document, made of what `json.dumps` takes."""
    return {
        "schema": SCHEMA,
        "changes": list(answer.changes),
        "graph": answer.graph,
        "ranks": answer.ranks,
        "recorded_ns": answer.recorded_ns,
        "replayed_ns": answer.replayed_ns,
        "simulated_ns": answer.simulated_ns,
        "error_ns": answer.error_ns,
        "undisturbed_ns": answer.undisturbed_ns,
        "inferred_edges": answer.inferred_edges,
        "tokens_per_s": {
            "before": answer.before.tokens_per_s,
            "after": answer.after.tokens_per_s,
        },
        "mfu": {"before": answer.before.mfu, "after": answer.after.mfu},
        "candidates": [
            {
                "change": one.change,
                "finding": one.finding,
                "iteration_ns": one.iteration_ns,
                "gain_ns": one.gain_ns,
                "error_ns": one.error_ns,
                "error_parts_ns": {
                    name: None if ns is None else round(ns)
                    for name, ns in asdict(one.error).items()
                },
                "undisturbed_gain_ns": one.undisturbed_gain_ns,
                "undisturbed_error_ns": one.undisturbed_error_ns,
                "distinguishable": one.is_distinguishable,
                "causes": [asdict(cause) for cause in one.causes],
            }
            for one in answer.candidates
        ],
        "critical_path": _pieces(answer.critical_path),
        "other_path": {
            "shorter_ns": answer.other_path_shorter_ns,
            "pieces": _pieces(answer.other_path),
        }
        if answer.other_path
        else None,
        "slack": [asdict(one) for one in answer.slack.ranks],
        "span_slack": [asdict(one) for one in answer.slack.spans],
        "collective_slack": [asdict(one) for one in answer.slack.collectives],
        "notes": list(answer.notes),
    }


def _pieces(path: Sequence[PathPiece]) -> list[dict[str, Any]]:
    return [
        {"rank": one.rank, "kind": one.kind, "name": one.name, "time_ns": one.time_ns}
        for one in path
    ]
