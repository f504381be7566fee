# SPDX-License-Identifier: Apache-2.0
"""What every report says in sentences: what was analysed, the answer, what to know about it."""

from __future__ import annotations

from statistics import fmean

from megatron.torch_trace.analysis.findings.undisturbed_idle import UndisturbedIdle
from megatron.torch_trace.analysis.gpu_work.mfu import UNDISTURBED
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding
from megatron.torch_trace.analysis.results.cpu_means import mean_operators, means
from megatron.torch_trace.analysis.results.replayed_iterations import left_unknown_by_graphs
from megatron.torch_trace.format.breakdown_parts import BREAKDOWN_NAMES
from megatron.torch_trace.format.undisturbed_iterations import LEAST, slowdown_sentence
from megatron.torch_trace.gpu_record.restarts import again_sentence
from megatron.torch_trace.report.idle_words import IDLE_CAUSES
from megatron.torch_trace.wording import counted, duration, number, percent, ranks

_NAMES = {
    "tp": "tensor parallel",
    "pp": "pipeline",
    "dp": "data parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "edp": "expert data parallel",
    "etp": "expert tensor parallel",
    "tp-cp": "tensor and context parallel",
    "tp-dp": "tensor and data parallel",
    "gtp": "weight gathering",
    "mp": "model parallel",
    "default": "default group",
    "unknown": "unknown group",
}
_UNDISTURBED_UNKNOWN = (
    f"Undisturbed iteration unknown: the trace does not hold the times of {LEAST} "
    "iterations without the profiler near its window."
)
_LEAST_SHARE = 0.0005
_LEAST_TWICE = 0.005
_MOST_GAINS = 3
_LEAST_GAIN = 0.01
"""Of the iteration."""
_BUBBLE = "pipeline_bubble"
_SOME_NS = 100_000
"""Less than that would not be seen in any iteration."""
_MOST_NOTES = 8
_MOST_OPERATORS = 4


def head(analysis: Analysis) -> str:
    """Ranks, GPU, steps, MFU."""
    first, summary = analysis.ranks[0], analysis.summary
    count = len(analysis.ranks)
    one = f"rank {first.rank}" if first.is_rank_known else "rank unknown"
    parts = [one if count == 1 else f"{count:,} ranks"]
    if first.world_size and first.world_size != count:
        parts[0] += f" of {first.world_size:,}"
    devices = sorted({rank.device for rank in analysis.ranks if rank.device})
    if analysis.is_of_the_cpu:
        parts.append("on the CPU")
    else:
        parts.append(", ".join(devices) if devices else "GPU not recorded")
    if summary.steps:
        steps = len(summary.steps)
        named = f"step {summary.steps[0]}" if steps == 1 else f"steps {ranks(summary.steps)}"
        parts.append(f"{named}, {duration(summary.iteration_ns)} an iteration")
    else:
        parts.append(f"no ProfilerStep, {_unmarked(analysis)}")
    if not analysis.is_of_the_cpu:
        of = " of the undisturbed iteration" if _is_of_undisturbed(analysis) else ""
        parts.append(f"MFU {percent(analysis.mfu.value)}{of}")
    return "; ".join(parts) + "."


def possible_gains(analysis: Analysis) -> list[str]:
    """Where the time went and what could be gained, in one line; none if no gain is worth it."""
    shares, iteration = analysis.summary.shares, analysis.summary.iteration_ns
    if shares is None or iteration is None:
        return []
    least = _LEAST_GAIN * iteration
    # What only follows from another finding goes away with that one.
    causes = [one for one in analysis.findings if one.cause is None]
    sure: dict[str, Finding] = {}  # By change, which may take the causes of several away.
    for one in causes:
        if one.sure_gain_ns >= max(1, least):
            sure.setdefault(one.change or one.name, one)
    if not sure:
        return []
    parts = {
        "compute": shares.compute,
        "exposed communication": shares.exposed_communication,
        "exposed copies": shares.exposed_memory,
        "idle": shares.idle,
    }
    went = ", ".join(f"{part} {percent(share)}" for part, share in parts.items() if share)
    had = ", ".join(
        f"{duration(one.gain_ns)} "
        + (f"with `{one.change}`" if one.code == _BUBBLE else f"without `{one.code}`")
        for one in [*sure.values()][:_MOST_GAINS]
    )
    # What costs nothing in the window may cost most without the profiler.
    costly = [one for one in causes if one.severity == "high" and one.gain_ns is None]
    also = "".join(f"; unknown without `{one.code}`" for one in costly[:1])
    return [f"{duration(iteration)} an iteration: {went}; possible gain: {had}{also}."]


def gain(finding: Finding) -> str:
    """How much shorter the iteration would be, with a blank before it; nothing if unknown."""
    if finding.gain_ns is None:
        return ""
    error = duration(finding.gain_error_ns) if finding.gain_error_ns else "below 1 ns"
    # Of a bubble no change takes all away.
    given = f"With `{finding.change}`" if finding.code == _BUBBLE else "Without this cause"
    if not finding.sure_gain_ns:
        if finding.gain_ns + (finding.gain_error_ns or 0) < _SOME_NS:
            return f" {given}, the iteration would not be shorter (error {error})."
        if finding.gain_ns <= 0:
            return f" {given}, a shorter iteration is not certain (error {error})."
        less = duration(finding.gain_ns)
        return f" {given}, the iteration would be {less} shorter, less than the error ({error})."
    shorter = duration(finding.gain_ns)
    undisturbed = finding.undisturbed_gain_ns
    also = f"; {duration(undisturbed)} without the profiler" if (undisturbed or 0) > 0 else ""
    if also and finding.undisturbed_gain_error_ns:
        also += f", error {duration(finding.undisturbed_gain_error_ns)}"
    return f" {given}, the iteration would be {shorter} shorter (error {error}{also})."


def first_lines(analysis: Analysis) -> str:
    """What was analysed, and how much the profiler slowed it, in one paragraph."""
    return " ".join([head(analysis), *undisturbed(analysis)])


def undisturbed(analysis: Analysis) -> list[str]:
    """What the iteration takes without the profiler, where capture has told it."""
    told = [rank for rank in analysis.ranks if rank.undisturbed_iteration_ns is not None]
    known = [rank for rank in told if rank.recorded_iteration_ns is not None] or told
    if not known:
        return []
    lengths = [rank.recorded_iteration_ns for rank in known]
    said = slowdown_sentence(
        fmean(ns for ns in lengths if ns is not None) if None not in lengths else None,
        fmean(rank.undisturbed_iteration_ns or 0 for rank in known),
        [rank.undisturbed for rank in known],
    )
    speeds = []
    if analysis.mfu.tflops_per_gpu is not None:
        speeds.append(f"{number(analysis.mfu.tflops_per_gpu)} model TFLOP/s a GPU")
    if analysis.mfu.tokens_per_s is not None:
        speeds.append(f"{number(analysis.mfu.tokens_per_s)} tokens/s")
    return [f"{said}. Undisturbed: {', '.join(speeds)}." if speeds else f"{said}."]


def _is_of_undisturbed(analysis: Analysis) -> bool:
    return analysis.mfu.value is not None and analysis.mfu.of == UNDISTURBED


def _unmarked(analysis: Analysis) -> str:
    """Without steps: how long the window is, and for how much of it the GPU worked."""
    window, shares = analysis.summary.window_ns, analysis.summary.shares
    if analysis.is_of_the_cpu:
        return f"{duration(window)} from the first operator to the last"
    if shares is None:
        return f"a window of {duration(window)}"
    busy = duration((1 - shares.idle) * window)
    return f"{busy} of GPU work in {duration(window)}"


def answer(analysis: Analysis) -> list[str]:
    """Where the time went: communication, idle, compute; or why that is unknown."""
    if analysis.is_of_the_cpu:
        return _answer_of_the_cpu(analysis)
    shares, idle = analysis.summary.shares, analysis.summary.idle
    if shares is None or idle is None:
        reason = next((rank.unknown for rank in analysis.ranks if rank.unknown), "")
        return [f"Where the time went is unknown. {reason}".strip()]
    what = "iteration" if analysis.summary.steps else "window"
    silent = not analysis.summary.communication
    exposed = f"Exposed communication {percent(shares.exposed_communication)} of the {what}"
    of = [
        f"{_NAMES.get(name, name)} {percent(share)}"
        for name, share in analysis.summary.dimensions.items()
        if share >= _LEAST_SHARE
    ]
    exposed += f", of which {', '.join(of)}" if of else ""
    # Dimensions that communicate at the same time are exposed at the same time.
    twice = sum(analysis.summary.dimensions.values()) - shares.exposed_communication
    exposed += f", {percent(twice)} at the same time." if twice >= _LEAST_TWICE else "."
    causes = sorted(
        ((getattr(idle, words.cause), words.sentence) for words in IDLE_CAUSES),
        reverse=True,
    )
    because = [f"{percent(share)} {text}" for share, text in causes if share >= _LEAST_SHARE]
    waiting = f"Idle {percent(shares.idle)}" + (f" of the {what}" if silent else "")
    waiting += f": {', '.join(because)}." if because else "."
    waiting += _explained(analysis, what)
    parts = {
        "Compute": shares.compute,
        BREAKDOWN_NAMES["exposed_memory"]: shares.exposed_memory,
        "overlapped communication": shares.overlapped_communication,
    }
    computing = ", ".join(f"{part} {percent(share)}" for part, share in parts.items() if share)
    if silent:
        return [waiting, f"{computing or 'No compute'}; no communication."]
    return [exposed, waiting, f"{computing or 'No compute'}."]


def _explained(analysis: Analysis, what: str) -> str:
    """How much of the waiting for the CPU is the profiler's doing."""
    known = [rank for rank in analysis.ranks if rank.breakdown is not None and rank.window_ns]
    idle = [(UndisturbedIdle.of(rank), rank.window_ns) for rank in known]
    share = fmean((one.explained_cpu_ns + one.explained_gpu_ns) / ns for one, ns in idle)
    if share < _LEAST_SHARE:
        return ""
    return f" Of that, the profiler's slowdown explains {percent(share)} of the {what}."


def _answer_of_the_cpu(analysis: Analysis) -> list[str]:
    """What the CPU's time went into, and the operators with most time of their own."""
    what = "iteration" if analysis.summary.steps else "window"
    whole = means([rank.cpu.window for rank in analysis.ranks if rank.cpu])
    said = f"Operators {percent(whole.operators_ns / whole.length_ns)} of the {what}"
    if whole.data_ns:
        said += f", data loader {percent(whole.data_ns / whole.length_ns)}"
    said += f", other time {percent(whole.other_ns / whole.length_ns)} (Python, waiting)."
    first, *others = [
        (row.operator, percent(row.share))
        for row in mean_operators(analysis.ranks)[:_MOST_OPERATORS]
    ] or [("", "")]
    if not first[0]:
        return [said]
    rest = "".join(f", {name} {share}" for name, share in others)
    return [said, f"Operators by their own time: {first[0]} {first[1]}{rest}."]


def notes(analysis: Analysis) -> list[str]:
    """What is behind the MFU, what is missing, damaged, left out."""
    found = left_unknown_by_graphs(analysis)
    mfu, on_gpus = analysis.mfu, not analysis.is_of_the_cpu
    if on_gpus and mfu.reason:
        found.append(f"MFU unknown: {mfu.reason}")
    elif on_gpus and mfu.value is not None:
        of = f" {UNDISTURBED}" if mfu.of == UNDISTURBED else ""
        found.append(
            f"MFU: {number((mfu.model_flops or 0) / 1e12)} model TFLOP an iteration "
            f"({mfu.source}) / "
            f"({duration(mfu.iteration_ns)}{of} x {mfu.gpus} GPUs x {mfu.peak_tflops:g} dense "
            "TFLOP/s)."
        )
    if (
        analysis.summary.steps
        and not analysis.is_of_the_cpu
        and analysis.summary.undisturbed_iteration_ns is None
    ):
        found.append(_UNDISTURBED_UNKNOWN)
    if analysis.missing_ranks:
        word = "ranks" if len(analysis.missing_ranks) > 1 else "rank"
        found.append(f"No trace of {word} {ranks(analysis.missing_ranks)}.")
    of_ranks = []
    for rank in analysis.ranks:
        if not rank.is_rank_known:
            shown = f"; rank {rank.rank} here, only to tell the traces apart"
            of_ranks.append(
                f"Rank unknown: neither the trace nor its file name ({rank.file}) has the rank"
                f"{shown if len(analysis.ranks) > 1 else ''}."
            )
        whose = rank.name[0].upper() + rank.name[1:]
        if rank.damage:
            of_ranks.append(f"{whose}: damaged: {rank.damage}.")
        if rank.odd_times:
            of_ranks.append(f"{whose}: {rank.odd_times:,} events with impossible times.")
        again = again_sentence([step.step for step in rank.steps])
        of_ranks += [f"{whose}: {text[0].lower()}{text[1:]}" for text in again]
        if rank.duplicates:
            rows = counted(rank.duplicates, "GPU row is", "GPU rows are")
            of_ranks.append(f"{whose}: {rows} written again; each is counted once.")
        early = rank.launches.negative_delays
        if early:
            by = duration(-rank.launches.negative_delay_ns)
            of_ranks.append(
                f"{whose}: {counted(early, 'GPU row')} of the window begin before the "
                f"call that launched them, by up to {by}; launch delays are off by as much."
            )
        if rank.other_devices:
            of_ranks.append(
                f"{whose} used GPU {ranks(rank.other_devices)} too; only the one with the "
                "most work is analysed."
            )
    skipped = [f"Skipped {one.file}: {one.reason}" for one in analysis.skipped_files]
    return [*found, *_first(of_ranks, "of other ranks"), *_first(skipped, "of skipped files")]


def _first(notes: list[str], what: str) -> list[str]:
    """As many as can be read, and how many there are more."""
    more = len(notes) - _MOST_NOTES
    return (
        notes if more <= 0 else [*notes[:_MOST_NOTES], f"{more:,} such notes {what}: see --json."]
    )
