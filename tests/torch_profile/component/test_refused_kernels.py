# SPDX-License-Identifier: Apache-2.0
"""What torch warns of while a component runs becomes a finding."""

from __future__ import annotations

import warnings
from pathlib import Path

from megatron.torch_profile.component.measure.watch import Watch


def test_a_kernel_that_refuses_is_a_finding_with_the_reason_that_follows_as_a_warning() -> None:
    watch = Watch()
    with watch.listening():
        warnings.warn(
            "Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:1.)",
            stacklevel=1,
        )
        warnings.warn("Flash attention requires a head dim of 256. (Triggered at x)", stacklevel=1)
        warnings.warn("Something else.", stacklevel=1)
    first = watch.findings(lambda: None)[0]
    assert first.code == "fused_kernel_refused"
    assert first.sentence.startswith(
        "Flash attention kernel not used because: Flash attention requires a head dim of 256."
    )
    assert first.source.startswith(f"{Path(__file__).name}, line ")


def test_warnings_of_which_nothing_is_known_are_no_findings() -> None:
    watch = Watch()
    with watch.listening():
        warnings.warn("This will change in a version to come.", stacklevel=1)
    assert watch.findings(lambda: None) == []
