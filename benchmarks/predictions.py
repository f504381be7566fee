# SPDX-License-Identifier: Apache-2.0
"""Predictions of what-ifs, written before the changed runs exist, and held against these.

    python benchmarks/predictions.py predict MANIFEST --bases RUNS --to predictions.json
    python benchmarks/predictions.py compare predictions.json --changed RUNS [--markdown]

MANIFEST is TOML or JSON: a list `pair`, each with `name`, `base` and `changed` (folders of
launches, as `benchmarks/pairs.py` writes them: RUNS/NAME/<launch>/iter-*), and `changes`, the
arguments of `torch-trace whatif`; `note` is kept. A prediction is one of an iteration without
the profiler, since such iterations of the changed run are what it is held against. Where
`whatif` does not know that one, it is the base run's undisturbed iteration in the proportion in
which the recorded one changes, and `how` says so. No prediction is ever overwritten.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from megatron import torch_trace
from megatron.torch_trace.errors import TorchTraceError

REPOSITORY = Path(__file__).resolve().parents[1]
UNDISTURBED, PROPORTION, REFUSED = "undisturbed", "in proportion", "refused"


def pairs_of(manifest: Path) -> list[dict[str, Any]]:
    """The pairs of a manifest."""
    if not manifest.is_file():
        sys.exit(f"{manifest}: no such file; name the manifest, such as predictions.toml.")
    text = manifest.read_text()
    if manifest.suffix == ".json":
        told = json.loads(text)
    else:
        import tomllib

        told = tomllib.loads(text)
    found: list[dict[str, Any]] = told["pair"] if isinstance(told, dict) else told
    return found


def windows_in(run: Path) -> list[Path]:
    """The folders of a run's windows, in order; the run's folder may be a window itself."""
    windows = sorted(run.glob("iter-*")) or sorted(run.glob("*/iter-*"))
    return windows or ([run] if any(run.glob("*.pt.trace.json*")) else [])


def iterations_in(run: Path) -> list[list[int]]:
    """By rank, the iterations without the profiler, ns: longer than the ranks' clocks differ by."""
    found: dict[str, list[int]] = {}
    for window in windows_in(run):
        for file in sorted(window.glob("artifacts/*.iterations.json")):
            told = json.loads(file.read_text())
            found.setdefault(file.name, []).extend(ns for _, ns in told["undisturbed"])
    return [times for times in found.values() if times]


def usual(ranks: Sequence[Sequence[int]]) -> int | None:
    """The median over ranks of their medians, as `analyze` has it."""
    return round(median(median(times) for times in ranks)) if ranks else None


def spread(ranks: Sequence[Sequence[int]]) -> int:
    """Median distance from the median: by how much single iterations differ."""
    found = []
    for times in ranks:
        middle = median(times)
        found.append(median(abs(one - middle) for one in times))
    return round(median(found)) if found else 0


def commit() -> str:
    """Of this repository; with a plus if files differ from it; `unknown` of a copy."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    if not (REPOSITORY / ".git").exists():
        return "unknown"
    differs = git("status", "--porcelain", "--untracked-files=no", "--", "megatron")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if differs else "")


def prediction_of(pair: dict[str, Any], bases: Path) -> dict[str, Any] | None:
    """What becomes of a pair's iteration; None where its base run is not there."""
    run = bases / pair["base"]
    windows = windows_in(run)
    if not windows:
        return None
    ranks = iterations_in(run)
    base = usual(ranks)
    told: dict[str, Any] = {
        **pair,
        "commit": commit(),
        "predicted_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "base_undisturbed_ns": base,
        "base_spread_ns": spread(ranks),
    }
    try:
        answer = torch_trace.whatif(windows[0], *pair["changes"])
    except TorchTraceError as error:
        return {**told, "how": REFUSED, "reason": str(error), "predicted_ns": None}
    part = answer.simulated_ns / answer.replayed_ns
    proportional = None if base is None else round(base * part)
    exact = answer.undisturbed_ns
    how = UNDISTURBED if exact is not None and pair["changes"] else PROPORTION
    predicted = exact if how == UNDISTURBED else proportional
    grown = (base or answer.recorded_ns) / answer.recorded_ns
    return {
        **told,
        "graph": answer.graph,
        "recorded_ns": answer.recorded_ns,
        "replayed_ns": answer.replayed_ns,
        "simulated_ns": answer.simulated_ns,
        "error_ns": round(answer.error_ns * grown),
        "how": how,
        "in_proportion_ns": proportional,
        "predicted_ns": predicted,
    }


def predict(options: argparse.Namespace) -> None:
    """Write a prediction for every pair whose base run is there and that has none yet."""
    known = json.loads(options.to.read_text()) if options.to.exists() else []
    names = {one["name"] for one in known}
    for pair in pairs_of(options.manifest):
        if pair["name"] in names:
            print(f"{pair['name']}: predicted before", flush=True)
            continue
        if options.changed and windows_in(options.changed / pair["changed"]):
            print(f"{pair['name']}: the changed run is there, so nothing is predicted", flush=True)
            continue
        told = prediction_of(pair, options.bases)
        if told is None:
            print(f"{pair['name']}: no run in {pair['base']}", flush=True)
            continue
        known.append(told)
        options.to.write_text(json.dumps(known, indent=1) + "\n")
        print(f"{pair['name']}: {ms(told['base_undisturbed_ns'])} -> {ms(told['predicted_ns'])} ms "
              f"({told['how']}) {told.get('reason', '')}", flush=True)  # fmt: skip


def compared(told: dict[str, Any], changed: Path) -> dict[str, Any]:
    """A prediction beside what was measured; its columns are None where that is unknown."""
    ranks = iterations_in(changed / told["changed"])
    measured, base, predicted = usual(ranks), told["base_undisturbed_ns"], told["predicted_ns"]
    row = {**told, "measured_ns": measured, "measured_spread_ns": spread(ranks)}
    row |= {"iteration_error": None, "change_error": None, "sign": "unknown"}
    if measured is None or predicted is None:
        return row
    row["iteration_error"] = predicted / measured - 1
    if base is None:
        return row
    change, truth = predicted - base, measured - base
    row["change_error"] = change / truth - 1 if truth else None
    if abs(change) <= told["error_ns"]:
        row["sign"] = "not told"
    else:
        row["sign"] = "right" if change * truth > 0 else "wrong"
    return row


def rows_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All predictions, compared."""
    return [compared(one, options.changed) for one in json.loads(options.predictions.read_text())]


def ms(value: float | None) -> str:
    return "?" if value is None else f"{value / 1e6:.1f}"


def percent(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:+.1f} %"


def compare(options: argparse.Namespace) -> None:
    """Print the table."""
    rows = rows_of(options)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    head = ("pair", "change", "graph", "base, ms", "predicted", "error", "measured", "iteration",
            "change", "sign", "how")  # fmt: skip
    lines = [head, *(_line(row) for row in rows)]
    if options.markdown:
        lines.insert(1, ("---",) * len(head))
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
    else:
        widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
        for line in lines:
            print("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)))
    known = sorted(abs(r["iteration_error"]) for r in rows if r["iteration_error"] is not None)
    if known:
        signs = [row["sign"] for row in rows]
        print(
            f"\n{len(known)} compared: median {100 * median(known):.1f} %, worst "
            f"{100 * known[-1]:.1f} %; sign right {signs.count('right')}, wrong "
            f"{signs.count('wrong')}, not told {signs.count('not told')}"
        )


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        " ".join(row["changes"]) or "none",
        row.get("graph", ""),
        f"{ms(row['base_undisturbed_ns'])} ± {ms(row['base_spread_ns'])}",
        ms(row["predicted_ns"]),
        ms(row.get("error_ns")),
        f"{ms(row['measured_ns'])} ± {ms(row['measured_spread_ns'])}",
        percent(row["iteration_error"]),
        percent(row["change_error"]),
        row["sign"],
        row["how"],
    )


def main(words: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(required=True)
    first = actions.add_parser("predict", help="before the changed runs exist")
    first.add_argument("manifest", type=Path)
    first.add_argument("--bases", type=Path, required=True, help="the folder of the base runs")
    first.add_argument("--changed", type=Path, help="of the changed runs: none of these may exist")
    first.add_argument("--to", type=Path, default=Path("predictions.json"))
    first.set_defaults(run=predict)
    second = actions.add_parser("compare", help="after the changed runs")
    second.add_argument("predictions", type=Path)
    second.add_argument("--changed", type=Path, required=True, help="of the changed runs")
    second.add_argument("--markdown", action="store_true")
    second.add_argument("--json", action="store_true")
    second.set_defaults(run=compare)
    options = parser.parse_args(None if words is None else list(words))
    options.run(options)


if __name__ == "__main__":
    main()
