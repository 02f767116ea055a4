"""Pipelines as graphs of stages, written in YAML and compiled to generators.

A graph is a set of named nodes with `after:` edges (no cycles). A node starts when all nodes of its `after` are done;
nodes that are ready at the same time run side by side. Three keys make the order vary:

- `choice: LABEL` and `weight`: of the nodes with one label, one is taken. The others, and nodes that come only after
  them, are left out. A node that joins several runs if one of them ran.
- `probability`: the node itself is sometimes left out; the nodes after it run in any case.
- `kind: loop`: a graph of its own that runs again with probability `again`, at most `max_times` times.

`copies` runs a stage several times side by side; the next node starts when all copies are done.

The random choices of a request depend only on its number and on the graph: all are drawn when a graph (or a loop's
round) begins, in the order of its nodes, and not in the order in which stages end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hermes.config.streams import request_stream
from hermes.core.branches import branch_into
from hermes.core.generation import Generation as Generate
from hermes.core.request import Pipeline
from hermes.core.stage import AnyOf, ServiceStage
from hermes.errors import InputError, suggest
from hermes.pipelines.expressions import Amount
from hermes.pipelines.nodes import GenerateNode, LoopNode, Node, StageNode, limited

__all__ = ["Graph", "GraphPipeline"]

MAX_NODES = 250    # of one graph: skipping nodes visits the next ones recursively


class Graph:
    """Checked nodes with their order, parents and alternatives."""

    def __init__(self, nodes: Mapping[str, Node], path: str = "") -> None:
        """Check the nodes. Raises `InputError` for unknown names and for cycles. path: of a loop's graph, its place."""
        import networkx as nx  # its import takes longer than that of all pipelines

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
        # Looked up once, since every request needs it.
        self.amounts = {name: node.amounts for name, node in nodes.items() if isinstance(node, StageNode)}
        self.waits = {name: len(node.after) for name, node in nodes.items()}
        self.children = {name: list(self.net.successors(name)) for name in nodes}
        order = {name: i for i, name in enumerate(nodes)}
        self.order = list(nx.lexicographical_topological_sort(self.net, key=order.__getitem__))
        for name, node in nodes.items():
            if not isinstance(node, GenerateNode) or not node.kv:
                continue
            if node.kv not in node.after:
                raise InputError(f"one of the nodes it comes after: {', '.join(node.after)}", node.kv,
                                 field=f"{name}.kv")
            if nodes[node.kv].kind not in ("fetch_kv", "loop"):
                raise InputError("a generation that reads what a `fetch_kv` node found", f"{node.kind} of {node.kv}",
                                 field=f"{name}.kv")
        for name, node in nodes.items():
            later = next((n for n, other in nodes.items() if name in other.after), None)
            if _in_background(node) and later is not None:
                raise InputError(f"nothing after a node in the background, and {later!r} is", name,
                                 field=f"{name}.background")
        # a loop passes their results on
        waited = {parent for node in nodes.values() if not _in_background(node) for parent in node.after}
        self.last = [name for name in self.order if name not in waited and not _in_background(nodes[name])]
        self.choices: dict[str, list[str]] = {}
        for name, node in nodes.items():
            if node.choice:
                self.choices.setdefault(node.choice, []).append(name)
        self.loops: dict[str, Graph] = {}
        for name, node in nodes.items():
            if isinstance(node, LoopNode):
                try:
                    self.loops[name] = Graph(node.stages, f"{path}{name}.stages.")
                except InputError as error:
                    raise error.located(field=f"{name}.stages") from None
            elif not node.after and not path and node.input_bytes != 0:
                raise InputError("a node before it that sends them (`after`)", node.input_bytes,
                                 field=f"{name}.input_bytes")

    @property
    def generates(self) -> bool:
        """Whether the request waits for a generation of it."""
        return any(map(self.is_generation, self.nodes))

    def is_generation(self, name: str) -> bool:
        """Whether a node is a generation that the request waits for, or a loop with one."""
        node = self.nodes[name]
        return self.loops[name].generates if isinstance(node, LoopNode) else (
            isinstance(node, GenerateNode) and not node.background)

    @property
    def random(self) -> bool:
        """Whether random choices make two requests differ."""
        return bool(self.choices) or any(node.probability < 1 or _draws(node) for node in self.nodes.values())

    def requested_stages(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, model) of all stages that it may request."""
        for name, node in self.nodes.items():
            if isinstance(node, LoopNode):
                yield from self.loops[name].requested_stages()
            else:
                yield node.kind, node.model


class _Execution:
    """One pass through a graph for one request."""

    def __init__(
        self, graph: Graph, run: _Run, done: Callable[[list[Any]], None], inputs: list[Any],
        rng: random.Random | None, *, goes_on: bool = False,
    ) -> None:
        """goes_on: Whether a generation comes after this pass."""
        self.graph, self.run, self.done, self.goes_on = graph, run, done, goes_on
        self.inputs = inputs                          # stages that the graph's first nodes read
        self.left = graph.waits.copy()
        self.alive: dict[str, bool] = {}              # finished nodes: whether the nodes after may run
        self.results: dict[str, list[Any]] = {}       # their stages, the sources of data
        self.open = len(graph.order)
        self.dead: set[str] = set()                   # the alternatives not taken
        self.skipped: set[str] = set()                # left out by probability
        self.rounds: dict[str, random.Random] = {}    # random numbers of a loop, or of the lengths of branches
        if rng is not None:
            self._draw(graph, rng)

    def _draw(self, graph: Graph, rng: random.Random) -> None:
        """Draw all random choices of this pass."""
        for names in graph.choices.values():
            taken = rng.choices(names, [graph.nodes[name].share for name in names])[0]
            self.dead.update(name for name in names if name != taken)
        for name, node in graph.nodes.items():
            if node.probability < 1 and rng.random() >= node.probability:
                self.skipped.add(name)
            if _draws(node):
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
        if isinstance(node, LoopNode):
            if name in self.skipped:
                self._through(name, True, inputs)
            else:
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
        if node.background:   # the request does not wait for it
            for stage in stages:
                run.request.start(stage)
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

    def _generates_after(self, name: str) -> bool:
        """Whether a generation runs after a node, so that the user reads nothing of what the node gives. Another round
        of a loop is not known yet."""
        graph, waiting, seen = self.graph, [name], self.dead.copy()
        while waiting:
            for child in graph.children[waiting.pop()]:
                if child not in seen:
                    if child not in self.skipped and graph.is_generation(child):
                        return True
                    seen.add(child)
                    waiting.append(child)
        return self.goes_on

    def _stages(self, name: str, node: StageNode, inputs: list[Any]) -> list[Any]:
        """Return the copies of a node's stage. Raises `InputError` for amounts that are invalid for this request."""
        run, amounts = self.run, self.graph.amounts[name]
        copies = amounts["copies"].constant   # a constant was checked when the graph was built
        if copies is None:
            copies = limited("copies", amounts["copies"](run.values))
        if not isinstance(node, GenerateNode):
            return [run.stage(node, amounts, inputs, []) for _ in range(copies)]
        found = node.kv and self.alive[node.kv] and node.kv not in self.skipped
        fetched = self.results[node.kv] if found else []
        stages = [run.stage(node, amounts, inputs, fetched) for _ in range(copies)]
        if self._generates_after(name):
            for stage in stages:
                stage.is_read = False
        if node.branches != 1:
            count = limited("branches", amounts["branches"](run.values))
            for stage in stages:
                branch_into(stage, _outputs(stage.output_tokens, count, node.branch_spread, self.rounds.get(name)))
        return stages

    def _round(self, name: str, node: LoopNode, inputs: list[Any], number: int) -> None:
        """Run one round of a loop, and further rounds as long as a round completes at once."""
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
            _Execution(self.graph.loops[name], self.run, done, inputs, random.Random(rng.getrandbits(64)),
                       goes_on=self._generates_after(name)).begin()
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
    """One request in a pipeline."""

    def __init__(self, request: Any, pipeline: str) -> None:
        self.request, self.pipeline = request, pipeline
        self.values = {
            "prompt": request.prompt_tokens, "output": request.output_tokens,
            "past": getattr(request, "past_tokens", 0),
        }
        self.running: dict[Any, Callable[[Any], None]] = {}

    def stage(self, node: StageNode, amounts: Mapping[str, Amount], inputs: list[Any], fetched: list[Any]) -> Any:
        values = self.values
        num_bytes = amounts["input_bytes"](values)
        moved = tuple([(stage, num_bytes) for stage in inputs if stage not in fetched]) if num_bytes else ()
        if fetched:
            moved += tuple(   # only the KV that was found is moved
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
    """A graph as a pipeline: call it with a request to get the generator."""

    def __init__(self, name: str, graph: Graph, seed: int) -> None:
        self.name, self.graph, self.seed = name, graph, seed
        self.stages = tuple(dict.fromkeys(graph.requested_stages()))
        self._random = any(g.random for g in self._graphs(graph))

    def _graphs(self, graph: Graph) -> Iterator[Graph]:
        yield graph
        for inner in graph.loops.values():
            yield from self._graphs(inner)

    def __call__(self, request: Any) -> Pipeline:
        # random numbers of the request's own: its choices do not depend on other requests
        rng = request_stream(self.seed, f"{self.name}/{request.id}") if self._random else None
        run = _Run(request, self.name)
        finished: list[bool] = []
        _Execution(self.graph, run, lambda results: finished.append(True), [], rng).begin()
        running = run.running
        while running:
            # usually one stage runs: cheaper than an AnyOf
            stage = yield next(iter(running)) if len(running) == 1 else AnyOf(*running)
            running.pop(stage)(stage)
        assert finished, "a graph ended before its last node"


def _in_background(node: Node) -> bool:
    return isinstance(node, StageNode) and node.background


def _draws(node: Node) -> bool:
    """Whether the node draws random numbers beyond its choice and its probability."""
    return isinstance(node, LoopNode) or (isinstance(node, GenerateNode) and node.branch_spread > 0)


def _outputs(tokens: int, branches: int, spread: float, rng: random.Random | None) -> tuple[int, ...]:
    """Return the output tokens of each branch of a generation of `tokens`."""
    if rng is None:
        return (tokens,) * branches
    return tuple(max(1, round(tokens * rng.uniform(1 - spread, 1 + spread))) for _ in range(branches))

