# SPDX-License-Identifier: Apache-2.0
"""`python -m megatron.torch_profile.component`, on the CPU: what it measures, prints and writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from megatron.torch_profile.component.__main__ import command, main
from megatron.torch_profile.component.measure.ceilings import Ceilings
from megatron.torch_profile.component.measure.clocks import HostClock
from megatron.torch_trace.errors import TorchTraceError, UsageError

COMPONENTS = Path(__file__).parent / "doubling.py"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "megatron.torch_profile.component.measure.ceilings.measured",
        lambda device, dtype: Ceilings("a device", dtype, 1e10, 1e11, "2026-11-28T12:00+00:00"),
    )


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run the command with --json and read what it prints."""

    def run(*words: str) -> Any:
        command.main([*words, "--json"], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    return run


def overrides(**values: Any) -> list[str]:
    return [word for k, v in values.items() for word in ("--override", f"{k}={json.dumps(v)}")]


@pytest.fixture
def sleepers_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the component `sleep` moves."""
    clock = HostClock(lambda: sys.modules["doubling"].elapsed)
    monkeypatch.setattr(
        "megatron.torch_profile.component.run.clock_of", lambda device, flush: clock
    )


@pytest.mark.usefixtures("sleepers_clock")
def test_a_sleep_of_four_times_the_length_takes_four_times_as_long(
    answer: Callable[..., Any],
) -> None:
    variants = {
        name: {"arguments": {"milliseconds": n}} for name, n in (("short", 5), ("long", 20))
    }
    found = answer(f"{COMPONENTS}:sleep", *overrides(variants=variants, measure=10, record=0))
    short, long = found["variants"]
    assert (short["median_us"], short["p90_us"], long["median_us"]) == (5000, 5000, 20000)
    assert (short["ratio"], long["baseline"]) == (None, "short")
    assert (long["ratio"]["value"], long["sure"], found["again"]["value"]) == (4, True, 1)


def test_twice_the_products_are_twice_the_flops_and_the_same_bytes(
    answer: Callable[..., Any],
) -> None:
    variants = {f"times {n}": {"arguments": {"times": n}} for n in (1, 2)}
    found = answer(
        f"{COMPONENTS}:products",
        *overrides(variants=variants, inputs=[{"shape": ["n", "n"]}], record=0),
        *overrides(**{"sizes.n": 64, "measure": 4}),
    )
    once, twice = found["variants"]
    assert (once["flops"], twice["flops"]) == (2 * 64**3, 4 * 64**3)
    assert once["bytes"] == twice["bytes"] == 2 * 64 * 64 * 4
    assert once["bound_by"] == "compute"


def test_a_backward_pass_of_a_product_has_twice_the_flops_of_its_forward_pass(
    answer: Callable[..., Any],
) -> None:
    found = answer(
        "torch:matmul",
        *overrides(inputs=[{"shape": [8, 16]}, {"shape": [16, 4]}], record=0, measure=2),
        *overrides(direction="forward-backward"),
    )
    assert found["variants"][0]["flops"] == 3 * 2 * 8 * 16 * 4


def test_a_run_folder_holds_traces_summaries_and_the_config(answer: Callable[..., Any]) -> None:
    found = answer(
        "rms_norm",
        *overrides(variants={"one": {}, "two": {}}, warmup=1, measure=3, record=2),
        *overrides(sizes={"sequence": 4, "hidden": 8}),
    )
    folder = Path(found["run_folder"])
    assert [one["window"] for one in found["variants"]] == [
        "iter-0000005-0000006",
        "iter-0000011-0000012",
    ]
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert [name for name in files if not name.startswith("artifacts/")] == [
        "iter-0000005-0000006/artifacts/rank-0.summary.json",
        "iter-0000005-0000006/rank-0.pt.trace.json.gz",
        "iter-0000011-0000012/artifacts/rank-0.summary.json",
        "iter-0000011-0000012/rank-0.pt.trace.json.gz",
        "run.json",
    ]
    run = json.loads((folder / "run.json").read_text())
    assert run["component"]["target"] == "rms_norm"
    assert run["variants"][1] == {"name": "two", "window": "iter-0000011-0000012"}
    window = folder / "iter-0000011-0000012"
    summary = json.loads((window / "artifacts" / "rank-0.summary.json").read_text())
    assert len(summary["times_ns"]) == summary["steps"] == 3
    assert summary["median_ns"] == sorted(summary["times_ns"])[1]


def test_a_class_with_step_is_stepped(answer: Callable[..., Any]) -> None:
    found = answer(f"{COMPONENTS}:Stepper", *overrides(arguments={"by": 2}, record=0, measure=2))
    assert found["variants"][0]["steps"] == 2


def test_what_a_component_prints_is_no_part_of_the_answer(answer: Callable[..., Any]) -> None:
    found = answer(f"{COMPONENTS}:chatty", *overrides(inputs=[{"shape": [2]}], record=0, measure=2))
    assert found["schema"] == 1


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("rms_nrom", "neither a ready component nor package.module:name or file.py:name; did you "),
        ("none.py:step", "target none.py: no such file."),
        ("no_such_package:step", "the import of no_such_package fails: ModuleNotFoundError: No "),
        (f"{COMPONENTS}:productz", "has no `productz`; did you mean `products`?"),
        (f"{COMPONENTS}:Silent", "has neither step() nor a call; a class needs one of them."),
        (f"{COMPONENTS}:nothing_to_call", "is int and cannot be called; name a function, a class"),
        (f"{COMPONENTS}:products", "missing a required argument: 'x'; it takes x, times, and the"),
    ],
)
def test_a_target_that_cannot_be_measured_is_one_sentence(target: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        command.main([target, *overrides(measure=2)], standalone_mode=False)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "inputs", "sentence"),
    [
        ("failing", [{"shape": [2]}], "ValueError: head size 3 is odd (doubling.py, line "),
        ("Growing", [], "the component changes shapes from step to step: [2] float32 became [3] "),
    ],
)
def test_a_component_that_fails_is_one_sentence(
    name: str, inputs: list[Any], sentence: str
) -> None:
    with pytest.raises(TorchTraceError) as caught:
        command.main(
            [f"{COMPONENTS}:{name}", *overrides(inputs=inputs, measure=2)], standalone_mode=False
        )
    assert sentence in str(caught.value)
    assert caught.value.exit_status == 1


def test_a_variant_that_fails_leaves_the_others_their_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    variants = {"good": {}, "bad": {"target": f"{COMPONENTS}:failing"}}
    words = [f"{COMPONENTS}:products", *overrides(variants=variants, record=0, measure=2)]
    with pytest.raises(SystemExit) as caught:
        command.main(
            [*words, *overrides(inputs=[{"shape": [4, 4]}])],
            standalone_mode=False,
        )
    out = capsys.readouterr().out
    assert caught.value.code == 1
    assert "FAILED\n  bad: ValueError: head size 3 is odd" in out
    assert "  good " in out


def test_an_output_wider_than_asked_for_is_a_finding(answer: Callable[..., Any]) -> None:
    found = answer(
        f"{COMPONENTS}:wide",
        *overrides(inputs=[{"shape": [4]}], dtype="bfloat16", record=0, measure=2),
    )
    codes = [one["code"] for one in found["variants"][0]["findings"]]
    assert "dtype_fallback" in codes


def line_of(text: str) -> str:
    lines = COMPONENTS.read_text().splitlines()
    return f"doubling.py, line {next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_a_product_in_fp32_where_bf16_was_asked_for_is_a_finding_with_its_line(
    answer: Callable[..., Any],
) -> None:
    found = answer(
        f"{COMPONENTS}:wide_product",
        *overrides(inputs=[{"shape": [4, 4]}], dtype="bfloat16", record=0, measure=2),
    )
    findings = [one for one in found["variants"][0]["findings"] if one["code"] == "dtype_fallback"]
    assert findings == [
        {
            "code": "dtype_fallback",
            "sentence": "A matrix product in float32 where bfloat16 was asked for.",
            "source": line_of("wide @ wide"),
        }
    ]


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("broken_graph", "graph_break", "torch._dynamo.graph_break()"),
        ("Recounting", "recompilation", "self.count += 1"),
    ],
)
def test_what_torch_compile_does_again_or_breaks_is_a_finding_with_its_line(
    answer: Callable[..., Any], name: str, code: str, line: str
) -> None:
    found = answer(
        f"{COMPONENTS}:{name}",
        *overrides(variants={"compiled": {"compile": {"backend": "eager"}}}),
        *overrides(inputs=[{"shape": [4]}], record=0, measure=3),
    )
    findings = {one["code"]: one["source"] for one in found["variants"][0]["findings"]}
    assert findings[code] == line_of(line)


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("long > 14.9x short", 1),
        ("long > 15x short", 0),
        ("short < 0.1x long", 1),
        ("long > 29ms", 1),
        ("long < 30ms", 0),
    ],
)
@pytest.mark.usefixtures("sleepers_clock")
def test_a_condition_that_holds_is_status_1(
    condition: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = {
        name: {"arguments": {"milliseconds": n}} for name, n in (("short", 2), ("long", 30))
    }
    words = [f"{COMPONENTS}:sleep", *overrides(variants=variants, record=0), "--fail-if", condition]
    code = 0
    try:
        command.main(words, standalone_mode=False)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == status
    assert ("holds" in capsys.readouterr().err) == bool(status)


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("compiled", "not a condition; write VARIANT > FACTORx VARIANT or VARIANT > TIME"),
        ("compiled > 1x eager", "no variant `compiled`; there are eager."),
    ],
)
def test_a_mistake_in_a_condition_is_one_sentence(condition: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        command.main(["rms_norm", "--fail-if", condition], standalone_mode=False)
    assert f"--fail-if '{condition}': {sentence}" in str(caught.value)


def test_a_wrong_flag_ends_with_status_2_and_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["component", "rms_norm", "--jsn"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert isinstance(command, click.Command)
