"""First page of `hermes --help`: commands by purpose, and examples."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["EXAMPLES", "GROUPS", "Groups"]

GROUPS: dict[str, dict[str, str]] = {
    "Simulate": {
        "init": "Write a first scenario, with comments.",
        "run": "Simulate a scenario.",
        "sweep": "Simulate a scenario in many variants.",
        "validate": "Check a scenario; print it with every default.",
        "scenarios": "List the scenarios that come with hermes.",
        "capacity": "Find the highest load that meets the SLO.",
        "availability": "Find the share of a month within the SLO.",
        "size": "Find the fewest devices that meet the SLO.",
        "optimize": "Find the settings that no others beat.",
        "study": "Run a study: simulations, tables, figures, findings.",
    },
    "Read results": {
        "compare": "Compare a run with another run, or with measurements.",
        "plot": "Draw a run or a sweep.",
        "advise": "Say what an autoscaler would have done.",
        "report": "Write a page about runs or a sweep.",
        "regress": "Record and check golden predictions of scenarios.",
    },
    "Inspect inputs": {
        "profile": "List and import hardware profiles and models.",
        "trace": "Import and describe request traces.",
        "pipeline": "List, show and draw pipelines of requests.",
        "network": "List and draw the links of a scenario.",
        "explain": "Print the terms of a step, and their sources.",
        "services": "Print the costs of embedding, retrieval etc.",
        "import": "Make a scenario from an engine's launch command.",
        "export": "Print what launches a scenario's engines.",
        "schema": "Explain a key of scenarios; print their schema.",
        "doctor": "Check this installation.",
    },
    "Measure and fit": {
        "calibrate": "Measure engines, links and indices.",
        "fit": "Fit a hardware profile to measured steps.",
        "fit-roofline": "Fit the roofline's efficiency to measured steps.",
        "fit-overhead": "Fit the serving stack's time per request.",
        "observe": "Drive a live server with a scenario's requests.",
        "conform": "Replay recorded schedules of an engine.",
        "accuracy": "Compare with all reference sets there are.",
    },
}
EXAMPLES = (
    ("hermes run quickstart", "simulate a built-in scenario"),
    ("hermes run chat.yaml -o runs/chat", "your own scenario; keep the results"),
    ("hermes run chat.yaml --set workload.arrivals.rate='20 /s'", "change a key"),
    ("hermes validate --resolved chat.yaml", "print every default"),
    ("hermes sweep sizes.yaml -o sizes", "run many variants; repeat to continue"),
    ("hermes compare runs/split runs/chat", "compare two runs of the same requests"),
    ("hermes plot runs/chat -o chat.png", "draw latencies"),
)


class Groups(TyperGroup):
    """The root command. Its help lists `GROUPS` and `EXAMPLES`, and under "More" any command without a group."""

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
        formatter.write("\nHelp on a command: hermes COMMAND --help\n"
                        "First steps: hermes init chat.yaml, then hermes run chat.yaml\n")
