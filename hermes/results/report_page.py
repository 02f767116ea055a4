"""The page of `hermes report`: one file without a network, its charts drawn by a script inside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from hermes.errors import InputError
from hermes.results.brief import brief
from hermes.results.layout import format_s
from hermes.results.report_charts import Chart, Runs, run_charts
from hermes.results.results import Results
from hermes.results.stored import StoredResults

__all__ = ["MOST_BYTES", "Section", "figure_text", "page", "runs_page"]

MOST_BYTES = 2 * 10**6
VEGA_LITE = "6.1"
Section = tuple[str, str]   # title, HTML
_COMPARED = (
    ("requests completed", "requests.completed", 1.0, ""), ("offered", "headline.offered_per_s", 1.0, "/s"),
    ("served", "headline.served_per_s", 1.0, "/s"), ("TTFT p50", "latency.ttft_s.p50", 1e3, " ms"),
    ("TTFT p99", "latency.ttft_s.p99", 1e3, " ms"), ("TPOT p50", "latency.tpot_s.p50", 1e3, " ms"),
    ("TPOT p99", "latency.tpot_s.p99", 1e3, " ms"), ("E2E p50", "latency.e2e_s.p50", 1e3, " ms"),
    ("E2E p99", "latency.e2e_s.p99", 1e3, " ms"), ("goodput", "headline.goodput_per_s", 1.0, "/s"),
    ("output tokens", "headline.output_tokens_per_s", 1.0, "/s"),
    ("energy of the whole run", "energy.total_j", 1e-3, " kJ"),
    ("cost of the whole run", "cost.total_dollars", 1.0, " $"),
    ("per million tokens of answers", "headline.per_million_answer_tokens_dollars", 1.0, " $"),
    ("per million generated tokens", "headline.per_million_output_tokens_dollars", 1.0, " $"),
)

STYLE = """
:root{--bg:#fff;--fg:#1c2128;--dim:#5b6470;--line:#d9dee4;--card:#f6f8fa;--accent:#0b62c4}
:root[data-theme=dark]{--bg:#12161c;--fg:#e4e8ee;--dim:#9aa5b1;--line:#323a45;--card:#1a2029;--accent:#7ab7ff}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:20px 16px 60px}header{display:flex;gap:12px;align-items:flex-start}
h1{font-size:1.5rem;margin:0 0 4px;flex:1;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:32px 0 8px}
h3{font-size:.95rem;margin:0}p{margin:2px 0 6px}.dim{color:var(--dim);font-size:.86rem}
button{font:inherit;color:var(--fg);background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:4px 10px}
.grid{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;min-width:0}
.wide{grid-column:1/-1}dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;margin:6px 0 0;
font-size:.88rem}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem}th,td{padding:4px 10px;border-bottom:1px solid var(--line);
text-align:right}
th:first-child,td:first-child{text-align:left}pre{overflow:auto;font-size:.8rem;max-height:520px}
.chart{width:100%}.warn{border-left:3px solid #c77700;padding-left:10px}.vega-embed{width:100%}
@media print{:root,:root[data-theme=dark]{--bg:#fff;--fg:#000;--card:#fff}button{display:none}}
"""
SCRIPT = """
const specs=JSON.parse(document.getElementById('specs').textContent);
window.views={};
function draw(){const dark=document.documentElement.dataset.theme==='dark';
const fg=dark?'#e4e8ee':'#1c2128',line=dark?'#323a45':'#d9dee4';
const config={background:'transparent',view:{stroke:null},rule:{color:fg},axis:{labelColor:fg,titleColor:fg,
gridColor:line,domainColor:line,tickColor:line},legend:{labelColor:fg,titleColor:fg}};
for(const [id,spec] of Object.entries(specs)){if(window.views[id])window.views[id].finalize();
vegaEmbed('#'+id,spec,{actions:false,renderer:'svg',config}).then(r=>{window.views[id]=r.view});}}
function theme(t){document.documentElement.dataset.theme=t;draw();}
document.getElementById('theme').onclick=()=>theme(document.documentElement.dataset.theme==='dark'?'light':'dark');
theme(matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light');
"""


def runs_page(runs: Runs) -> str:
    """Return the page of one run, or of several side by side; differences are to the first."""
    sections: list[Section] = [("Summary", _cards(runs))]
    if len(runs) > 1:
        sections.append(("Side by side", _compared(runs)))
    title = runs[0][0] if len(runs) == 1 else " and ".join(name for name, _ in runs)
    after = [("What binds", "".join(_binds(name, run) for name, run in runs)), *_scenarios(runs)]
    return page(title, sections, run_charts(runs), after)


def page(title: str, before: Sequence[Section], charts: Sequence[Chart], after: Sequence[Section] = ()) -> str:
    """Return a page of texts and charts. Raises `InputError` if the script's package is missing."""
    cards, specs = [], {}
    for number, (name, said, spec) in enumerate(charts):
        specs[f"chart{number}"] = spec
        wide = " wide" if name.startswith(("Timeline", "Where", "Points")) else ""
        cards.append(
            f'<figure class="card{wide}" style="margin:0"><h3>{escape(name)}</h3><p class="dim">{escape(said)}</p>'
            f'<div class="chart" id="chart{number}" role="img" aria-label="{escape(name)}"></div></figure>')
    body = "".join(f"<section><h2>{escape(name)}</h2>{html}</section>" for name, html in before)
    body += f'<section><h2>Charts</h2><div class="grid">{"".join(cards)}</div></section>' if cards else ""
    body += "".join(f"<section><h2>{escape(name)}</h2>{html}</section>" for name, html in after)
    data = json.dumps(specs, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><main><header><h1>{escape(title)}</h1>"
        f'<button id="theme" type="button">Light or dark</button></header>{body}</main>'
        f'<script type="application/json" id="specs">{data}</script><script>{_vega()}</script>'
        f"<script>{SCRIPT}</script></body></html>\n")


def _vega() -> str:
    """Return vega, vega-lite and vega-embed as one script."""
    try:
        import vl_convert
    except ImportError:
        raise InputError("the package vl-convert-python (pip install 'hermes-sim[report]')", None) from None
    found: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return found.replace("</script", "<\\/script")


def _cards(runs: Runs) -> str:
    cards = []
    for name, run in runs:
        lines = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>"
                        for label, text in brief(run.summary, run.meta))
        warnings = [str(text) for text in (*run.meta.get("warnings", ()), *run.meta.get("remarks", ()))]
        told = "".join(f'<p class="warn dim">{escape(text)}</p>' for text in warnings)
        cards.append(f'<div class="card"><h3>{escape(name)}</h3><dl>{lines}</dl>{told}</div>')
    return f'<div class="grid">{"".join(cards)}</div>'


def _figure(run: Results, path: str) -> float | None:
    value: Any = run.summary
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def _compared(runs: Runs) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in runs)
    rows = []
    for label, path, factor, unit in _COMPARED:
        values = [_figure(run, path) for _, run in runs]
        if all(value is None for value in values):
            continue
        cells, first = [], values[0]
        for number, value in enumerate(values):
            text = "-" if value is None else f"{figure_text(value * factor)}{unit}"
            if number and value is not None and first:
                text += f" ({value / first - 1:+.1%})"
            cells.append(f"<td>{text}</td>")
        rows.append(f"<tr><td>{escape(label)}</td>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def figure_text(value: float) -> str:
    """Return a figure of a table: whole from a thousand on, else four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _binds(name: str, run: Results) -> str:
    binds = run.summary.get("binds") or {}
    what, share = str(binds.get("what") or "nothing"), binds.get("share")
    used = (run.summary.get("utilisation") or {}).get("most_used") or {}
    text = f"{what}" + (f" at {binds['where']}" if binds.get("where") else "") + (
        f", used {share:.0%} of the time" if isinstance(share, float) else "")
    then, bounded = binds.get("then"), binds.get("bounded_by")
    text += f"; then {then['what']} at {then['where']}" if then else ""
    text += f"; {bounded['what']} bounds the queue" if bounded else ""
    rows = "".join(
        f"<dt>{escape(kind)}</dt><dd>{escape(str(one.get('name')))}: {float(one.get('utilisation') or 0):.0%} of the "
        f"time, {float(one.get('peak') or 0):.0%} in the fullest window</dd>" for kind, one in used.items()
        if isinstance(one, dict))
    queue = (run.summary["latency"].get("queue_s") or {}).get("p99")
    waited = f"<dt>queueing</dt><dd>p99 {escape(format_s(queue))}</dd>" if queue is not None else ""
    return f'<div class="card"><h3>{escape(name)}</h3><p>Binds: {escape(text)}.</p><dl>{rows}{waited}</dl></div>'


def _scenarios(runs: Runs) -> list[Section]:
    texts = [(name, run.scenario_text) for name, run in runs if isinstance(run, StoredResults) and run.scenario_text]
    return [("Scenario", "".join(
        f"<details><summary>{escape(name)}: every key</summary><pre>{escape(text or '')}</pre></details>"
        for name, text in texts))] if texts else []
