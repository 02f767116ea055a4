"""Draws quickstart-cdf.png, the figure of README.md: `python docs/img/quickstart_cdf.py`."""

from pathlib import Path

from hermes.api import simulate
from hermes.results.plots import latency_cdf

figure = latency_cdf(simulate("quickstart"), ["ttft", "tpot", "itl", "e2e"])
figure.set_size_inches(12, 2.8)
figure.savefig(Path(__file__).with_name("quickstart-cdf.png"), dpi=100, metadata={"Software": None})
