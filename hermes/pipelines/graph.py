"""Pipelines as graphs of stages, written in YAML, compiled to the generators that hand-written pipelines are.

A graph is a set of named nodes with `after:` edges (no cycles). A node starts when all nodes it comes after are done;
nodes that are ready at the same time run side by side. Three things make a graph more than a fixed order:

- `choice: LABEL` and `weight`: of the nodes with one label, one is taken; the others, and what comes only after them,
  are left out. A node that joins several runs if one of them ran.
- `probability`: the node itself is left out now and then; what comes after it runs all the same.
- `kind: loop`: a graph of its own that runs again with probability `again`, at most `max_times` times.

`copies` runs a stage several times side by side; the next starts when all copies are done.

What a request draws depends on its number and on the graph alone: everything is drawn when a graph (or a loop's round)
begins, in the order of its nodes, never in the order in which stages happen to end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PrivateAttr, WithJsonSchema, model_validator

from hermes.config import ConfigModel
from hermes.config.streams import request_stream
from hermes.core.branches import branch_into
from hermes.core.request import Pipeline
from hermes.core.sequence import Sequence as Generate
from hermes.core.stage import AnyOf, ServiceStage
from hermes.errors import InputError, suggest
from hermes.pipelines.expressions import Amount

__all__ = ["Graph", "GraphPipeline", "Node"]

MAX_COPIES = 1024
MAX_NODES = 250    # of one graph: where nodes are left out, the next are looked at from within
_LIMITS = {"copies": (0, MAX_COPIES), "branches": (1, MAX_COPIES), "prompt": (1, 2**53), "output": (1, 2**53)}


def _names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_NAMES = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})


class Node(ConfigModel):
    """One stage of a graph, or a loop."""

    kind: Annotated[str, Field(min_length=1, max_length=200)]
    """Kind of stage: `generate`, whatever a client serves (`embed`, `retrieve`, ...), or `loop`."""
    after: Annotated[list[str], BeforeValidator(_names), _NAMES] = Field(default_factory=list)
    """Nodes that have to be done before: a name, or a list of them."""
    model: Annotated[str, Field(max_length=4096)] = ""
    """Model that serves it; the workload's where left out."""
    tokens: str | int | float = "prompt"
    """Tokens a stage reads, e.g. `prompt` or `20 * 512`."""
    items: str | int | float = 1
    """Queries or documents of a stage."""
    prompt: str | int | float = "prompt"
    """Prompt tokens of a generation."""
    output: str | int | float = "output"
    """Output tokens of a generation."""
    branches: str | int | float = 1
    """Of a generation: answers side by side that share the prompt's KV; it is done with the last of them."""
    branch_spread: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How far the lengths of its branches lie from `output`: 0.3 is uniform from 0.7 to 1.3 of it."""
    kv: Annotated[str, Field(max_length=200)] = ""
    """Of a generation: the `fetch_kv` node whose tokens need no prefill."""
    background: bool = False
    """Whether the request is complete without it (a write-back); nothing can come after it."""
    input_bytes: str | int | float = 0
    """Bytes that come from the client of each node it comes after, over the network; from that of the `kv` node, what
    it found."""
    copies: str | int | float = 1
    """How many of it run side by side."""
    probability: Annotated[float, Field(ge=0, le=1)] = 1.0
    """How often it runs at all; what comes after it does not depend on it."""
    choice: Annotated[str, Field(max_length=200)] = ""
    """Of all nodes with this label, one runs."""
    weight: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """How often it is the one, relative to the others with its label; 1 where left out."""
    stages: dict[str, Node] = Field(default_factory=dict)
    """The graph that a loop repeats."""
    max_times: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """A loop's rounds at most; 1 where left out."""
    again: Annotated[float, Field(ge=0, le=1)] | None = None
    """How often a loop goes round once more; never where left out."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What else the service reads: `nprobe`, `top_k`, ..."""

    _amounts: dict[str, Amount] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("tokens", "items", "prompt", "output", "branches", "input_bytes", "copies"):
            self._amounts[name] = Amount(getattr(self, name), field=name)
            constant = self._amounts[name].constant
            if constant is not None:
                _limited(name, constant)
        if self.options and self.kind == "loop":
            raise InputError("options at the stages of a loop", next(iter(self.options)), field="options")
        if (self.kind == "loop") != bool(self.stages):
            raise InputError("stages for a loop, and only for a loop", self.kind, field="kind")
        if self.branches != 1 and self.kind != "generate":
            raise InputError("branches for `generate` only", self.kind, field="branches")
        if self.branch_spread and self.branches == 1:
            raise InputError("several branches for a spread among them", self.branches, field="branch_spread")
        return self

    @property
    def share(self) -> float:
        """Its weight among the nodes with its label."""
        return 1.0 if self.weight is None else self.weight

    @property
    def amounts(self) -> dict[str, Amount]:
        """Its amounts, by the names of their fields, to be called with what is known of a request."""
        return self._amounts


class Graph:
    """Checked nodes: order, parents, alternatives."""

    def __init__(self, nodes: Mapping[str, Node], path: str = "") -> None:
        """Raises `InputError` for names that are not there and for cycles. path: where it stands, for a loop's."""
        import networkx as nx  # takes longer to import than all of the package's pipelines

        if len(nodes) > MAX_NODES:
            raise InputError(f"at most {MAX_NODES} stages in a graph", len(nodes))
        self.nodes, self.path = dict(nodes), path
        self.net = nx.DiGraph()
        self.net.add_nodes_from(nodes)
        for name, node in nodes.items():
            for i, parent in enumerate(node.after):
                if parent not in nodes:
                    raise InputError(
                        f"one of {', '.join(nodes)}", parent, field=f"{name}.after.{i}",
                        suggestion=suggest(parent, nodes),
                    )
                if parent in node.after[:i]:
                    raise InputError("each node once", parent, field=f"{name}.after.{i}")
                self.net.add_edge(parent, name)
        try:
            cycle = [edge[0] for edge in nx.find_cycle(self.net)]
        except nx.NetworkXNoCycle:
            cycle = []
        if cycle:
            raise InputError("stages without a cycle", " after ".join([*reversed(cycle), cycle[-1]]), field=cycle[-1])
        # What every request asks of the graph, looked up once.
        self.amounts = {name: node.amounts for name, node in nodes.items()}
        self.waits = {name: len(node.after) for name, node in nodes.items()}
        self.children = {name: list(self.net.successors(name)) for name in nodes}
        order = {name: i for i, name in enumerate(nodes)}
        self.order = list(nx.lexicographical_topological_sort(self.net, key=order.__getitem__))
        for name, node in nodes.items():
            if node.kv and node.kv not in node.after:
                raise InputError(f"one of the nodes it comes after: {', '.join(node.after)}", node.kv,
                                 field=f"{name}.kv")
            if node.kv and (node.kind != "generate" or nodes[node.kv].kind not in ("fetch_kv", "loop")):
                raise InputError("a generation that reads what a `fetch_kv` node found", f"{node.kind} of {node.kv}",
                                 field=f"{name}.kv")
        for name, node in nodes.items():
            later = next((n for n, other in nodes.items() if name in other.after), None)
            if node.background and later is not None:
                raise InputError(f"nothing after a node in the background, and {later!r} is", name,
                                 field=f"{name}.background")
        # whose results a loop passes on
        waited = {parent for node in nodes.values() if not node.background for parent in node.after}
        self.last = [name for name in self.order if name not in waited and not nodes[name].background]
        self.choices: dict[str, list[str]] = {}
        for name, node in nodes.items():
            if node.choice:
                self.choices.setdefault(node.choice, []).append(name)
        self.loops: dict[str, Graph] = {}
        for name, node in nodes.items():
            if node.kind == "loop":
                try:
                    self.loops[name] = Graph(node.stages, f"{path}{name}.stages.")
                except InputError as error:
                    raise error.located(field=f"{name}.stages") from None

    @property
    def random(self) -> bool:
        """Whether two requests may take different ways."""
        return bool(self.choices) or any(
            node.probability < 1 or node.kind == "loop" or node.branch_spread for node in self.nodes.values()
        )

    def asked(self) -> Iterator[tuple[str, str]]:
        """(kind, model) of all stages it may ask for."""
        for name, node in self.nodes.items():
            if node.kind == "loop":
                yield from self.loops[name].asked()
            else:
                yield node.kind, node.model


class _Execution:
    """One pass through a graph for one request."""

    def __init__(
        self, graph: Graph, run: _Run, done: Callable[[list[Any]], None], inputs: list[Any],
        rng: random.Random | None,
    ) -> None:
        self.graph, self.run, self.done = graph, run, done
        self.inputs = inputs                          # stages whose results the graph's first nodes read
        self.left = graph.waits.copy()
        self.alive: dict[str, bool] = {}              # nodes that are through: whether what comes after may run
        self.results: dict[str, list[Any]] = {}       # their stages, for moving data
        self.open = len(graph.order)
        self.dead: set[str] = set()                   # not taken of their choices
        self.skipped: set[str] = set()                # left out by their probability
        self.rounds: dict[str, random.Random] = {}    # what a loop, or the lengths of branches, are drawn from
        if rng is not None:
            self._draw(graph, rng)

    def _draw(self, graph: Graph, rng: random.Random) -> None:
        """Everything that this pass leaves to chance."""
        for names in graph.choices.values():
            taken = rng.choices(names, [graph.nodes[name].share for name in names])[0]
            self.dead.update(name for name in names if name != taken)
        for name, node in graph.nodes.items():
            if node.probability < 1 and rng.random() >= node.probability:
                self.skipped.add(name)
            if node.kind == "loop" or node.branch_spread:
                self.rounds[name] = random.Random(rng.getrandbits(64))

    def begin(self) -> None:
        for name in self.graph.order:
            if not self.graph.waits[name]:
                self._start(name)

    def _start(self, name: str) -> None:
        node, run = self.graph.nodes[name], self.run
        parents = [parent for parent in node.after if self.alive[parent]]
        if name in self.dead or (node.after and not parents):
            self._through(name, False, [])
            return
        if len(parents) == 1:
            inputs = self.results[parents[0]]
        else:
            inputs = [stage for parent in parents for stage in self.results[parent]] if parents else self.inputs
        if node.kind == "loop" and name not in self.skipped:
            self._round(name, node, inputs, 1)
            return
        try:
            stages = [] if name in self.skipped else self._stages(name, node, inputs)
        except InputError as error:
            where = f"pipelines.{run.pipeline}.stages.{self.graph.path}{name}"
            raise error.located(field=where) from None
        if not stages:
            self.skipped.add(name)
            self._through(name, True, inputs)
            return
        if node.background:   # nothing comes after it, and nobody waits
            run.background.update(stages)
            for stage in stages:
                run.start(stage, _nothing)
            self._through(name, True, [])
            return
        if len(stages) == 1:
            run.start(stages[0], lambda _: self._through(name, True, stages))
            return
        left = len(stages)

        def one_done(_: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._through(name, True, stages)

        for stage in stages:
            run.start(stage, one_done)

    def _stages(self, name: str, node: Node, inputs: list[Any]) -> list[Any]:
        """The copies of a node's stage. `InputError` for amounts that are none, now that the request is known."""
        run, amounts = self.run, self.graph.amounts[name]
        copies = amounts["copies"].constant   # if it is one, it has been checked
        if copies is None:
            copies = _limited("copies", amounts["copies"](run.values))
        found = node.kv and self.alive[node.kv] and node.kv not in self.skipped
        fetched = self.results[node.kv] if found else []
        stages = [run.stage(node, amounts, inputs, fetched) for _ in range(copies)]
        if node.branches != 1:
            count = _limited("branches", amounts["branches"](run.values))
            for stage in stages:
                branch_into(stage, _outputs(stage.output_tokens, count, node.branch_spread, self.rounds.get(name)))
        return stages

    def _round(self, name: str, node: Node, inputs: list[Any], number: int) -> None:
        """One round of a loop, and further ones as long as nothing of a round has to be waited for."""
        rng, over, waiting = self.rounds[name], False, False

        def done(results: list[Any]) -> None:
            nonlocal inputs, over
            inputs, over = results, True
            if waiting and go_on():
                self._round(name, node, inputs, number + 1)

        def go_on() -> bool:
            if number < (node.max_times or 1) and rng.random() < (node.again or 0.0):
                return True
            self._through(name, True, inputs)
            return False

        while True:
            over = False
            _Execution(self.graph.loops[name], self.run, done, inputs, random.Random(rng.getrandbits(64))).begin()
            if not over:
                waiting = True
                return
            if not go_on():
                return
            number += 1

    def _through(self, name: str, alive: bool, results: list[Any]) -> None:
        self.alive[name], self.results[name] = alive, results
        self.open -= 1
        for child in self.graph.children[name]:
            self.left[child] -= 1
            if not self.left[child]:
                self._start(child)
        if not self.open:
            self.open = -1
            self.done([stage for n in self.graph.last if self.alive[n] for stage in self.results[n]])


class _Run:
    """A request on its way through a pipeline."""

    def __init__(self, request: Any, pipeline: str) -> None:
        self.request, self.pipeline = request, pipeline
        self.values = {
            "prompt": request.prompt_tokens, "output": request.output_tokens,
            "past": getattr(request, "past_tokens", 0),
        }
        self.running: dict[Any, Callable[[Any], None]] = {}
        self.background: set[Any] = set()

    def stage(self, node: Node, amounts: Mapping[str, Amount], inputs: list[Any], fetched: list[Any]) -> Any:
        values = self.values
        num_bytes = amounts["input_bytes"](values)
        moved = tuple([(stage, num_bytes) for stage in inputs if stage not in fetched]) if num_bytes else ()
        if fetched:
            moved += tuple(   # KV that was found comes along, and no more
                (stage, round(stage.cached_tokens * stage.client.kv_bytes_per_token)) for stage in fetched
                if stage.cached_tokens
            )
        if node.kind == "generate":
            prompt, output = max(1, amounts["prompt"](values)), max(1, amounts["output"](values))
            stage: Any = Generate(prompt, output, self.request.priority, self.request)
            stage.model, stage.inputs = node.model, moved
            found = sum(part.cached_tokens for part in fetched) if fetched else 0
            if found:   # the last prompt token is always computed: it gives the first output token
                stage.num_computed = stage.cached_tokens = min(found, prompt - 1)
            return stage
        return ServiceStage(
            node.kind, tokens=amounts["tokens"](values), items=amounts["items"](values),
            model=node.model, priority=self.request.priority, inputs=moved, options=node.options,
        )

    def start(self, stage: Any, done: Callable[[Any], None]) -> None:
        self.running[stage] = done
        self.request.start(stage)


class GraphPipeline:
    """A graph as a pipeline: calling it with a request gives the generator."""

    def __init__(self, name: str, graph: Graph, seed: int) -> None:
        self.name, self.graph, self.seed = name, graph, seed
        self.stages = tuple(dict.fromkeys(graph.asked()))
        self._random = any(g.random for g in self._graphs(graph))

    def _graphs(self, graph: Graph) -> Iterator[Graph]:
        yield graph
        for inner in graph.loops.values():
            yield from self._graphs(inner)

    def __call__(self, request: Any) -> Pipeline:
        # a generator of its own for each request: what one takes does not depend on the others
        rng = request_stream(self.seed, f"{self.name}/{request.id}") if self._random else None
        run = _Run(request, self.name)
        finished: list[bool] = []
        _Execution(self.graph, run, lambda results: finished.append(True), [], rng).begin()
        running = run.running
        while len(running) > len(run.background):
            # most of the time one runs: the same, with less to look through
            stage = yield next(iter(running)) if len(running) == 1 else AnyOf(*running)
            run.background.discard(stage)
            running.pop(stage)(stage)
        assert finished, "a graph ended before its last node"


def _limited(name: str, value: int) -> int:
    """An amount, if it is one that its field may be."""
    low, high = _LIMITS.get(name, (0, value))
    if not low <= value <= high:
        raise InputError(f"{low} to {high} {name}", value, field=name)
    return value


def _outputs(tokens: int, branches: int, spread: float, rng: random.Random | None) -> tuple[int, ...]:
    """Output tokens of each branch of a generation of `tokens`."""
    if rng is None:
        return (tokens,) * branches
    return tuple(max(1, round(tokens * rng.uniform(1 - spread, 1 + spread))) for _ in range(branches))


def _nothing(stage: Any) -> None:
    pass
