# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs are noticed whenever they are captured; here without a GPU, by torch's own class."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from gates import until

from megatron.torch_profile import install, uninstall
from megatron.torch_profile.hooks import cuda_graphs


class Graph:
    """torch's cannot be made without a driver."""

    def capture_begin(self) -> str:
        return "captured"

    def capture_end(self) -> None:
        pass


@pytest.fixture(autouse=True)
def without_a_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    installed = cuda_graphs.captures.active
    uninstall()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(torch.cuda.graphs, "CUDAGraph", Graph)
        meanwhile.setattr(cuda_graphs, "_used", False)
        meanwhile.setattr(cuda_graphs, "_under_way", 0)
        yield
        uninstall()
    cuda_graphs.stop_ends()
    if installed:
        install()


def test_a_capture_before_training_is_noticed_from_install_on() -> None:
    original = Graph.capture_begin
    install()
    assert not cuda_graphs.in_use()
    assert Graph().capture_begin() == "captured"
    assert cuda_graphs.in_use()
    uninstall()
    assert Graph.capture_begin is original


def test_a_graph_from_before_install_is_found_among_the_objects_of_the_process() -> None:
    cuda_graphs.look()
    assert not cuda_graphs.in_use()
    held = [Graph()]
    cuda_graphs.look()
    assert cuda_graphs.in_use()
    del held


def test_a_capture_waits_for_a_stop_that_is_under_way() -> None:
    install()
    cuda_graphs.stop_begins()
    captured = threading.Event()
    thread = threading.Thread(target=lambda: (Graph().capture_begin(), captured.set()))
    thread.start()
    try:
        assert until(cuda_graphs.in_use), "a stop that has not begun yet leaves it to training"
        assert not captured.wait(0.1)
    finally:
        cuda_graphs.stop_ends()
        thread.join()
    assert captured.is_set()


def test_torchs_own_class_is_wrapped_whenever_torch_is_imported() -> None:
    code = (
        "import sys, megatron.torch_profile as ours\n"
        "ours.install()\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "wrapped = torch.cuda.CUDAGraph.capture_begin\n"
        "assert wrapped is not wrapped.__wrapped__\n"
        "ours.uninstall()\n"
        "assert not hasattr(torch.cuda.CUDAGraph.capture_begin, '__wrapped__')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_signal_that_ends_the_monitor_amid_its_look_does_not_wait_for_itself() -> None:
    answers: list[bool] = []

    def looks() -> None:
        with cuda_graphs.between_captures(), cuda_graphs.between_captures() as may:
            answers.append(may)

    thread = threading.Thread(target=looks, daemon=True)
    thread.start()
    thread.join(10)
    assert answers == [True]
