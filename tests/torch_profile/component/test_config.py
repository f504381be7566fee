# SPDX-License-Identifier: Apache-2.0
"""What a user asks for is checked before anything is built, and each mistake is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron.torch_profile.component.config import Compile, read
from megatron.torch_profile.component.variants import baseline_of, cases
from megatron.torch_trace.errors import UsageError


def written(folder: Path, text: str, name: str = "norm.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_target_alone_is_a_config_with_defaults() -> None:
    config = read("rms_norm", ("measure=50", "sizes.hidden=64", "flush_l2=false"))
    assert (config.target, config.measure, config.sizes) == ("rms_norm", 50, {"hidden": 64})
    assert (config.warmup, config.flush_l2, config.ranks) == (3, False, [0])


def test_a_json_file_says_the_same_as_a_yaml_file(tmp_path: Path) -> None:
    yaml = written(tmp_path, "target: rms_norm\nsizes: {hidden: 64}\n")
    json = written(tmp_path, '{"target": "rms_norm", "sizes": {"hidden": 64}}', "norm.json")
    assert read(yaml) == read(json)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("target: x\nwarmupp: 3\n", "there is no key `warmupp`; did you mean `warmup`?"),
        ("warmup: 3\n", "the key `target` is missing."),
        ("target: x\nmeasure: 1\n", "measure: 1; must be 2 or more."),
        ("target: x\nmeasure: many\n", "measure: expected `int`, got `str`."),
        ("target: x\ninputs: 3\n", "inputs: expected a list, got `int`."),
        ("target: x\nsizes: {hidden: 0}\n", "sizes.hidden: 0; must be 1 or more."),
        (
            "target: x\nvariants: {fast: {compiled: true}}\n",
            "variants (one of them): there is no key `compiled`; did you mean `compile`?",
        ),
        (
            "target: x\nvariants: {fast: {cast: bf16}}\n",
            "variants.fast.cast: 'bf16'; did you mean `bfloat16`?",
        ),
        ("target: x\ngrid: {compile: []}\n", "grid.compile: is empty; give the values to compare."),
        ("- 1\n", "holds no keys; it needs at least `target: NAME`."),
    ],
)
def test_a_mistake_in_a_config_is_one_sentence_with_the_key(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value) == f"{path}: {sentence}"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "measure",
            "--override measure: write key=value, like measure=50 or sizes.sequence=4096.",
        ),
        ("target.x=1", "--override target.x=1: `target` is 'rms_norm' and has no keys."),
        ("messure=3", "rms_norm: there is no key `messure`; did you mean `measure`?"),
    ],
)
def test_a_mistake_in_an_override_is_one_sentence(change: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read("rms_norm", (change,))
    assert str(caught.value) == sentence


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: no such file; give a config, or a target\."):
        read(str(tmp_path / "none.yaml"))


def test_each_variant_is_measured_at_each_point_of_the_grid(tmp_path: Path) -> None:
    config = read(
        written(
            tmp_path,
            "target: rms_norm\nsizes: {hidden: 64}\n"
            "variants: {eager: {}, compiled: {compile: max-autotune}}\n"
            "grid: {sizes.sequence: [128, 256]}\n",
        )
    )
    found = cases(config)
    assert [one.name for one in found] == [
        "eager, sequence 128",
        "compiled, sequence 128",
        "eager, sequence 256",
        "compiled, sequence 256",
    ]
    assert found[3].sizes == {"hidden": 64, "sequence": 256}
    assert found[3].compile == Compile(mode="max-autotune")
    assert [baseline_of(one, found).name for one in found] == [
        "eager, sequence 128",
        "eager, sequence 128",
        "eager, sequence 256",
        "eager, sequence 256",
    ]


def test_a_grid_alone_has_its_first_point_as_baseline() -> None:
    found = cases(read("rms_norm", ("grid.compile=[false, true]",)))
    assert [(one.name, one.compile) for one in found] == [
        ("compile off", None),
        ("compile on", Compile()),
    ]
    assert {baseline_of(one, found).name for one in found} == {"compile off"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "grid.compille=[true]",
            "grid.compille: nothing to vary by this name; did you mean `compile`?",
        ),
        (
            "grid.cast=[half]",
            "grid (cast: 'half'): cast: 'half'; there are float32, float16, bfloat16, float64.",
        ),
    ],
)
def test_a_mistake_in_a_grid_is_one_sentence(change: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        cases(read("rms_norm", (change,)))
    assert str(caught.value) == sentence
