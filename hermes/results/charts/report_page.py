"""The page of `hermes report`: one file without a network, its charts drawn by a script inside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from hermes.results.brief import brief
from hermes.results.charts import PALETTE, Panel, panel_spec, theme
from hermes.results.charts.fleet_charts import fleet_panels
from hermes.results.charts.fleet_table import incidents_table, replicas_table
from hermes.results.charts.gateway_charts import gateway_panels
from hermes.results.charts.run_charts import breakdown, chart, latency, utilisation
from hermes.results.charts.time_charts import Runs, over_time
from hermes.results.compare import compare
from hermes.results.compare.compare_verdict import COMPARED, SLO_TEXT, figure, named
from hermes.results.figures.membership import fleet_groups
from hermes.results.figures.tenants import gateway_sections
from hermes.results.files.stored import StoredResults
from hermes.results.layout import format_number, format_s, to_html
from hermes.results.slo import METRICS

__all__ = ["MOST_BYTES", "Figures", "Section", "page", "runs_page"]

MOST_BYTES = 2 * 10**6
VEGA = Path(__file__).parent / "page" / "vega.js"   # made by scripts/build_vega.py
Section = tuple[str, str]   # title, HTML
Figures = tuple[str, Sequence[Panel], str]   # of a section with charts of its own: title, charts, HTML below them
OVER_TIME = ("served", "system", "waiting", "kv", "stepping")
ROWS = (*COMPARED, *(f"latency.{metric}_s.{at}" for metric in METRICS for at in ("p50", "p99")))
"""Figures of several runs, side by side."""

STYLE = """
:root{--bg:#fff;--fg:#1c2128;--dim:#5b6470;--line:#d9dee4;--card:#f6f8fa;--good:#11713f;--bad:#b3261e}
:root[data-theme=dark]{--bg:#12161c;--fg:#e4e8ee;--dim:#9aa5b1;--line:#323a45;--card:#1a2029;--good:#5fd08f;--bad:#ff8f85}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:20px 16px 60px}
header{display:flex;flex-wrap:wrap;gap:8px 12px;align-items:flex-start}
h1{font-size:clamp(1.15rem,3vw,1.5rem);margin:0 0 4px;flex:1 1 270px;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:32px 0 8px}
h3{font-size:.95rem;margin:0}p{margin:2px 0 6px}.dim{color:var(--dim);font-size:.86rem}
button{font:inherit;color:var(--fg);background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:4px 10px}
.grid{display:grid;gap:14px;align-items:start;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;min-width:0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;margin:6px 0 0;
font-size:.88rem}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}.scroll{overflow-x:auto}
figure{margin:0}.full{width:100%}.better{color:var(--good)}.worse{color:var(--bad)}
table{border-collapse:collapse;font-size:.88rem}th,td{padding:4px 10px;border-bottom:1px solid var(--line);
text-align:right}
th:first-child,td:first-child{text-align:left}pre{overflow:auto;font-size:.8rem;max-height:520px}
.chart{width:100%}.warn{border-left:3px solid #c77700;padding-left:10px}.vega-embed{width:100%}
@media print{:root,:root[data-theme=dark]{--bg:#fff;--fg:#000;--card:#fff}button{display:none}}
"""
SCRIPT = """
const specs=JSON.parse(document.getElementById('specs').textContent),prefers=matchMedia('(prefers-color-scheme: dark)');
window.views={};
function theme(name){document.documentElement.dataset.theme=name;
for(const [id,spec] of Object.entries(specs)){if(window.views[id])window.views[id].finalize();
vegaEmbed('#'+id,spec,{actions:false,renderer:'svg',config:THEMES[name]}).then(r=>{window.views[id]=r.view});}}
const follow=()=>theme(prefers.matches?'dark':'light');
document.getElementById('theme').onclick=()=>theme(document.documentElement.dataset.theme==='dark'?'light':'dark');
prefers.onchange=follow;follow();
"""


def runs_page(runs: Runs) -> str:
    """Return the page of one run, or of several side by side; differences are to the first."""
    sections: list[Section] = [("Summary", _cards(runs))]
    if len(runs) > 1:
        sections.append(("Side by side", _compared(runs)))
    title = chart(runs, "latency").title if len(runs) == 1 else " and ".join(name for name, _ in runs)
    replicas = fleet_panels(runs)
    in_fleets = all(sum(map(len, fleet_groups(run.record).values())) == len(run.record.clients)
                    for _, run in runs)   # the queue at the replicas is that at the clients
    shown = [name for name in OVER_TIME if name != "waiting" or not in_fleets]
    panels = [*latency(runs), *breakdown(runs), *over_time(runs, shown), *utilisation(runs)]
    own = [("Replicas", replicas, replicas_table(runs) + incidents_table(runs))] if replicas else []
    tables = [(name, to_html(found)) for name, run in runs if (found := gateway_sections(run.summary))]
    waits = gateway_panels(runs)
    if waits:   # the tables below the charts
        below = "".join(f"<h3>{escape(name)}</h3>{table}" if len(runs) > 1 else table for name, table in tables)
        own.append(("Gateway", waits, below))
        tables = []
    apart = [(f"Gateway{f' of {name}' if len(runs) > 1 else ''}", table) for name, table in tables]
    return page(title, sections, panels, [*apart, *_scenarios(runs)], own)


def page(title: str, before: Sequence[Section], panels: Sequence[Panel], after: Sequence[Section] = (),
         own: Sequence[Figures] = ()) -> str:
    """Return a page of texts and charts. own: Sections with charts of their own, before the others."""
    every = [*panels, *(panel for _, theirs, _ in own for panel in theirs)]
    cards = [
        f'<figure class="card"><h3>{escape(panel.title)}</h3><p class="dim">{escape(panel.said)}</p>'
        f'<div class="chart" id="chart{number}" role="img" aria-label="{escape(panel.title)}"></div></figure>'
        for number, panel in enumerate(every)]
    charts = [("Charts", _grid(cards[:len(panels)]))] if panels else []
    rest = iter(cards[len(panels):])
    apart = [(name, _grid(islice(rest, len(theirs))) + html) for name, theirs, html in own]
    body = "".join(f"<section>{f'<h2>{escape(name)}</h2>' if name else ''}{html}</section>"
                   for name, html in (*before, *apart, *charts, *after))
    specs = _json({f"chart{number}": panel_spec(panel) for number, panel in enumerate(every)})
    script = VEGA.read_text(encoding="utf-8")
    themes = _json({"light": theme(), "dark": theme(dark=True)})
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body><main><header><h1>{escape(title)}</h1>"
        f'<button id="theme" type="button">Light or dark</button></header>{body}</main>'
        f'<script type="application/json" id="specs">{specs}</script><script>{script}</script>'
        f"<script>const THEMES={themes};{SCRIPT}</script></body></html>\n")


def _grid(cards: Iterable[str]) -> str:
    return f'<div class="grid">{"".join(cards)}</div>'


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _cards(runs: Runs) -> str:
    cards = []
    for number, (name, run) in enumerate(runs):
        lines = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>"
                        for label, text in brief(run.summary, run.meta))
        warnings = [str(text) for text in (*run.meta.get("warnings", ()), *run.meta.get("remarks", ()))]
        notes = "".join(f'<p class="warn dim">{escape(text)}</p>' for text in warnings)
        edge = f' style="border-top:4px solid {PALETTE[number % len(PALETTE)]}"' if len(runs) > 1 else ""
        cards.append(f'<div class="card"{edge}><h3>{escape(name)}</h3><dl>{lines}</dl>{notes}</div>')
    return f'<div class="grid">{"".join(cards)}</div>'


def _compared(runs: Runs) -> str:
    """Return the figures of the runs in a table; `hermes.results.compare` says what is beyond the noise of a seed."""
    passed = [run.summary["slo"]["pass"] for _, run in runs]
    rows = [["SLO", *(SLO_TEXT[one] + (_judged(one) if one is (not passed[0]) else "") for one in passed)]]
    first_name, first_run = runs[0]
    tables = [compare(run, first_run, allow_different_requests=True, names=(name, first_name))
              for name, run in runs[1:]]
    noises = [{f"latency.{row.metric}_s.{row.stat}": row.noise_s for row in table.rows}
              | {row.name: row.noise for row in table.totals} for table in tables]
    of_clients = [row.name for table in tables for row in table.totals if row.name.startswith("believed.balance.")]
    for path in dict.fromkeys((*ROWS, *of_clients)):
        label, better = named(path)
        values = [figure(run.summary, path) for _, run in runs]
        if all(value is None for value in values):
            continue
        cells, first = [escape(label)], values[0]
        for number, value in enumerate(values):
            text = format_s(value) if path.startswith("latency.") else format_number(value)
            if number and value is not None and first:
                text += f" ({value / first - 1:+.1%})"
                noise = noises[number - 1].get(path)
                if better and noise is not None and abs(value - first) > noise:
                    text += _judged((value - first) * better > 0)
            cells.append(text)
        rows.append(cells)
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in runs)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    notes = [f"Differences to {first_name}. Better or worse: beyond what another seed may do.",
             *dict.fromkeys(note for table in tables for note in table.unknown_noise())]
    return f'<div class="scroll"><table class="full"><tr><th></th>{head}</tr>{body}</table></div>' + "".join(
        f'<p class="dim">{escape(text)}</p>' for text in notes)


def _judged(better: bool) -> str:
    return ' <b class="better">better</b>' if better else ' <b class="worse">worse</b>'


def _scenarios(runs: Runs) -> list[Section]:
    texts = [(name, run.scenario_text) for name, run in runs if isinstance(run, StoredResults) and run.scenario_text]
    return [("Scenario", "".join(
        f"<details><summary>{escape(name)}: every key</summary><pre>{escape(text or '')}</pre></details>"
        for name, text in texts))] if texts else []
