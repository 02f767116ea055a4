"""Draws docs/img/pipelines.png: the graphs that come with hermes."""

from pathlib import Path

from hermes.pipelines import PIPELINES, GraphTemplate
from hermes.pipelines.draw import write_drawing

GRAPHS = {}
for name in PIPELINES:
    template = PIPELINES.get(name)
    if isinstance(template, type) and issubclass(template, GraphTemplate):
        GRAPHS[name] = template(**({"refused": 0.05} if name == "guarded" else {})).graph()
write_drawing(GRAPHS, Path(__file__).with_suffix(".png"), {})
