# SPDX-License-Identifier: Apache-2.0
"""The page from its sections: one file, nothing loaded from anywhere, no script but its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from megatron.torch_trace.allocator.ranks.stages import RankMemory
from megatron.torch_trace.analysis.results.analysis import Analysis
from megatron.torch_trace.analysis.results.run_record import RunRecord, find_run
from megatron.torch_trace.format.file_names import RunName, WindowName
from megatron.torch_trace.report import sentences
from megatron.torch_trace.report.contents import sections
from megatron.torch_trace.report.html.environment import asset, environment
from megatron.torch_trace.report.html.links import ViewLinks
from megatron.torch_trace.report.html.policy import policy
from megatron.torch_trace.report.html.prose import prose
from megatron.torch_trace.report.section import Section, Subject
from megatron.torch_trace.report.tables import Medium

_SCRIPTS = (
    "report.js",
    "search.js",
    "ranks.js",
    "range.js",
    "heat.js",
    "strip.js",
    "markdown.js",
    "state.js",
)
_BESIDE_A_TIMELINE = ("perfetto.js", "other_ranks.js", "timeline.js")
_SHARE = re.compile(r"[^\d%:]+[\d.]+ %")


def render_html(
    analysis: Analysis,
    *,
    view: ViewLinks | None = None,
    record: RunRecord | None = None,
    memory: Sequence[RankMemory] = (),
) -> str:
    """The whole report as one HTML page.

    Args:
        analysis: what to render.
        view: where Perfetto and the timeline are, if a server serves the page: it then embeds
            them, and a click on a marked row shows that row in the timeline.
        record: run.json and metrics of the run; looked for beside the traces if not given.
        memory: of the ranks with an allocator snapshot beside their traces.
    """
    subject = Subject(analysis, record or find_run(analysis), memory)
    head = [sentences.head(analysis), *sentences.undisturbed(analysis)]
    return render_sections(_title(analysis), head, sections(subject, Medium.PAGE), view=view)


def render_sections(
    title: str, head: Sequence[str], found: Sequence[Section], *, view: ViewLinks | None = None
) -> str:
    """A page of sections, the report's or another one's.

    Args:
        title, head: what stands above them.
        found: sections; one without content is left out, and the end of the page says why.
        view: see `render_html`.
    """
    shown = [(one, one.shown(Medium.PAGE)) for one in found if one.missing is None]
    scripts = ["".join(map(asset, _SCRIPTS))]
    if view:
        scripts.append("".join(map(asset, _BESIDE_A_TIMELINE)))
    # It comes last: beside a timeline, the parts of figures take the focus themselves.
    scripts[-1] += asset("tips.js")
    template = _environment().get_template("page.html")
    return template.render(
        title=title,
        head=head,
        sections=shown,
        left_out=[one for one in found if one.missing is not None],
        view=view,
        style=Markup(asset("colours.css") + asset("figures.css") + asset("report.css")),
        scripts=[Markup(script) for script in scripts],
        policy=policy(scripts, served=view is not None),
    )


def _title(analysis: Analysis) -> str:
    """The run and the window, or the folder, or the file of a single trace."""
    file = Path(analysis.ranks[0].file).absolute()
    if WindowName.parse(file.parent.name) and RunName.parse(file.parent.parent.name):
        return f"{file.parent.parent.name} / {file.parent.name}"
    return file.name if len(analysis.ranks) == 1 else file.parent.name


@cache
def _environment() -> Environment:
    found = environment()
    found.filters["prose"] = prose
    found.filters["answer"] = _answer
    return found


def _answer(sentence: str) -> Markup:
    """A sentence of the answer: the share that it begins with stands out, `Idle 48 %`."""
    share = _SHARE.match(sentence)
    if share is None:
        return prose(sentence)
    rest = prose(sentence[share.end() :])
    return Markup("<b>{}</b>{}").format(prose(share[0]), rest)
