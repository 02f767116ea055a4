"""Make the script that draws the charts of a report page, and the licences of what it holds.

    npm install --ignore-scripts --no-save vega@6.2.0 vega-lite@6.1.0 vega-embed@7.0.2
    pip install vl-convert-python==1.9.0.post1
    python scripts/build_vega.py node_modules

Writes hermes/results/charts/page/vega.js, which sets `window.vegaEmbed`, and hermes/results/charts/page/LICENSE. The
bundle is vl-convert's, which holds these versions in a form smaller than esbuild's of the same packages (0.90 against
1.17 MB); npm's packages have the licences. `PACKAGES` is what esbuild takes into its bundle (`--metafile`), and what
published modules among them hold inside: delaunator, fast-json-patch, robust-predicates, semver and tslib.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import vl_convert

from hermes.results.charts import VEGA_LITE

PAGE = Path(__file__).resolve().parents[1] / "hermes" / "results" / "charts" / "page"
PACKAGES = """
d3-array d3-color d3-delaunay d3-dispatch d3-dsv d3-ease d3-force d3-format d3-geo d3-geo-projection d3-hierarchy
d3-interpolate d3-path d3-quadtree d3-scale d3-scale-chromatic d3-shape d3-time d3-time-format d3-timer delaunator
fast-json-patch internmap json-stringify-pretty-compact robust-predicates semver topojson-client tslib vega vega-canvas
vega-crossfilter vega-dataflow vega-embed vega-encode vega-event-selector vega-expression vega-force vega-format
vega-functions vega-geo vega-hierarchy vega-interpreter vega-label vega-lite vega-loader vega-parser vega-projection
vega-regression vega-runtime vega-scale vega-scenegraph vega-schema-url-parser vega-selections vega-statistics
vega-themes vega-time vega-tooltip vega-transforms vega-util vega-view vega-view-transforms vega-voronoi vega-wordcloud
"""


def licences(modules: Path) -> str:
    """Return the licence texts, each once, below the packages that have it."""
    holders = defaultdict[str, list[str]](list)
    for name in PACKAGES.split():
        about = json.loads((modules / name / "package.json").read_text(encoding="utf-8"))
        (path,) = (path for path in (modules / name).iterdir() if path.stem.upper() in ("LICENSE", "LICENCE"))
        text = "\n".join(line.rstrip() for line in path.read_text(encoding="utf-8").strip().splitlines())
        holders[text].append(f"{name} {about['version']} ({about['license']})")
    head = "vega.js holds the packages below, under these licences."
    return "\n".join([head, *(f"\n{'-' * 80}\n{chr(10).join(names)}\n\n{text}" for text, names in holders.items()), ""])


def main(modules: str) -> None:
    for name, ours in (("vega", vl_convert.get_vega_version()), ("vega-embed", vl_convert.get_vega_embed_version())):
        found = json.loads((Path(modules) / name / "package.json").read_text(encoding="utf-8"))["version"]
        if found != ours:
            sys.exit(f"{modules} has {name} {found}; vl-convert's is {ours}")
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    PAGE.mkdir(exist_ok=True)
    (PAGE / "vega.js").write_text(script.replace("</script", "<\\/script"), encoding="utf-8", newline="\n")
    (PAGE / "LICENSE").write_text(licences(Path(modules)), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
