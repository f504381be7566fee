# SPDX-License-Identifier: Apache-2.0
"""A thousand ranks: the same answer, in columns, and a report that can still be read."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from analyze_document import document

from megatron.torch_trace.analysis.communication.collectives import CollectiveKind
from megatron.torch_trace.analysis.communication.matching import MatchedCalls, match
from megatron.torch_trace.analysis.communication.rank_calls import RankCalls
from megatron.torch_trace.analysis.communication.stragglers import find_stragglers
from megatron.torch_trace.analysis.results.analysis import Analysis, Finding, SkippedFile
from megatron.torch_trace.analysis.results.summary import summarise
from megatron.torch_trace.analysis.run.analyse import analyze
from megatron.torch_trace.analysis.run.recorded import without_collecting
from megatron.torch_trace.report.json_document import TABLES, pieces
from megatron.torch_trace.report.text import render

RANKS = 600
MANY_ROWS = 200_000
"""Python looks for garbage among so many; in tests not among fewer than tests/conftest.py says."""


def calls_of(
    rank: int, groups: dict[str, int], rng: np.random.Generator, *, numbered: bool
) -> RankCalls:
    """Calls of one rank in several groups, in whichever order; group -> number of calls."""
    kinds = tuple(CollectiveKind(group[:2], group[:2], group, "allreduce", 8) for group in groups)
    kind = np.repeat(np.arange(len(groups)), list(groups.values()))
    seq = np.concatenate([np.arange(count) for count in groups.values()])
    # Some sequence numbers come twice, as those of coalesced calls do.
    seq = seq // (1 + seq % 2)
    at = 1_000_000 * np.arange(len(kind)) + 7 * rank
    return RankCalls(
        start=at - rng.integers(0, 50_000, len(kind)),
        end=at + 10_000,
        kind=kind,
        kinds=kinds,
        step=np.zeros_like(kind),
        bytes=np.full_like(kind, 8),
        elements=rng.integers(1, 3, len(kind)) if not numbered else np.ones_like(kind),
        seq=seq if numbered else np.full_like(kind, -1),
    )


def by_hand(ranks: dict[int, RankCalls]) -> set[frozenset[tuple[int, int]]]:
    """For each call that several ranks have, their rows: one dictionary, call by call."""
    found = defaultdict(set)
    for position, rank in enumerate(sorted(ranks)):
        calls, times = ranks[rank], defaultdict(int)
        for row, (kind, seq) in enumerate(zip(calls.kind, calls.seq, strict=True)):
            key = (calls.kinds[kind].key, int(seq))
            found[key, times[key]].add((position, row))
            times[key] += 1
    return {frozenset(rows) for rows in found.values() if len(rows) > 1}


def rows_by_call(matched: MatchedCalls) -> set[frozenset[tuple[int, int]]]:
    found = defaultdict(set)
    for call, rank, row in zip(matched.call, matched.rank, matched.row, strict=True):
        found[int(call)].add((int(rank), int(row)))
    return {frozenset(rows) for rows in found.values()}


def test_columns_match_the_calls_that_a_dictionary_matches() -> None:
    rng = np.random.default_rng(5)
    ranks = {
        rank: calls_of(
            rank,
            {f"tp {rank // 4}": 30, f"dp {rank % 4}": int(rng.integers(1, 9)), "default": 5},
            rng,
            numbered=True,
        )
        for rank in range(48)
        if rank % 7  # some are missing
    }
    matched = match(ranks)
    assert rows_by_call(matched) == by_hand(ranks)
    for position in range(len(ranks)):
        assert (matched.rank[matched.rows_of[position]] == position).all()
    assert sum(map(len, matched.rows_of)) == len(matched)


def test_ranks_that_share_their_columns_match_as_those_with_columns_of_their_own() -> None:
    rng = np.random.default_rng(5)
    model = calls_of(0, {"tp 0": 12, "dp 0": 4}, rng, numbered=True)
    shared = {
        rank: replace(model, start=model.start + rank, end=model.end + rank) for rank in (0, 1, 3)
    }
    own = {
        rank: replace(one, kind=one.kind.copy(), seq=one.seq.copy()) for rank, one in shared.items()
    }
    assert rows_by_call(match(shared)) == rows_by_call(match(own)) == by_hand(shared)
    # A rank more that calls otherwise has columns of its own.
    other = {**shared, 4: calls_of(4, {"dp 0": 3, "tp 0": 13}, rng, numbered=True)}
    assert rows_by_call(match(other)) == by_hand(other)


def test_narrow_columns_match_as_wide_ones_do() -> None:
    rng = np.random.default_rng(5)
    wide = {rank: calls_of(rank, {"tp 0": 40, "dp 0": 9}, rng, numbered=False) for rank in (0, 1)}
    narrow = {
        rank: replace(
            one,
            kind=one.kind.astype(np.int8),
            seq=one.seq.astype(np.int8),
            elements=one.elements.astype(np.int8),
        )
        for rank, one in wide.items()
    }
    assert rows_by_call(match(narrow)) == rows_by_call(match(wide))  # type: ignore[arg-type]


def test_many_sets_of_ranks_that_share_too_few_calls_have_clocks_of_their_own() -> None:
    rng = np.random.default_rng(5)
    ranks = {
        rank: calls_of(rank, {f"tp {rank // 2}": 4, "default": 2}, rng, numbered=True)
        for rank in range(RANKS)
    }
    clocks = find_stragglers(match(ranks)).clocks
    assert [clock.reference for clock in clocks] == [rank - rank % 2 for rank in range(RANKS)]
    assert [clock.offset_ns for clock in clocks] == [-7 * (rank % 2) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def large() -> Analysis:
    """Hundreds of ranks, each the copy of one of two recorded ones."""
    samples = Path(__file__).parents[2] / "data" / "tp2pp2"
    recorded = analyze(samples, ranks=[0, 3], use_partials=False, jobs=1)
    ranks = tuple(
        replace(
            recorded.ranks[rank * 2 // RANKS],
            rank=rank,
            damage="cut off",
            coordinates={"tp": rank % 8, "dp": rank // 8 % 25, "pp": rank // 200},
            pipeline=tuple(
                replace(one, rank=rank, stage=rank // 200, stages=3)
                for one in recorded.ranks[rank * 2 // RANKS].pipeline
            ),
        )
        for rank in range(RANKS)
    )
    late = tuple(
        Finding("straggler", "high", f"Rank {rank} is late.", {"rank": rank}, "Look there.", 0.2)
        for rank in range(50)
    )
    skipped = tuple(SkippedFile(f"{n}.json", "empty") for n in range(40))
    return replace(
        recorded,
        ranks=ranks,
        summary=summarise(ranks),
        missing_ranks=(),
        findings=late,
        skipped_files=skipped,
        clocks=tuple(
            replace(recorded.clocks[0], rank=rank, offset_ns=None, error_ns=None, reference=rank)
            for rank in range(RANKS)
        ),
    )


def test_the_report_of_many_ranks_is_not_longer_than_a_few_screens(large: Analysis) -> None:
    text = render(large)
    assert len(text.splitlines()) < 260
    assert max(map(len, text.splitlines())) <= 100


def test_of_many_ranks_the_pipeline_has_a_line_for_each_stage_and_step(large: Analysis) -> None:
    text = render(large)
    table = text[text.index("\nPIPELINE") :].split("\n\n")[0].splitlines()[3:]
    assert [line.split()[:4] for line in table] == [
        ["0", "of", "3", "0-199"],
        ["1", "of", "3", "200-399"],
        ["2", "of", "3", "400-599"],
    ]


def test_what_is_said_of_every_rank_or_file_is_cut_and_counted(large: Analysis) -> None:
    text = render(large)
    assert "... and 46 more findings `straggler`: --json." in text
    assert text.count("damaged: cut off") == 8
    assert "592 such notes of other ranks: see --json." in text
    assert "32 such notes of skipped files: see --json." in text


def test_the_document_has_a_piece_for_every_rank_and_is_one(large: Analysis) -> None:
    few = replace(large, ranks=large.ranks[:3])
    first, *ranks, last = pieces(few)
    assert len(ranks) == 3
    assert [rank["rank"] for rank in json.loads("".join((first, *ranks, last)))["ranks"]] == [
        one.rank for one in few.ranks
    ]


def test_a_document_without_tables_has_all_else(large: Analysis) -> None:
    few = replace(large, ranks=large.ranks[:3])
    expected = document(few)
    for rank in expected["ranks"]:
        assert rank["host"].pop("loop_paths")
        tables = [rank.pop(name) for name in TABLES]
        assert any(tables)
    peers = [straggler.pop("peers") for straggler in expected["stragglers"]]
    assert any(peers)
    assert document(few, tables=False) == expected


def test_rows_that_were_made_without_collecting_are_not_looked_at_afterwards() -> None:
    gc.unfreeze()
    try:
        with without_collecting():
            assert not gc.isenabled()
            rows = [[number] for number in range(MANY_ROWS)]
        assert gc.isenabled()
        assert gc.get_freeze_count() == 0
        assert any(one is rows[-1] for one in gc.get_objects(generation=2))
    finally:
        # As tests/conftest.py left it.
        gc.freeze()


def test_what_python_has_frozen_itself_is_no_reason_to_look_at_rows() -> None:
    code = (
        "import gc\n"
        "from megatron.torch_trace.analysis.run.recorded import without_collecting\n"
        "with without_collecting():\n"
        f"    rows = [[number] for number in range({MANY_ROWS})]\n"
        "assert any(one is rows[-1] for one in gc.get_objects(generation=2))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_what_a_program_has_frozen_stays_frozen() -> None:
    frozen_rows = [[number] for number in range(2000)]
    gc.freeze()
    assert frozen_rows
    frozen = gc.get_freeze_count()
    with without_collecting():
        rows = [[number] for number in range(MANY_ROWS)]
    assert rows
    assert gc.get_freeze_count() == frozen > 0
