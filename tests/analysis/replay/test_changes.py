# SPDX-License-Identifier: Apache-2.0
"""Changes as a user writes them, right and wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron.torch_trace.analysis.replay.change import (
    Change,
    CollectionsScaled,
    CommunicationScaled,
    CopiesScaled,
    CudaGraphs,
    DataLoaderScaled,
    GpuAsMedian,
    KernelsScaled,
    LaunchScaled,
    LayersMoved,
    MicroBatches,
    ModuleScaled,
    OperatorsScaled,
    Overlapped,
    RankAsMedian,
    StagesBalanced,
    TinyKernelsScaled,
    VirtualStages,
    WithoutBarriers,
    WithoutSynchronisation,
)
from megatron.torch_trace.analysis.replay.change_parser import FORMS, read, read_text
from megatron.torch_trace.commands.whatif import command
from megatron.torch_trace.errors import UsageError

RIGHT = [
    ("--rank 2=median", RankAsMedian(2)),
    ("--gpu 2=median", GpuAsMedian(2)),
    ("--comm tp*0.5", CommunicationScaled("tp", 0.5)),
    ("--comm tp-cp*0", CommunicationScaled("tp-cp", 0.0)),
    ("--comm all*2", CommunicationScaled("all", 2.0)),
    ("--overlap dp", Overlapped("dp")),
    ("--launch 0", LaunchScaled(0.0)),
    ("--launch 1e-05", LaunchScaled(0.00001)),
    ("--comm dp*1e+06", CommunicationScaled("dp", 1_000_000.0)),
    ("--cuda-graphs layers", CudaGraphs("layers")),
    ("--cuda-graphs self_attention", CudaGraphs("self_attention")),
    ("--cpu-operators *0.7", OperatorsScaled(0.7)),
    ("--kernel a.*b*0.8", KernelsScaled("a.*b", 0.8)),
    ("--module mlp*0.9", ModuleScaled("mlp", 0.9)),
    ("--copies pageable=0", CopiesScaled("pageable", 0.0)),
    ("--sync none", WithoutSynchronisation()),
    ("--data-loader 0", DataLoaderScaled(0.0)),
    ("--garbage-collection 0", CollectionsScaled(0.0)),
    ("--tiny-kernels 0.5", TinyKernelsScaled(0.5)),
    ("--barriers none", WithoutBarriers()),
    ("--micro-batches 16", MicroBatches(16)),
    ("--virtual-stages 2", VirtualStages(2)),
    ("--move-layers 3>2", LayersMoved(3, 2)),
    ("--move-layers 3>0*2", LayersMoved(3, 0, 2)),
    ("--stages balanced", StagesBalanced()),
]


@pytest.mark.parametrize(("text", "change"), RIGHT)
def test_a_change_is_read_and_written_the_same(text: str, change: Change) -> None:
    assert read_text(text) == change
    assert change.text == text


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("--cpu-operators 0.7", OperatorsScaled(0.7)),
        ("--cpu-operators*0.7", OperatorsScaled(0.7)),
        ("--launch *.5", LaunchScaled(0.5)),
        ("--launch*0.5", LaunchScaled(0.5)),
        ("--copies pageable*0.5", CopiesScaled("pageable", 0.5)),
        ("--comm TP * 0.5", CommunicationScaled("tp", 0.5)),
        ("--rank=2=median", RankAsMedian(2)),
        ("--move-layers 3:2", LayersMoved(3, 2)),
    ],
)
def test_other_spellings_mean_the_same(text: str, change: Change) -> None:
    assert read_text(text) == change


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("--rank 2=mean", "--rank 2=median?"),
        ("--rank 2", "--rank 2=median?"),
        ("--gpu 2", "--gpu 2=median?"),
        ("--comm dp*50%", "--comm 'dp*0.5'?"),
        ("--comm dp*0,5", "--comm 'dp*0.5'?"),
        ("--comm dp", "--comm 'dp*0.5'?"),
        ("--comm tp*-1", "--comm 'tp*0'?"),
        ("--overlap 3", "--overlap dp?"),
        ("--launch none", "--launch 0?"),
        ("--launch 0.00001x", "--launch 1e-05?"),
        ("--launch 1e999", "--launch 1e+06?"),
        ("--launch 1000001", "--launch 1e+06?"),
        ("--launch -30%", "--launch 0.7?"),
        ("--data-loader -1", "--data-loader 0?"),
        ("--tiny-kernels -5", "--tiny-kernels 0?"),
        ("--cuda-graphs 2", "--cuda-graphs layers?"),
        ("--cuda-graphs mlp*0.5", "--cuda-graphs mlp?"),
        ("--cpu-operators half", "--cpu-operators 0.5?"),
        ("--kernel (*0.8", "--kernel '\\(*0.8'?"),
        ("--kernel gemm", "--kernel 'gemm*0.5'?"),
        ("--module mlp=0.9", "--module 'mlp*0.9'?"),
        ("--copies pagable=0", "--copies pageable=0?"),
        ("--sync 0", "--sync none?"),
        ("--micro-batches 0", "--micro-batches 16?"),
        ("--micro-batches *2", "--micro-batches 2?"),
        ("--micro-batches -4", "--micro-batches 4?"),
        ("--virtual-stages two", "--virtual-stages 2?"),
        ("--move-layers 3", "--move-layers '3>2'?"),
        ("--move-layers 2>2", "--move-layers '2>1'?"),
        ("--stages equal", "--stages balanced?"),
    ],
)
def test_a_wrong_value_is_answered_with_the_nearest_right_one(text: str, nearest: str) -> None:
    with pytest.raises(UsageError) as wrong:
        read_text(text)
    assert str(wrong.value).endswith(f"; did you mean {nearest}")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (
            "--data-loader -1",
            "a factor (0: no time; 0.5: half of it; at most 1,000,000); "
            "did you mean --data-loader 0?",
        ),
        (
            "--comm dp",
            "DIM*FACTOR (0: no time; 0.5: half of it; at most 1,000,000); "
            "did you mean --comm 'dp*0.5'?",
        ),
        (
            "--micro-batches -4",
            "a whole number from 1 to 1,048,575; did you mean --micro-batches 4?",
        ),
        ("--stages equal", "balanced; did you mean --stages balanced?"),
    ],
)
def test_a_wrong_value_is_told_what_a_right_one_is(text: str, right: str) -> None:
    with pytest.raises(UsageError) as wrong:
        read_text(text)
    assert str(wrong.value) == f"{text}: must be {right}"


def test_a_wrong_flag_is_answered_with_the_nearest_right_one() -> None:
    with pytest.raises(UsageError, match=r"^--ranks: no such change; did you mean --rank\?$"):
        read("--ranks", "2=median")
    with pytest.raises(
        UsageError, match=r"^--zzz: no such change; there are --rank, --gpu, --comm"
    ):
        read_text("--zzz 3")
    with pytest.raises(UsageError, match=r"^--rank: needs a value, such as --rank R=median.$"):
        read_text("--rank")
    with pytest.raises(UsageError, match=r"^an empty change: no such change"):
        read_text("")


def test_the_command_has_an_option_for_every_change_with_its_form() -> None:
    options = {one.opts[0]: one for one in command.params if one.opts[0] in FORMS}
    assert list(options) == list(FORMS)
    assert {flag: one.metavar for flag, one in options.items()} == {
        flag: form.metavar for flag, form in FORMS.items()
    }


@given(st.sampled_from(sorted(FORMS)), st.text(max_size=12))
def test_any_value_is_read_or_refused_in_a_sentence_whose_suggestion_is_right(
    flag: str, value: str
) -> None:
    import shlex

    try:
        change = read(flag, value)
    except UsageError as wrong:
        suggested = shlex.split(str(wrong).rpartition(" did you mean ")[2].removesuffix("?"))
        assert read(*suggested).flag == flag
    else:
        assert read_text(change.text).text == change.text
