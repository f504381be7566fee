# SPDX-License-Identifier: Apache-2.0
"""The matrix holds a trace to each forward and backward exactly once."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from trace_builder import annotation, mark, text, write

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import megatron_trainings  # noqa: E402
from microbatch_spans import Expected, Passes, passes  # noqa: E402

F0, F1 = "forward micro-batch 0", "forward micro-batch 1"
B0, B1 = "backward micro-batch 0", "backward micro-batch 1"
ONCE = (F0, B0, F1, B1)
BOTH = {"forward": 2, "backward": 2}


def found(*names: str, expected: Expected = Expected()) -> Passes:  # noqa: B008 - a tuple
    document = text(*(annotation(name, 10 * at, 10 * at + 5) for at, name in enumerate(names)))
    return passes(json.loads(document)["traceEvents"], expected)


def test_each_micro_batch_once_is_whole_wherever_it_is_in_1f1b() -> None:
    assert found(*ONCE) == (BOTH, [])
    assert found(f"{F0} (warmup)", f"{F1} (steady)", f"{B0} (steady)", f"{B1} (cooldown)") == (
        BOTH,
        [],
    )


def test_micro_batches_of_a_model_with_a_name_are_passes_too() -> None:
    assert found(*(f"{name} of actor" for name in ONCE)) == (BOTH, [])
    assert found(*(f"{name} of actor (steady)" for name in (F0, F1, B0))) == (
        {"forward": 2, "backward": 1},
        [f"no {B1}"],
    )


def test_other_spans_and_the_gpus_copies_of_spans_are_no_passes() -> None:
    document = text(
        *(annotation(name, 10 * at, 10 * at + 5) for at, name in enumerate(ONCE)),
        mark(F0, 0, 5),
        annotation("optimizer", 50, 60),
        annotation("forward micro-batches", 50, 60),
    )
    assert passes(json.loads(document)["traceEvents"], Expected()) == (BOTH, [])


@pytest.mark.parametrize(
    ("names", "count", "faults"),
    [
        ((F0, B0, F1), {"forward": 2, "backward": 1}, [f"no {B1}"]),
        ((*ONCE, B1), BOTH, [f"{B1} 2 times"]),
        ((*ONCE, "forward micro-batch 2"), {"forward": 3, "backward": 2},
         ["unexpected forward micro-batch 2"]),
        ((F0, B0, F1, "backward micro-batch"), BOTH,
         [f"no {B1}", "unexpected backward micro-batch"]),
        ((F0, B0, F1, f"{B1}, part", f"{B1}, part"), BOTH, [f"{B1} in parts"]),
        ((), {"forward": 0, "backward": 0}, [f"no {one}" for one in (F0, F1, B0, B1)]),
    ],
)  # fmt: skip
def test_a_micro_batch_that_is_missing_or_there_too_often_is_a_fault(
    names: tuple[str, ...], count: dict[str, int], faults: list[str]
) -> None:
    assert found(*names) == (count, faults)


def test_every_chunk_has_each_micro_batch_once() -> None:
    two = Expected(chunks=2)
    names = [f"{name} chunk {chunk}" for chunk in (0, 1) for name in ONCE]
    assert found(*names, expected=two) == ({"forward": 4, "backward": 4}, [])
    assert found(*names[:-1], names[0], expected=two) == (
        {"forward": 4, "backward": 3},
        [f"no {B1} chunk 1", f"{F0} chunk 0 2 times"],
    )
    assert found(*ONCE, expected=two).faults[-1] == f"unexpected {F1}"


TURNS = Expected(microbatches=3, turns=True)
F2, B2 = "forward micro-batch 2", "backward micro-batch 2"


@pytest.mark.parametrize(
    ("more", "faults"),
    [
        ((F2, f"{B2}, part", f"{B2}, part"), []),
        ((*2 * [f"{F2}, part"], *2 * [f"{B2}, part"]), []),
        ((f"{F2}, part", *2 * [f"{B2}, part"]), [f"{F2} in 1 parts instead of 2"]),
        ((*2 * [f"{F2}, part"], *3 * [f"{B2}, part"]), [f"{B2} in 3 parts instead of 2"]),
        ((F2, B2, f"{B2}, part", f"{B2}, part"), [f"{B2} whole and in parts"]),
        ((*2 * [f"{F2}, part"],), [f"no {B2}"]),
    ],
)
def test_passes_that_take_turns_are_whole_or_in_as_many_parts_as_the_others(
    more: tuple[str, ...], faults: list[str]
) -> None:
    names = [f"{name}, part" for name in ONCE for _ in range(2)]
    assert found(*names, *more, expected=TURNS).faults == faults


def test_all_ranks_are_judged_and_some_faults_told(tmp_path: Path) -> None:
    layers = [annotation(f"decoder.layers.{one}: Layer", one, one + 1) for one in range(6)]

    def trained(*second: str) -> tuple[bool, str]:
        def train(folder: Path, ours: list[str]) -> tuple[int, str]:
            for rank, names in enumerate((ONCE, second)):
                spans = [annotation(name, 10 * at, 10 * at + 5) for at, name in enumerate(names)]
                name = f"rank-{rank}.pt.trace.json.gz"
                write(folder / name, text(*spans, *layers))
            return 0, "iteration 1/1 | loss: 1 | grad norm: 2"

        result = megatron_trainings.run(train, tmp_path)
        return result.works, result.found

    said = "same losses; 2 forward and 2 backward micro-batches of 2; 6 modules"
    assert trained(*ONCE) == (True, said)
    assert trained(F0, F1, B0) == (False, f"{said}; rank 1: no {B1}")
    three = f"rank 1: no {F0}; rank 1: no {F1}; rank 1: no {B0}"
    assert trained() == (False, f"{said}; {three}; and 1 more")


def test_a_rank_without_a_trace_is_told(tmp_path: Path) -> None:
    def train(folder: Path, ours: list[str]) -> tuple[int, str]:
        (folder / "rank-0.pt.trace.json.gz").write_bytes(gzip.compress(text()))
        return 0, "iteration 1/1 | loss: 1 | grad norm: 2"

    assert megatron_trainings.run(train, tmp_path).found == "1 traces instead of 2"
