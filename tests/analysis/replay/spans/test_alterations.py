# SPDX-License-Identifier: Apache-2.0
"""Other micro-batches, virtual stages and layers, on pipelines built by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pipeline_builder import pipeline

from megatron.torch_trace.analysis.replay.change import StagesBalanced, VirtualStages
from megatron.torch_trace.analysis.replay.change_parser import read_text
from megatron.torch_trace.analysis.replay.gain_error import GainError
from megatron.torch_trace.analysis.replay.spans.alterations import altered
from megatron.torch_trace.analysis.replay.spans.orders import Shape
from megatron.torch_trace.analysis.replay.spans.passes import Passes
from megatron.torch_trace.analysis.replay.spans.simulation import simulate
from megatron.torch_trace.analysis.replay.spans.span_replay import SpanReplay
from megatron.torch_trace.errors import UsageError


def after(passes: Passes, *texts: str) -> int:
    return simulate(altered(passes, [read_text(text) for text in texts])).iteration_ns


def four_stages() -> Passes:
    return pipeline(Shape(4, 1, 8), forward=4_000, backward=8_000, layers=(4, 4, 4, 4))


def test_twice_the_micro_batches_have_half_the_bubble() -> None:
    assert after(four_stages()) == 8 * 12_000 + 3 * 12_000
    assert after(four_stages(), "--micro-batches 16") == 16 * 12_000 + 3 * 12_000
    assert after(four_stages(), "--micro-batches 4") == 4 * 12_000 + 3 * 12_000


def test_more_micro_batches_do_not_repeat_the_first_which_is_longer() -> None:
    passes = pipeline(Shape(1, 1, 3), forward=1_000, backward=2_000)
    passes.cpu[..., 0] += 500
    assert after(passes, "--micro-batches 9") == 9 * 3_000 + 2 * 500


def test_one_recorded_micro_batch_is_like_all_others() -> None:
    passes = pipeline(Shape(1, 1, 1), forward=1_000, backward=2_000)
    assert after(passes, "--micro-batches 3") == 9_000


def test_without_virtual_stages_any_number_of_micro_batches_will_do() -> None:
    assert after(four_stages(), "--micro-batches 6") == 6 * 12_000 + 3 * 12_000
    found = altered(four_stages(), [read_text("--micro-batches 262144")])
    assert found.shape.microbatches == 262_144


def test_as_many_virtual_stages_as_recorded_change_nothing() -> None:
    passes = replace(four_stages(), is_blocking=False)
    assert altered(passes, [read_text("--virtual-stages 1")]) is passes


def test_virtual_stages_divide_the_bubble_and_one_is_none() -> None:
    gpu_bound = replace(four_stages(), gpu=four_stages().cpu)
    assert after(gpu_bound, "--virtual-stages 2") == 8 * 12_000 + 3 * 12_000 // 2
    assert after(gpu_bound, "--virtual-stages 4") == 8 * 12_000 + 3 * 12_000 // 4
    interleaved = altered(gpu_bound, [read_text("--virtual-stages 4")])
    assert after(interleaved, "--virtual-stages 1") == after(gpu_bound)


def test_every_virtual_stage_sends_and_receives_as_long_as_a_whole_one() -> None:
    passes = replace(four_stages(), sending=400.0)
    found = altered(passes, [read_text("--virtual-stages 4")])
    assert found.cpu[0, 1, :, :, 0].tolist() == [[3_600 / 4 + 400] * 4, [7_600 / 4 + 400] * 4]
    whole = altered(found, [read_text("--virtual-stages 1")])
    assert whole.cpu.tolist() == passes.cpu.tolist()


def test_the_loss_stays_on_the_last_virtual_stage() -> None:
    passes = four_stages()
    passes.cpu[:, 3] += 1_000
    found = altered(passes, [read_text("--virtual-stages 2")])
    assert found.cpu[0, :, 0, :, 0].tolist() == [
        [2_000, 2_000], [2_000, 2_000], [2_000, 2_000], [2_000, 3_000],
    ]  # fmt: skip


def test_the_embedding_stays_on_the_first_virtual_stage() -> None:
    passes = four_stages()
    passes.cpu[:, 0] += 1_000
    found = altered(passes, [read_text("--virtual-stages 2")])
    assert found.cpu[0, :, 0, :, 0].tolist() == [
        [3_000, 2_000], [2_000, 2_000], [2_000, 2_000], [2_000, 2_000],
    ]  # fmt: skip


def test_beyond_its_layers_is_what_a_stage_takes_longer_than_the_mean_of_those_in_the_middle() -> (
    None
):
    passes = four_stages()
    for stage, more in enumerate((-1_000, 0, 2_000, 2_000)):
        passes.cpu[:, stage, 0] += more
    found = altered(passes, [read_text("--virtual-stages 2")])
    # 5 us for four layers: the last stage takes 1 us more, and the first one no less than nothing.
    assert found.cpu[0, :, 0, :, 0].tolist() == [
        [1_500, 1_500], [2_000, 2_000], [3_000, 3_000], [2_500, 3_500],
    ]  # fmt: skip


def test_sends_take_no_more_than_the_passes_that_they_are_in() -> None:
    passes = replace(four_stages(), sending=6_000.0)
    found = altered(passes, [read_text("--virtual-stages 2")])
    assert found.cpu[0, 1, :, :, 0].tolist() == [[4_000] * 2, [(8_000 - 6_000) / 2 + 6_000] * 2]


def test_two_layers_take_twice_as_long_as_one() -> None:
    found = altered(four_stages(), [read_text("--move-layers 3>0*2")])
    assert found.layers == (6, 4, 4, 2)
    assert found.cpu[0, :, 0, 0, 0].tolist() == [6_000, 4_000, 4_000, 2_000]


def test_of_virtual_stages_a_layer_goes_from_the_longest_to_the_shortest() -> None:
    passes = pipeline(Shape(4, 2, 8), forward=4_000, backward=8_000, layers=(4, 4, 4, 4))
    passes.cpu[:, 1:3, :, 1] += 500
    found = altered(passes, [read_text("--move-layers 1>2")])
    layer = (2_000 + 2_500) / 4
    assert found.cpu[0, :, 0, :, 0].tolist() == [
        [2_000, 2_000], [2_000, 2_500 - layer], [2_000 + layer, 2_500], [2_000, 2_000],
    ]  # fmt: skip


def test_balanced_virtual_stages_are_alike_too() -> None:
    passes = pipeline(Shape(2, 2, 2), forward=4_000, backward=8_000)
    passes.cpu[:, 1, 0, 1] += 400
    passes.cpu[..., 1] += 30
    found = altered(passes, [read_text("--stages balanced")])
    assert found.cpu[0, :, 0].tolist() == [[[2_100, 2_130]] * 2] * 2


def test_a_moved_layer_takes_what_layers_take_where_it_comes_from() -> None:
    passes = four_stages()
    passes.cpu[:, 3] += 1_000
    found = altered(passes, [read_text("--move-layers 3>2")])
    assert found.layers == (4, 4, 5, 3)
    assert found.cpu[0, :, :, 0, 0].tolist() == [
        [4_000, 8_000], [4_000, 8_000], [5_000, 10_000], [4_000, 7_000],
    ]  # fmt: skip
    back = altered(found, [read_text("--move-layers 2>3")])
    assert back.cpu.tolist() == passes.cpu.tolist()


def test_balanced_stages_all_take_their_mean() -> None:
    passes = four_stages()
    passes.cpu[:, 3] += 2_000
    assert after(passes, "--stages balanced") == 8 * 13_000 + 3 * 13_000


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (
            ["--virtual-stages 2", "--micro-batches 6"],
            "--virtual-stages 2 --micro-batches 6: with virtual stages Megatron takes "
            "micro-batches in multiples of the 4 pipeline stages, not 6; 8 would do.",
        ),
        (
            ["--virtual-stages 2", "--micro-batches 1"],
            "--virtual-stages 2 --micro-batches 1: with virtual stages Megatron takes "
            "micro-batches in multiples of the 4 pipeline stages, not 1; 4 would do.",
        ),
        (
            ["--virtual-stages 2", "--move-layers 3>2"],
            "--virtual-stages 2: 3 to 5 layers cannot be divided into 2 equal parts.",
        ),
        (
            ["--virtual-stages 3"],
            "--virtual-stages 3: 4 layers cannot be divided into 3 equal parts.",
        ),
        (
            ["--move-layers 3>9"],
            "--move-layers 3>9: there is no stage 9; the pipeline has 0 to 3.",
        ),
        (
            ["--move-layers 3>2*4"],
            "--move-layers 3>2*4: stage 3 would have no layer left; it has 4 layers.",
        ),
        (
            ["--micro-batches 1000000"],
            "--micro-batches 1000000: is more than can be simulated; at most 262,144 can.",
        ),
    ],
)
def test_what_cannot_be_known_is_refused_in_one_sentence(texts: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as wrong:
        after(four_stages(), *texts)
    assert str(wrong.value) == sentence


def test_without_a_pipeline_there_are_no_stages_to_change() -> None:
    passes = pipeline(Shape(1, 1, 4), forward=1, backward=2)
    with pytest.raises(UsageError, match="no pipeline, so no stages to change"):
        after(passes, "--stages balanced")
    unknown = replace(four_stages(), layers=None)
    with pytest.raises(UsageError, match="how many layers a stage has is unknown"):
        after(unknown, "--move-layers 3>2")


def test_the_error_of_a_change_has_the_spread_of_the_passes() -> None:
    passes = replace(four_stages(), recorded=four_stages().recorded * 132_000)
    steady = SpanReplay(passes).simulate([read_text("--micro-batches 16")])
    assert (steady.iteration_ns, steady.error_ns) == (228_000, 0)
    passes.cpu[..., ::2] += 100
    assert SpanReplay(passes).simulate([]).error_ns == SpanReplay(passes).error_ns
    spread = SpanReplay(passes).simulate([read_text("--micro-batches 16")]).error_ns
    assert spread > SpanReplay(passes).error_ns


def two_steps() -> Passes:
    """Two recorded steps of one stage: 2 and 3 us a micro-batch, missed by 100 and 300 ns."""
    passes = pipeline(Shape(1, 1, 4), forward=1_000, backward=1_000, copies=2, tail=500)
    passes.cpu[1] *= 1.5
    return replace(
        passes,
        tail=np.array([500.0, 500.0]),
        step_of=np.array([0, 1]),
        recorded=np.array([8_400.0, 12_800.0]),
    )


def test_the_error_of_a_change_grows_with_the_iteration_and_with_what_steps_differ_by() -> None:
    replay = SpanReplay(two_steps())
    assert (replay.simulated_ns, replay.error_ns) == (10_500, 300)
    longer = replay.simulate([read_text("--micro-batches 8")])
    # 16.5 and 24.5 us: beside twice the recorded iterations that is twice the same 500 ns less.
    assert longer.iteration_ns == 20_500
    assert longer.error == GainError(300 * 20_500 / 10_500, steps=0.0, passes=0.0)
    shorter = replay.simulate([read_text("--micro-batches 2")])
    assert shorter.error == GainError(300.0, steps=0.0, passes=0.0)


@pytest.mark.parametrize(
    ("shape", "layers", "stages"),
    [
        (Shape(4, 1, 8), (4, 4, 4, 4), 2),
        (Shape(4, 2, 8), (4, 4, 4, 4), 4),
        (Shape(4, 2, 8), (6, 6, 6, 6), None),
        (Shape(4, 1, 6), (4, 4, 4, 4), None),
        (Shape(4, 1, 8), None, None),
    ],
)
def test_twice_the_virtual_stages_are_worth_trying_where_layers_and_micro_batches_allow_them(
    shape: Shape, layers: tuple[int, ...] | None, stages: int | None
) -> None:
    passes = pipeline(shape, forward=1, backward=2, layers=layers)
    schedule = [] if stages is None else [VirtualStages(stages)]
    assert SpanReplay(passes).candidates() == [StagesBalanced(), *schedule]


def test_a_graph_of_a_thousand_ranks_is_small() -> None:
    passes = pipeline(Shape(8, 2, 32), forward=4_000, backward=8_000, copies=16)
    assert passes.nodes == 32_768
    assert simulate(passes).iteration_ns == 32 * 12_000 + 7 * 12_000 // 2
