"""Draws quickstart-cdf.png, the figure of README.md: `python docs/img/quickstart_cdf.py`.

The file's `Description` holds the figures that were drawn, so that a test notices when the quickstart gives others.
"""

from pathlib import Path

from hermes.api import simulate
from hermes.results import Results
from hermes.results.plots import latency_cdf

METRICS = ("ttft", "tpot", "itl", "e2e")


def described(results: Results) -> str:
    """The percentiles behind the curves, as text."""
    latency = results.summary["latency"]
    return "; ".join(f"{m} {latency[f'{m}_s']['p50']:.9g} {latency[f'{m}_s']['p99']:.9g}" for m in METRICS)


if __name__ == "__main__":
    quickstart = simulate("quickstart")
    figure = latency_cdf(quickstart, list(METRICS))
    figure.set_size_inches(12, 2.8)
    figure.savefig(Path(__file__).with_name("quickstart-cdf.png"), dpi=100,
                   metadata={"Software": None, "Description": described(quickstart)})
