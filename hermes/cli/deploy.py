"""`hermes import` and `hermes export`: launch commands of engines as scenarios, and the other way round."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hermes.cli.output import Json, Overrides, Scenario, print_json

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    imports = typer.Typer(help="Make a scenario from the launch command of an engine.", no_args_is_help=True)
    imports.callback()(_nothing)
    imports.command("vllm")(import_vllm)
    app.add_typer(imports, name="import")
    exports = typer.Typer(help="Print what launches a scenario's engines.", no_args_is_help=True)
    exports.callback()(_nothing)
    exports.command("vllm")(export_vllm)
    exports.command("llm-d")(export_llm_d)
    exports.command("dynamo")(export_dynamo)
    app.add_typer(exports, name="export")


def _nothing() -> None:
    """Keep `vllm` a command of its own: a group of one command would be that command."""


Image = Annotated[str | None, typer.Option(metavar="NAME", help="Container image of the engines.")]
ManifestFile = Annotated[Path | None, typer.Option(
    "-o", "--output", metavar="FILE.yaml", help="Write the manifest here instead of printing it.")]


def import_vllm(
    command: Annotated[str, typer.Argument(metavar="COMMAND", help='In quotes: "vllm serve MODEL ..."; - reads stdin.',
                                           show_default=False)],
    device: Annotated[str, typer.Option(metavar="NAME", help="The device that it runs on.")],
    model: Annotated[str | None, typer.Option(metavar="NAME", help="A model description, or the path of a config.json, "
                                                                  "instead of the command's.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help="Engine version, such as vllm-0.32.")] = None,
    rate: Annotated[str, typer.Option(metavar="RATE", help="Requests per second of the scenario.")] = "10/s",
    workload: Annotated[str, typer.Option(metavar="NAME", help="Workload profile of the scenario.")]
    = "azure-conv-2023",
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE.yaml", help="Write the scenario here instead of printing it.")] = None,
) -> None:
    """Print a scenario for a `vllm serve` command, with a workload to replace by your own.

    Flags that are not modelled or unknown are named on stderr.
    """
    from hermes.config.writing import write_text
    from hermes.deploy.vllm import client_of
    from hermes.deploy.vllm_scenario import scenario_text

    read = client_of(sys.stdin.read() if command == "-" else command, model)
    text = scenario_text(read, device=device, engine=engine, rate=rate, workload=workload)
    for names, said in ((read.not_modelled, "not modelled"), (read.unknown, "unknown")):
        if names:
            print(f"hermes: warning: {said}: {', '.join(names)}", file=sys.stderr)
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
        print(f"written to {output}; next: hermes run {output}")


def export_vllm(
    scenario: Scenario,
    overrides: Overrides = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Print a `vllm serve` command for each group of LLM clients; its flags state what is simulated."""
    from hermes.deploy.vllm import commands_of
    from hermes.scenario import load_scenario

    checked = load_scenario(scenario, overrides)
    commands = commands_of(checked)
    if as_json:
        print_json([{"clients": name, "command": text} for name, text in commands])
        return
    counts = {client.name: client.count for client in checked.clients}
    for name, text in commands:
        print(f"# {name}: {counts[name]} of them")
        print(text)


def export_llm_d(scenario: Scenario, overrides: Overrides = [],  # noqa: B006
                 image: Image = None, output: ManifestFile = None) -> None:
    """Print Kubernetes manifests for llm-d: a Deployment for each group of LLM clients and an InferencePool."""
    _manifest("llm-d", scenario, overrides, image, output)


def export_dynamo(scenario: Scenario, overrides: Overrides = [],  # noqa: B006
                  image: Image = None, output: ManifestFile = None) -> None:
    """Print a Kubernetes manifest for Dynamo: a DynamoGraphDeployment with a component for each group of clients."""
    _manifest("dynamo", scenario, overrides, image, output)


def _manifest(kind: str, scenario: str, overrides: list[str], image: str | None, output: Path | None) -> None:
    from hermes.config.writing import write_text
    from hermes.deploy.manifests import manifest_text
    from hermes.scenario import load_scenario

    text = manifest_text(kind, load_scenario(scenario, overrides), image)
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
        print(f"written to {output}; next: read its first lines, then kubectl apply -f {output}")
