"""Study `metis`: which configuration a RAG query gets, chosen with the schedule (docs/studies/metis.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hermes.api import simulate
from hermes.pipelines.metis import HOW
from hermes.rag.metis.decision import METHODS
from hermes.rag.metis.quality import QUALITY
from hermes.studies import metis_plots as plots
from hermes.studies import metis_tables as tables
from hermes.studies.base import STUDIES, Context
from hermes.studies.metis_points import FIXED, RATES, Batch, Point, fixed_point, point, seeded
from hermes.studies.report import Report, Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MetisStudy"]

SPEC_RATE = 2.0
MULTIPLES = (0.25, 0.5, 1.0, 1.5, 2.5)   # of RATES
PROFILERS: dict[str, dict[str, Any]] = {
    "large model, API": {}, "never wrong, API": {"profiler": "perfect"},
    "Llama-3.1-70B on two A40": {"profiler": "small", "profiler_model": "llama-3.1-70b"},
}
BUDGETS = (48_000, 24_000, 12_000)   # KV tokens, where the whole card has some 280,000

ASSUMPTIONS = [
    "Serving: Mistral-7B, AWQ 4 bits, 16-bit KV, one A40 48 GB; analytical times with factors fitted on an A100 (the "
    "A40 was never measured). Steps of up to 2,048 tokens, 256 sequences.",
    "Queries have no text: lengths as the paper's table, profiles and ranks of the needed pieces as assumed in "
    "hermes/rag/metis/datasets.py; F1 by the quality model in hermes/rag/metis/quality.py, frozen before any run.",
    "Profiler: an API of 100 ms, 20 us a token in and 5 ms a token out (assumed); a golden run every 30 queries, "
    "its compute on the serving GPU.",
    "AdaptiveRAG*: per class (joint reasoning, complexity) the configuration of best mean F1 on 150 sample queries, "
    "differences below 1% going to the quicker. A fixed configuration of like delay is at most 5% slower than METIS.",
    "A map_* configuration may start with half of its mappers; free memory is blocks that nobody holds.",
    "2 queries/s is more than one A40 computes of all data sets but squad; the sustained rates (squad 2, musique 0.4, "
    "finsec 0.15, qmsum 0.12) are those that every system keeps up with.",
]


@STUDIES.register("metis")
class MetisStudy:
    """See the module's docstring."""

    title = "METIS: RAG configurations chosen with the schedule, against fixed and resource-blind ones"

    def run(self, context: Context) -> Report:
        quick = context.quick
        datasets = ["musique", "qmsum"] if quick else list(RATES)
        requests, seeds = (60, 2) if quick else (200, 10)
        pairs = [(d, r) for d in datasets for r in dict.fromkeys((RATES[d], SPEC_RATE))]
        first = Batch(context, "first", self._first(datasets, pairs, requests, seeds, quick=quick))
        grid, own = first["grid"], first["systems"]
        like = {(d, r): self._like(grid, own, d, r) for d, r in pairs}
        second = Batch(context, "second", self._second(datasets, like, requests, seeds, quick=quick))
        return self._report(context, first, second, datasets, pairs)

    @staticmethod
    def _first(datasets: list[str], pairs: list[tuple[str, float]], requests: int, seeds: int, *,
               quick: bool) -> dict[str, list[Point]]:
        """Points that can be named before anything is run."""
        n: dict[str, Any] = {"requests": requests}
        of_grid = {(d, r): FIXED[::2] if quick or r != RATES[d] else FIXED for d, r in pairs}
        multiples = MULTIPLES[::2] if quick else MULTIPLES
        rungs = [point(d, s, r, **n) for d, r in pairs for s in ("profile + median", "+ batching", "hindsight")]
        rungs += [point(d, "METIS", r, **n).with_("METIS, no golden runs", feedback_every=0) for d, r in pairs]
        again = [point(d, s, RATES[d], **n).with_(f"{s} {name}", quality=name)
                 for d in datasets for name in QUALITY for s in ("AdaptiveRAG*", "hindsight")]
        lone = ("METIS", "profile + median", "AdaptiveRAG*", "hindsight")
        return {
            "grid": [fixed_point(d, c, r, requests=requests) for d, r in pairs for c in of_grid[d, r]],
            "systems": seeded([point(d, s, r, **n) for d, r in pairs for s in ("METIS", "AdaptiveRAG*")], seeds),
            "rungs": [one for p in rungs for one in seeded([p], min(seeds, 3) if p.rate == RATES[p.dataset] else 1)],
            "shapes": again,
            "rates": [point(d, s, _rate(d, m), **n) for d in datasets for m in multiples
                      for s in ("METIS", "+ batching", "AdaptiveRAG*")],
            "pressure": list(pressure_points(requests, quick=quick)),
            "profilers": [point(d, "METIS", RATES[d], **n).with_(name, **params) for d in datasets
                          for name, params in PROFILERS.items()],
            "feedback": feedback_points(*((90, 1) if quick else (350, 3))),
            "lone": [point(d, s, None, requests=40) for d in datasets for s in lone],
        }

    @staticmethod
    def _second(datasets: list[str], like: dict[tuple[str, float], Point], requests: int, seeds: int, *,
                quick: bool) -> dict[str, list[Point]]:
        """Points with the fixed configuration of like delay."""
        base = {d: like[d, RATES[d]] for d in datasets}
        multiples = MULTIPLES[::2] if quick else MULTIPLES
        slow = {d: round(RATES[d] / 8, 4) for d in datasets}   # what the large model keeps up with
        dollars = []
        for d in datasets:
            for serving in ("mistral-7b", "llama-3.1-70b"):
                more: dict[str, Any] = {"requests": requests // 2, "serving": serving}
                dollars += [point(d, "METIS", slow[d], **more), point(d, "AdaptiveRAG*", slow[d], **more),
                            Point(d, "vLLM fixed", base[d].params, slow[d], **more)]
        return {
            "fixed": seeded(list(like.values()), seeds) + [
                p.with_("Parrot*", co_schedule=True) for p in like.values()],
            "rates": [replace(base[d], rate=_rate(d, m)) for d in datasets for m in multiples],
            "lone": [replace(base[d], rate=None, requests=40) for d in datasets],
            "knobs": [one for d in datasets for one in knob_points(base[d])],
            "dollars": dollars,
        }

    def _report(self, context: Context, first: Batch, second: Batch, datasets: list[str],
                pairs: list[tuple[str, float]]) -> Report:
        import pandas as pd

        grid, own, rungs, fixed = first["grid"], first["systems"], first["rungs"], second["fixed"]
        steps = pd.concat([frame[frame["seed"] <= 3] for frame in (
            fixed, own[own["system"] == "AdaptiveRAG*"], rungs, own[own["system"] == "METIS"])])
        steps = pd.concat([steps[(steps["dataset"] == d) & (steps["rate"] == r)
                                 & (steps["seed"] <= (3 if r == RATES[d] else 1))] for d, r in pairs])
        rates = pd.concat([first["rates"], second["rates"]])
        cut = first["pressure"]
        known = pressure_points(int(own["point"].iloc[0].requests), quick=context.quick)
        sweep = cut.assign(kv_tokens=[known[p][0] for p in cut["point"]], load=[known[p][1] for p in cut["point"]])
        shapes = self._shapes(datasets, first["shapes"], grid, own, rungs)
        low = pd.concat([first["lone"], second["lone"]])
        trace_table, trace_plot = self._trace(context)
        found = [
            tables.headline(pd.concat([own, fixed])), tables.ladder(steps), tables.lone(low), tables.throughput(rates),
            tables.pressure(sweep), tables.knobs(second["knobs"]), tables.overhead(first["profilers"]),
            tables.feedback(first["feedback"]), tables.shapes(shapes), tables.dollars(second["dollars"]),
            self._reconciled(own), trace_table,
        ]
        chosen = pd.concat([own[own["seed"] == 1], rungs[rungs["seed"] == 1]])
        at = [[r == RATES[d] for d, r in zip(frame["dataset"], frame["rate"], strict=True)]
              for frame in (grid, chosen)]
        drawn = [
            plots_of("scatter", "Every fixed configuration, and configurations per query, at the sustained rates",
                     plots.scatter_plot(grid[at[0]], chosen[at[1]], datasets)),
            plots_of("rates", "Mean delay by rate", plots.rates_plot(rates, datasets)),
            plots_of("pressure", "Less KV memory: delay, F1, decisions that memory changed",
                     plots.pressure_plot(sweep)), trace_plot,
        ]
        said = _findings(own, fixed, steps, sweep, shapes, first["feedback"])
        return Report(self.title, ASSUMPTIONS, found, drawn, said)

    @staticmethod
    def _like(grid: pd.DataFrame, own: pd.DataFrame, dataset: str, rate: float) -> Point:
        """The fixed configuration of like delay, by the first seed."""
        mine = own[(own["dataset"] == dataset) & (own["rate"] == rate) & (own["system"] == "METIS")]
        delay = mine.sort_values("seed")["delay_s"].iloc[0]
        chosen: Point = tables.like_delay(grid[(grid["dataset"] == dataset) & (grid["rate"] == rate)], delay)["point"]
        return chosen

    @staticmethod
    def _shapes(datasets: list[str], again: pd.DataFrame, grid: pd.DataFrame, own: pd.DataFrame,
                rungs: pd.DataFrame) -> pd.DataFrame:
        """F1 by each quality model. What does not choose by it need not run again."""
        import pandas as pd

        parts = [again]
        for dataset in datasets:
            here = [f[(f["dataset"] == dataset) & (f["rate"] == RATES[dataset]) & (f["seed"] == 1)]
                    for f in (own, rungs, grid)]
            mine = here[0][here[0]["system"] == "METIS"]
            near = here[2][here[2]["delay_s"] <= tables.LIKE * mine["delay_s"].iloc[0]]
            best = {column: near[column].max() for column in ("f1", *(f"f1_{n}" for n in QUALITY if n != "default"))}
            like = pd.DataFrame([best | {"dataset": dataset, "system": "vLLM fixed"}])
            parts += [mine, here[1][here[1]["system"] == "profile + median"], like]
        return pd.concat(parts, ignore_index=True)

    @staticmethod
    def _reconciled(own: pd.DataFrame) -> Table:
        """What was said of tokens by the pipelines, and what the stages served."""
        import pandas as pd

        mine = own[own["system"] == "METIS"]
        rows = [{"data set": d, "runs": len(g), "profiler tokens noted": g["profile_in"].sum(),
                 "in its stages": g["profiler_stage_in"].sum(), "golden runs": g["golden_runs"].sum(),
                 "golden tokens noted": g["golden_in"].sum() + g["golden_out"].sum(),
                 "LLM tokens served": g["llm_in"].sum() + g["llm_out"].sum()}
                for d, g in mine.groupby("dataset", sort=False)]
        return Table("reconciled", "Nothing is free: tokens of profiler and golden runs", pd.DataFrame(rows),
                     "tests/metis/test_pipeline.py adds up every call.")

    @staticmethod
    def _trace(context: Context) -> tuple[Table, Any]:
        """One query holds most of the memory when another comes that needs five chunks at once."""
        import pandas as pd

        context.say("metis: trace")
        rows, runs = [], []
        for name, pipeline in (
            ("stuff, 5 chunks", {"name": "metis", "system": "fixed", "chunks": 5, "dataset": "qmsum"}),
            ("METIS", {"name": "metis", "dataset": "qmsum", "profiler": "perfect"}),
        ):
            results = simulate({"extends": str(context.file("pressure.yaml"))}, overrides=[
                f"workload.1.pipeline={{{', '.join(f'{k}: {v}' for k, v in pipeline.items())}}}"])
            frame = results.requests
            how = frame["note_how"].iloc[1] if "note_how" in frame else None
            method = METHODS[int(frame["note_method"].iloc[1])]
            rows.append({"system": name, "configuration": f"{method}, {int(frame['note_chunks'].iloc[1])} chunks",
                         "how": "-" if how is None else HOW[int(how)], "F1": frame["note_f1"].iloc[1],
                         "first call starts s": _first_start(results) - frame["arrival_s"].iloc[1],
                         "delay s": frame["e2e_s"].iloc[1], "delay of the other s": frame["e2e_s"].iloc[0]})
            runs.append((f"{name}: {frame['e2e_s'].iloc[1]:.2f} s", results))
        table = Table("trace", "A query under memory pressure", pd.DataFrame(rows), "", {
            "F1": 3, "first call starts s": 2, "delay s": 2, "delay of the other s": 2})
        return table, plots_of("trace", "One query holds 8,000 of 12,000 tokens of KV when another comes",
                               plots.timeline_plot(runs))


def plots_of(name: str, caption: str, figure: Any) -> Any:
    """A plot of the report, its file named after the study."""
    from hermes.studies.report import Plot

    return Plot(f"metis-{name}", caption, figure)


def _first_start(results: Any) -> float:
    record = results.record
    mine = (record.stages["request"] == 1) & (record.stages["kind"] == record.stage_kinds.index("generate"))
    return float(record.stages["start_ns"][mine].min()) / 1e9


def _rate(dataset: str, multiple: float) -> float:
    return float(f"{multiple * RATES[dataset]:.4g}")


def pressure_points(requests: int, *, quick: bool) -> dict[Point, tuple[int, float]]:
    """Points with less memory and more load: (KV tokens, multiple of the sustained rate)."""
    points = {}
    for dataset in ("qmsum",) if quick else ("musique", "qmsum"):
        for tokens in BUDGETS[::2] if quick else BUDGETS:
            for load in (1.0, 1.5):
                base = point(dataset, "METIS", _rate(dataset, load), requests=requests, blocks=tokens // 16)
                for one in (base, base.with_("METIS, uncommitted", reading="uncommitted"),
                            base.with_("METIS, whole only", partial=1.0), base.with_("+ batching", system="median")):
                    points[one] = (tokens, load)
    return points


def feedback_points(requests: int, seeds: int) -> list[Point]:
    """Golden runs on and off, with a good and a lesser profiler."""
    return seeded([
        point(d, "METIS", RATES[d], requests=requests).with_(f"{profiler} profiler, {name}", feedback_every=every,
                                                             profiler=profiler)
        for d in ("qmsum", "finsec") for profiler in ("large", "small") for name, every in (("off", 0), ("on", 30))
    ], seeds)


def knob_points(like: Point) -> list[Point]:
    """A fixed configuration, with knobs set per query one after the other."""
    base = point(like.dataset, "METIS", like.rate, requests=like.requests)
    own = {key: value for key, value in like.params if key in ("method", "chunks", "words")}
    return [like.with_("none (vLLM fixed)"), base.with_("num_chunks", co_schedule=False, adapts="chunks", **own),
            base.with_("+ synthesis_method", co_schedule=False, adapts="chunks+method", **own),
            base.with_("+ intermediate_length", co_schedule=False), base.with_("+ co-scheduled calls")]


def _findings(own: pd.DataFrame, fixed: pd.DataFrame, steps: pd.DataFrame, sweep: pd.DataFrame, shapes: pd.DataFrame,
              feedback: pd.DataFrame) -> list[str]:
    said = []
    for dataset, rate in dict.fromkeys(zip(own["dataset"], own["rate"], strict=True)):
        here = own[(own["dataset"] == dataset) & (own["rate"] == rate)]
        mine, rag = (here[here["system"] == s].set_index("seed") for s in ("METIS", "AdaptiveRAG*"))
        like = fixed[(fixed["dataset"] == dataset) & (fixed["rate"] == rate) & (fixed["system"] == "vLLM fixed")]
        gain = 100 * (mine["f1"] / like.set_index("seed")["f1"] - 1)
        ratio, lost = rag["delay_s"] / mine["delay_s"], 100 * (mine["f1"] / rag["f1"] - 1)
        said.append(
            f"{dataset} at {rate:g}/s: AdaptiveRAG* takes {ratio.mean():.2f} times as long as METIS ({ratio.min():.2f} "
            f"to {ratio.max():.2f}), whose F1 is {lost.mean():+.1f}% of its own and {gain.mean():+.1f}% of the fixed "
            f"one's ({gain.min():+.1f} to {gain.max():+.1f}); memory changed "
            f"{100 * mine['constrained'].mean():.1f}% of the decisions.")
    for (dataset, rate), group in steps.groupby(["dataset", "rate"], sort=False):
        delay, f1 = (group.groupby("system")[column].mean() for column in ("delay_s", "f1"))
        word = "slower" if delay["METIS"] > delay["+ batching"] else "quicker"
        said.append(
            f"{dataset} at {rate:g}/s: best fit takes {delay['METIS'] / delay['+ batching']:.2f} times as long as the "
            f"median ({word}), F1 {f1['METIS']:.3f} against {f1['+ batching']:.3f}.")
    return said + _under_pressure(sweep) + _by_shape(shapes) + _of_feedback(feedback)


def _under_pressure(sweep: pd.DataFrame) -> list[str]:
    bound = int((sweep["constrained"] >= 0.1).sum())
    known = int(sweep["constrained"].notna().sum())
    said = [f"Memory constrains at least 10% of the decisions at {bound} of {known} points of the sweep of rate and "
            "memory."]
    median = sweep[sweep["system"] == "+ batching"]
    for system in ("METIS", "METIS, uncommitted", "METIS, whole only"):
        pairs = sweep[sweep["system"] == system].merge(median, on=["dataset", "kv_tokens", "load"],
                                                       suffixes=("", "_median"))
        tight = pairs[pairs["constrained"] >= 0.1]
        said.append(
            f"{system}: of {len(tight)} such points it is quicker than the median of the pruned space at "
            f"{int((tight['delay_s'] < tight['delay_s_median']).sum())}, and has more F1 at "
            f"{int((tight['f1'] > tight['f1_median']).sum())}.")
    return said


def _by_shape(shapes: pd.DataFrame) -> list[str]:
    said = []
    for name in QUALITY:
        column = "f1" if name == "default" else f"f1_{name}"
        better: dict[str, list[str]] = {"vLLM fixed": [], f"AdaptiveRAG* {name}": [], "profile + median": []}
        for dataset, group in shapes.groupby("dataset", sort=False):
            f1 = group.groupby("system")[column].mean()
            for system, found in better.items():
                if f1["METIS"] > f1[system]:
                    found.append(str(dataset))
        lists = [", ".join(found) or "none" for found in better.values()]
        said.append(
            f"Quality model {name}: METIS has more F1 than the fixed configuration of like delay for {lists[0]}; than "
            f"AdaptiveRAG* for {lists[1]}; than the median for {lists[2]}.")
    return said


def _of_feedback(feedback: pd.DataFrame) -> list[str]:
    said = []
    for (dataset, profiler), group in feedback.assign(profiler=feedback["system"].str.split(" ").str[0]).groupby(
            ["dataset", "profiler"], sort=False):
        means = group.groupby(group["system"].str.split(" ").str[-1])[["f1", "delay_s"]].mean()
        said.append(
            f"{dataset}, {profiler} profiler: feedback changes F1 by "
            f"{100 * (means['f1']['on'] / means['f1']['off'] - 1):+.2f}% and the delay by "
            f"{100 * (means['delay_s']['on'] / means['delay_s']['off'] - 1):+.1f}%.")
    return said
