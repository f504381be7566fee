# SPDX-License-Identifier: Apache-2.0
"""The answer as one HTML page: nothing is loaded from anywhere."""

from __future__ import annotations

import json

from markupsafe import Markup

from megatron.torch_profile.component.answer import sentences, tables
from megatron.torch_profile.component.answer.roofline_chart import HEIGHT, WIDTH, chart
from megatron.torch_profile.component.answer.waterfalls import waterfalls
from megatron.torch_profile.component.config import snapshot
from megatron.torch_profile.component.results import Answer
from megatron.torch_trace.report.html.environment import asset, environment
from megatron.torch_trace.report.html.policy import policy
from megatron.torch_trace.report.section import Section
from megatron.torch_trace.report.tables import Medium
from megatron.torch_trace.version import __version__
from megatron.torch_trace.wording import visible

_OURS = "megatron.torch_profile.component.answer"


def render_page(answer: Answer) -> str:
    """Variants, roofline, findings, waterfalls and the config."""
    drift = sentences.drift(answer)
    found = (
        Section("variants-section", "Variants", tables=(tables.variants(answer),)),
        Section("ranks-section", "Ranks", tables=(tables.ranks(answer),)),
        Section("roofline", "Roofline", tables=(tables.roofline(answer),)),
        Section("waterfalls", "What a step runs", tables=waterfalls(answer)),
    )
    shown = [(one, one.shown(Medium.PAGE)) for one in found]
    scripts = [asset("report.js")]
    page = environment((_OURS, "templates")).get_template("component.html")
    return page.render(
        title=visible(f"{answer.config.target} / {answer.run_folder.name}"),
        head=sentences.head(answer),
        said=[*sentences.verdicts(answer), *([drift] if drift else [])],
        sections=[(one, parts) for one, parts in shown if parts],
        ceilings=sentences.ceilings(answer),
        chart=chart(answer),
        size=(WIDTH, HEIGHT),
        findings=[(one.case.name, found) for one in answer.results for found in one.findings],
        failures=[one for one in answer.results if one.failure],
        config=json.dumps(snapshot(answer.config), indent=1, default=str).splitlines(),
        version=__version__,
        style=Markup(asset("colours.css") + asset("report.css")),
        scripts=[Markup(one) for one in scripts],
        policy=policy(scripts, served=False),
    )
