"""`plugins:` of a scenario and `--plugin`: files that register components of one's own."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from hermes import simulate
from hermes.cli import main
from hermes.config.registry import Registry
from hermes.config.yaml_document import as_node
from hermes.errors import InputError
from hermes.routing import ROUTERS
from hermes.scenario import load_scenario
from hermes.scenario.editor_schema import json_schema
from hermes.scenario.loading import apply_override

PLUGIN = '''
from typing import Any, Literal

from helper_beside import NAME
from hermes.config import ConfigModel
from hermes.routing import ROUTERS


@ROUTERS.register("plugin_first")
class First(ConfigModel):
    """All to one."""

    kind: Literal["plugin_first"] = "plugin_first"
    which: int = {which}

    def build(self, context: Any) -> Any:
        return self.model_copy(update={{}}).of(context)

    def of(self, context: Any) -> Any:
        client = context.candidates[self.which]

        class Router:
            def choose(self, stage: Any) -> Any:
                return client

        assert NAME == "beside"
        return Router()
'''
SCENARIO = """
plugins: [mine.py]
workload: {requests: 6, arrivals: {kind: uniform, rate: 2}, lengths: {kind: fixed, prompt: 20, output: 3}}
clients:
  - {name: a, count: 2, hardware: {kind: polynomial, profile: llama-3.1-8b-h100-tp1-bf16}, memory: {num_blocks: 99}}
router: {kind: plugin_first}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN.format(which=1))
    (tmp_path / "helper_beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "x.yaml").write_text(SCENARIO)
    yield tmp_path
    if "plugin_first" in ROUTERS:
        ROUTERS.unregister("plugin_first")


def served_by(results):
    return set(results.stages["client"])


@pytest.mark.feature("Scenarios and commands", "Plug-ins from files and packages")
def test_a_scenario_brings_its_plug_in_and_so_does_its_resolved_text(folder, tmp_path_factory, monkeypatch):
    assert served_by(simulate(folder / "x.yaml")) == {"a-1"}
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert main(["run", str(folder / "x.yaml"), "-o", "out"]) == 0
    ROUTERS.unregister("plugin_first")
    (folder / "mine.py").write_text(PLUGIN.format(which=0))   # another text, the same name
    assert served_by(simulate(elsewhere / "out" / "scenario.resolved.yaml", overrides=["router.which=0"])) == {"a-0"}


@pytest.mark.long
def test_worker_processes_import_the_file_of_every_sweep(folder):
    """Also after this process has imported it, when its module is no longer new here."""
    from hermes import run_sweep

    sweep = {"scenario": str(folder / "x.yaml"), "grid": {"workload.requests": [2, 3]}}
    frames = [run_sweep(sweep, folder / name, workers=1).frame() for name in ("once", "again")]
    assert [frame["status"].tolist() for frame in frames] == [["ok", "ok"]] * 2
    assert frames[0]["hash"].tolist() == frames[1]["hash"].tolist()


def test_a_plug_in_may_be_given_on_the_command_line(folder, capsys, monkeypatch):
    without = folder / "y.yaml"
    without.write_text(SCENARIO.replace("plugins: [mine.py]\n", ""))
    monkeypatch.chdir(folder)
    assert main(["validate", "y.yaml"]) == 2
    assert "router.kind: expected one of aibrix_prefix, context, " in capsys.readouterr().err
    assert main(["validate", "y.yaml", "--plugin", "mine.py"]) == 0
    assert main(["run", "y.yaml", "--plugin=mine.py"]) == 0


@pytest.mark.parametrize(("text", "said"), [
    ("x = 1\ny = x / 0\n", "mine.py:2: expected a plug-in that can be imported, found ZeroDivisionError"),
    ("def f(:\n", "mine.py:1: expected a plug-in that can be imported, found SyntaxError"),
    ("import nothing_of_that_name\n", "mine.py:1: expected a plug-in that can be imported, found ModuleNotFoundError"),
    ("from hermes.config import ConfigModel\nclass Mine(ConfigModel):\n    key: type(iter(()))\n",
     "mine.py:2: expected a plug-in that can be imported, found PydanticSchemaGenerationError"),
    (None, "mine.py: expected a Python file, found no such file or directory"),
])
def test_what_is_wrong_with_a_plug_in_is_one_line(folder, capsys, text, said):
    if text is None:
        (folder / "mine.py").unlink()
    else:
        (folder / "mine.py").write_text(text)
    assert main(["validate", str(folder / "x.yaml")]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.drawn
@pytest.mark.parametrize(("source", "reason"), [
    (None, "ModuleNotFoundError: No module named 'broken_package'"),
    ("Other = 1\n", "AttributeError: module 'broken_package' has no attribute 'Thing'"),
    ("def f(:\n", "SyntaxError: invalid syntax"),
    ("raise ValueError('of its\\nown')\n", "ValueError: of its own"),
    ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
])
def test_a_package_that_cannot_be_imported_is_one_line(monkeypatch, tmp_path, source, reason):
    if source is not None:
        (tmp_path / "broken_package.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_package", raising=False)
    point = EntryPoint("broken", "broken_package:Thing", "hermes.routers")
    offered = property(lambda self: {"broken": point} if self.name == "routers" else {})
    monkeypatch.setattr(Registry, "_offered", offered)
    data = {"workload": {"requests": 1, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 1,
                                                                                     "output": 1}},
            "clients": [{"hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"}}],
            "router": {"kind": "broken"}}
    with pytest.raises(InputError) as caught:
        load_scenario(data)
    text = str(caught.value)
    assert text.startswith("router: a router 'broken': the package broken_package that offers it cannot be imported")
    assert reason in text
    assert text.endswith("repair or uninstall broken_package, or choose another")
    assert "\n" not in text
    with pytest.raises(InputError, match=r"router.kind: expected one of aibrix_prefix, context, "):   # not offered
        load_scenario({**data, "router": {"kind": "broke"}})
    known = json_schema()["$defs"]["Scenario"]["properties"]["router"]["discriminator"]["mapping"]
    assert set(known) == set(ROUTERS) - {"broken"}


def test_appending_to_a_list():
    node = as_node({"a": {"b": [1]}, "c": 2})
    assert apply_override(node, "a.b+=5").plain() == {"a": {"b": [1, 5]}, "c": 2}
    assert apply_override(node, "a.new+=x").plain()["a"]["new"] == ["x"]
    with pytest.raises(InputError, match="a list to append to, found 2"):
        apply_override(node, "c+=3")


@pytest.mark.long
def test_a_simulation_imports_what_its_scenario_names(tmp_path):
    script = """
import sys
import hermes
from hermes.scenario.editor_schema import json_schema
from hermes.scenario import load_scenario
def loaded():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "hermes")
profile = "clients.0.hardware={kind: polynomial, profile: llama-3.1-70b-h100-tp4-bf16}"
hermes.simulate("quickstart", overrides=["workload.requests=5", profile])
with_profile = loaded()
results = hermes.simulate("quickstart", overrides=["workload.requests=5"])   # step times from kernel tables
of_tables = {f"hermes.hardware.{name}" for name in (
    "composed composed.boxes composed.composed_terms composed.elementwise composed.engine_links composed.kernel_curves "
    "composed.kernel_tables composed.piecewise composed.reduce_forms composed.row_curves composed.term_sources "
    "descriptions.links efficiency fitted.operator_curves fitted.operator_tables history lora roofline").split()}
of_tables |= {"hermes.config.columns", "hermes.config.tables"}
loaded = loaded()
assert set(loaded) - set(with_profile) <= of_tables, sorted(set(loaded) - set(with_profile) - of_tables)
apart = ("hermes.plugins", "hermes.calibration", "hermes.study", "hermes_folder")
below = [name for name in loaded if name.startswith(apart)]
assert not below, below
unused = {"matplotlib", "networkx", "pandas", "pyarrow", "rich", "scipy"} & set(sys.modules)
assert not unused, unused
from hermes.results.files.export import write_results
write_results(results, sys.argv[1])
assert "pandas" not in sys.modules, "writing the files of a run imports pandas, which takes as long as to simulate it"
results.requests
assert "pandas" in sys.modules
load_scenario({
    "workload": {"requests": 1, "arrivals": {"kind": "at_once"}, "pipeline": "metis",
                 "lengths": {"kind": "fixed", "prompt": 1, "output": 1}},
    "clients": [{"hardware": {"kind": "polynomial", "profile": "llama-3.1-8b-h100-tp1-bf16"},
                 "scheduler": {"kind": "heterogeneous"}}]})
assert "hermes.plugins.orthrus.heterogeneous" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
