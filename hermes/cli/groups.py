"""The first page of `hermes --help`: commands by what they are for, and examples."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["EXAMPLES", "GROUPS", "Groups"]

GROUPS: dict[str, dict[str, str]] = {
    "Simulate": {
        "run": "Simulate a scenario.",
        "sweep": "Simulate a scenario in many variants.",
        "validate": "Check a scenario, print it with every default.",
        "scenarios": "List the scenarios that come with hermes.",
        "study": "Run a study: simulations, tables, figures, findings.",
    },
    "Read results": {
        "compare": "Compare a run with another run, or with measurements.",
        "plot": "Draw a run or a sweep.",
        "regress": "Record what scenarios predict; check that it stays.",
    },
    "Look at inputs": {
        "profile": "Hardware profiles, models, devices and workloads.",
        "trace": "Request traces: import and describe.",
        "pipeline": "Pipelines: what a request does.",
        "network": "Networks: list and draw the links of a scenario.",
        "services": "Costs of embedding, retrieval and the like.",
        "schema": "Print the JSON Schema of scenarios, for editors.",
    },
    "Measure and fit": {
        "calibrate": "Measure engines, links and indices.",
        "fit": "Fit a hardware profile to measured steps.",
        "fit-roofline": "Fit the roofline's efficiency to measured steps.",
        "fit-overhead": "Fit the serving stack's time per request.",
        "validate-engine": "Simulate a real engine, run it, compare the two.",
        "conform": "Replay recorded schedules of an engine.",
    },
}
EXAMPLES = (
    ("hermes run quickstart", "simulate a built-in scenario"),
    ("hermes run chat.yaml -o runs/chat", "your own, and keep the results"),
    ("hermes run chat.yaml --set workload.arrivals.rate='20 /s'", "change a key"),
    ("hermes validate --resolved chat.yaml", "every default, written out"),
    ("hermes sweep sizes.yaml -o sizes", "many variants; again to continue"),
    ("hermes compare runs/split runs/chat", "two runs of the same requests"),
    ("hermes plot runs/chat -o chat.png --kind latency", "a figure"),
)


class Groups(TyperGroup):
    """The root command: its help shows `GROUPS` and `EXAMPLES`; a command in no group is under "More"."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        names = self.list_commands(ctx)
        commands = {name: command for name in names if (command := self.get_command(ctx, name)) is not None}
        more = {name: command.get_short_help_str(55) for name, command in commands.items()
                if not command.hidden and not any(name in group for group in GROUPS.values())}
        for title, group in {**GROUPS, "More": more}.items():
            rows = [(name.ljust(max(map(len, names))), text) for name, text in group.items() if name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        with formatter.section("Examples"):
            for example, text in EXAMPLES:
                formatter.write(f"  {example}  # {text}\n")
        formatter.write("\nMore about a command: hermes COMMAND --help.\n"
                        "First steps: docs/tutorial/first-scenario.md\n")
