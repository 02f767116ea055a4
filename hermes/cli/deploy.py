"""`hermes import` and `hermes export`: launch commands of engines as scenarios, and the other way round."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hermes.cli.output import Answer, Overrides, Scenario, command_group, print_or_write

if TYPE_CHECKING:
    from hermes.deploy.vllm_features import Told

__all__ = ["export", "import_"]


Image = Annotated[str | None, typer.Option(metavar="NAME", help="Container image of the engines.")]
ManifestFile = Annotated[Path | None, typer.Option(
    "-o", "--output", metavar="FILE.yaml", help="Write the manifest here instead of printing it.")]
ScenarioFile = Annotated[Path | None, typer.Option(
    "-o", "--output", metavar="FILE.yaml", help="Write the scenario here instead of printing it.")]


Command = Annotated[str, typer.Argument(
    metavar="COMMAND|FILE", help='A command in quotes, such as "vllm serve MODEL ..." or "docker run ..."; or a file: '
    "a script, Helm values, Kubernetes manifests, a compose file; - reads stdin.", show_default=False)]
Device = Annotated[str, typer.Option(metavar="NAME", help="The device that it runs on.")]
Model = Annotated[str | None, typer.Option(
    metavar="NAME", help="A model description, or the path of a config.json, instead of the command's.")]
Rate = Annotated[str | None, typer.Option(
    metavar="RATE", help="Requests per second; left out, 80% of the highest that meets the SLO.")]
Workload = Annotated[str, typer.Option(metavar="NAME", help="Workload profile of the scenario.")]


def import_vllm(
    command: Command, device: Device, model: Model = None,
    engine: Annotated[str | None, typer.Option(
        metavar="NAME", help="Engine version, such as vllm-0.32, instead of the image's.")] = None,
    rate: Rate = None, workload: Workload = "azure-conv-2023",
    acceptance: Annotated[str | None, typer.Option(
        metavar="SHARE[,...]", help="Share of drafts that are accepted, where the command drafts (speculative "
        "decoding): 0.7, or by position 0.8,0.6,0.5.")] = None,
    draft_model: Annotated[str | None, typer.Option(
        metavar="NAME", help="A model description, or the path of a config.json, of the model that drafts.")] = None,
    draft_time: Annotated[str | None, typer.Option(
        metavar="TIME", help="Time of one run of what drafts, such as 1ms.")] = None,
    output: ScenarioFile = None,
) -> None:
    """Print a scenario for a launch command of vLLM or for manifests, at a rate that meets its SLO.

    Flags and fields that are not modelled or unknown are named on stderr, one a line.
    """
    from hermes.deploy.vllm_features import Told

    _import("vllm", command, device, model, engine, rate, workload, Told(acceptance, draft_model, draft_time), output)


def _importer(kind: str, what: str) -> Callable[..., None]:
    """Return a command for an engine whose commands say all that counts."""
    def imported(command: Command, device: Device, model: Model = None, rate: Rate = None,
                 workload: Workload = "azure-conv-2023", output: ScenarioFile = None) -> None:
        from hermes.deploy.vllm_features import Told

        _import(kind, command, device, model, None, rate, workload, Told(), output)

    imported.__doc__ = f"""Print a scenario for {what} or for manifests, at a rate that meets its SLO.

    Flags and fields that are not modelled or unknown are named on stderr, one a line.
    """
    return imported


def _import(kind: str, command: str, device: str, model: str | None, engine: str | None, rate: str | None,
            workload: str, told: Told, output: Path | None) -> None:
    from hermes.deploy.engine_scenario import read_source, text_of, together
    from hermes.deploy.refusals import explaining
    from hermes.explore.first_load import confirmed, fit, lone
    from hermes.explore.objective import rate_option

    asked = None if rate is None else rate_option(rate)
    text, file = text_of(command)
    source = read_source(text, file, kind, device=device, engine=engine, model=model, told=told)
    for warning in source.warnings:
        print(f"hermes: warning: {warning}", file=sys.stderr)
    header = [f"From {'a launch command' if file is None else file}. Replace the workload and the SLO by yours."]
    documents, notes = [], []
    for name in source.models:
        document = source.document(name, workload, asked)
        source.check(document)
        with source.explaining(name):
            alone = lone(document)
            found = fit(alone, None if asked is None else document["workload"]["arrivals"]["rate"])
        whose = f"{name}: " if len(source.models) > 1 else ""
        header.append(f"{whose}parallel: as the command says; an engine holds {alone.memory_text()}")
        header += [f"{whose}{key}: {why}" for key, why in found.reasons.items()]
        notes += [f"{whose}{note}" for note in found.notes]
        documents.append(found.document)
    document = together(documents, source)
    if len(documents) > 1:
        with explaining(source.written):
            document = confirmed(document)
    for note in (*source.notes, *notes):
        print(f"hermes: note: {note}", file=sys.stderr)
    _scenario(document, "\n".join([*header, *source.warnings, *source.notes]), output)


def import_objects(
    file: Annotated[Path, typer.Argument(
        metavar="FILE.yaml", help="EndpointPickerConfig (also in Helm values, a ConfigMap or an LLMInferenceService), "
        "HTTPRoute, HorizontalPodAutoscaler or ScaledObject.",
        show_default=False)],
    into: Annotated[str, typer.Option(metavar="SCENARIO", help="The scenario that gets the objects' keys.")],
    output: ScenarioFile = None,
) -> None:
    """Print a scenario with the router, gateway and autoscaler that objects of a cluster describe.

    A field that is not modelled is refused with its line.
    """
    from hermes.config.yaml_document import read_text
    from hermes.deploy.objects import with_parts
    from hermes.deploy.objects_read import read_objects

    read = read_objects(read_text(file), str(file))
    document = with_parts(into, read.parts, output, read.checks)
    for note in read.notes:
        print(f"hermes: note: {note}", file=sys.stderr)
    _scenario(document, f"{into} with the objects of {file.name}.", output)


def import_router(
    command: Annotated[str, typer.Argument(
        metavar="COMMAND", help='In quotes: "python -m sglang_router.launch_router ..." or "python -m dynamo.frontend '
        '..."; - reads stdin.', show_default=False)],
    into: Annotated[str, typer.Option(metavar="SCENARIO", help="The scenario that gets the router.")],
    output: ScenarioFile = None,
) -> None:
    """Print a scenario with the router, and the retries, of a launch command of SGLang's gateway or Dynamo's frontend.

    A flag that is not modelled is refused.
    """
    from hermes.deploy.engine_scenario import text_of
    from hermes.deploy.objects import with_parts
    from hermes.deploy.router_command import router_of

    read = router_of(text_of(command)[0])
    for note in read.notes:
        print(f"hermes: note: {note}", file=sys.stderr)
    _scenario(with_parts(into, read.parts, output), f"{into} with the router of a launch command.", output)


def import_planner(
    config: Annotated[str, typer.Argument(
        metavar="CONFIG", help="PlannerConfig of Dynamo's planner: a .yaml or .json file, or JSON in quotes; - reads "
        "stdin.", show_default=False)],
    into: Annotated[str, typer.Option(metavar="SCENARIO", help="The scenario whose groups it scales.")],
    output: ScenarioFile = None,
) -> None:
    """Print a scenario with the autoscaler dynamo_planner that Dynamo's configuration describes.

    A field that is not modelled is refused with its line.
    """
    from hermes.config.yaml_document import read_text
    from hermes.deploy.engine_scenario import text_of
    from hermes.deploy.objects import with_planner
    from hermes.deploy.planner import planner_of

    text, file = text_of(config) if config == "-" or config.lstrip().startswith("{") else (read_text(config), config)
    read = planner_of(text, file)
    for note in read.notes:
        print(f"hermes: note: {note}", file=sys.stderr)
    _scenario(with_planner(into, read, output), f"{into} with Dynamo's planner.", output)


def _scenario(document: dict[str, Any], header: str, output: Path | None) -> None:
    from hermes.config.yaml_writer import to_yaml

    print_or_write(to_yaml(document, header, compact=True), output, f"hermes run {output}")


def export_vllm(
    scenario: Scenario,
    overrides: Overrides = [],  # noqa: B006
) -> Answer:
    """Print a `vllm serve` command for each group of LLM clients; its flags state what is simulated."""
    from hermes.deploy.vllm import assumed_names, command_lines, commands_of
    from hermes.scenario import load_scenario

    checked = load_scenario(scenario, overrides)
    for line in assumed_names(checked):
        print(f"note: {line}", file=sys.stderr)
    return Answer([{"clients": name, "command": text} for name, text in commands_of(checked)], command_lines(checked))


def export_llm_d(scenario: Scenario, overrides: Overrides = [],  # noqa: B006
                 image: Image = None, output: ManifestFile = None) -> None:
    """Print Kubernetes manifests for llm-d: a Deployment for each group of LLM clients and an InferencePool."""
    _manifest("llm-d", scenario, overrides, image, output)


def export_dynamo(scenario: Scenario, overrides: Overrides = [],  # noqa: B006
                  image: Image = None, output: ManifestFile = None) -> None:
    """Print a Kubernetes manifest for Dynamo: a DynamoGraphDeployment with a component for each group of clients."""
    _manifest("dynamo", scenario, overrides, image, output)


def export_objects(scenario: Scenario, overrides: Overrides = [],  # noqa: B006
                   output: ManifestFile = None) -> None:
    """Print an EndpointPickerConfig, an HTTPRoute, a HorizontalPodAutoscaler and a ScaledObject, as far as there are.

    They say the router llm_d with flow control, time-outs and retries of the gateway, and autoscalers hpa and keda.
    """
    from hermes.config.yaml_writer import to_yaml
    from hermes.deploy.objects import objects_of
    from hermes.scenario import load_scenario

    found, notes = objects_of(load_scenario(scenario, overrides))
    text = "---\n".join(to_yaml(one, "" if place else "\n".join(notes)) for place, one in enumerate(found))
    print_or_write(text, output, "kubectl apply route and autoscalers, and give the picker its configuration")


def export_metrics(
    run: Annotated[Path, typer.Argument(
        metavar="RUN", help="A folder that `hermes run -o` wrote.", show_default=False)],
    every: Annotated[str, typer.Option(metavar="TIME", help="Simulated time between two samples.")] = "15 s",
    start: Annotated[str, typer.Option(
        metavar="TIME", help="When the simulation begins: seconds since 1970, or 2026-01-31T08:00:00Z.")] = "0",
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE", help="Write the metrics here instead of printing them.")] = None,
) -> None:
    """Print what Prometheus would have scraped from the engines of a run: OpenMetrics with names of vLLM or SGLang.

    `promtool tsdb create-blocks-from openmetrics FILE` makes blocks of it that a dashboard reads.
    """
    from hermes.results.files.openmetrics import engines_of, instant, interval, metric_lines
    from hermes.results.files.stored import open_run

    results = open_run(run)
    lines = metric_lines(results.record, engines_of(results), interval(every), instant(start))
    print_or_write((f"{line}\n" for line in lines), output,
                   f"promtool tsdb create-blocks-from openmetrics {output}")


def export_spans(
    run: Annotated[Path, typer.Argument(
        metavar="RUN", help="A folder that `hermes run -o` wrote.", show_default=False)],
    start: Annotated[str, typer.Option(
        metavar="TIME", help="When the simulation begins: seconds since 1970, or 2026-01-31T08:00:00Z.")] = "0",
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="FILE", help="Write the spans here instead of printing them.")] = None,
) -> None:
    """Print the requests of a run as OpenTelemetry spans (OTLP in JSON lines), with vLLM's names and attributes.

    The collector's `otlpjsonfile` receiver reads the file, and sends it to Jaeger or Tempo.
    """
    from hermes.results.files.openmetrics import instant
    from hermes.results.files.otlp_spans import span_lines
    from hermes.results.files.stored import open_run

    lines = span_lines(open_run(run).record, instant(start))
    print_or_write((f"{line}\n" for line in lines), output, "read it with the collector's otlpjsonfile receiver")


def _manifest(kind: str, scenario: str, overrides: list[str], image: str | None, output: Path | None) -> None:
    from hermes.deploy.manifests import manifest_text
    from hermes.scenario import load_scenario

    text = manifest_text(kind, load_scenario(scenario, overrides), image)
    print_or_write(text, output, f"read its first lines, then kubectl apply -f {output}")


import_ = command_group("Make a scenario from the launch command of an engine.", {
    "vllm": import_vllm, "sglang": _importer("sglang", "a launch command of SGLang"),
    "trtllm": _importer("trtllm", "a `trtllm-serve` command of TensorRT-LLM"), "objects": import_objects,
    "router": import_router, "planner": import_planner})
export = command_group("Print what launches a scenario's engines, or a run for dashboards.", {
    "vllm": export_vllm, "llm-d": export_llm_d, "dynamo": export_dynamo, "objects": export_objects,
    "metrics": export_metrics, "spans": export_spans})
