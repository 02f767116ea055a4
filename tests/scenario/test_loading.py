"""Files, built-in names, `extends`, `--set`."""

import pytest

from hermes.config.yaml_document import parse_yaml
from hermes.errors import InputError
from hermes.scenario import builtin_scenarios, load_scenario
from hermes.scenario.loading import MAX_EXTENDS, apply_override, load_document, merge


def refused(*arguments):
    with pytest.raises(InputError) as caught:
        load_scenario(*arguments)
    return str(caught.value)


def test_load(small_file):
    scenario = load_scenario(small_file)
    assert (scenario.name, scenario.seed, len(scenario.workload)) == ("small", 7, 1)
    assert scenario.network.bandwidth == 32e9
    assert scenario.slo.ttft == 0.5
    assert scenario.clients[0].kind == "llm", "the kind of a client may be left out"
    assert scenario.source.base_dir == small_file.parent
    assert load_scenario(str(small_file)) == scenario
    assert load_scenario(scenario) is scenario


def test_unknown_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "expected a scenario file or the name of a built-in scenario" in refused("no-such-thing")
    assert refused("no-such-thing.yaml") == (
        "no-such-thing.yaml: expected a readable file, found no such file or directory"
    )
    assert refused(tmp_path) == f"{tmp_path}: a folder; name the file of a scenario"
    for name in builtin_scenarios():
        assert repr(name) in refused(name + "x"), "a near miss is suggested"


def test_a_file_that_is_not_a_mapping(tmp_path):
    path = tmp_path / "s.yaml"
    for text, found in [("", "nothing"), ("- 1", "a list"), ("3", "a value")]:
        path.write_text(text)
        assert refused(path).endswith(f"s.yaml:1:1: expected a mapping with the keys of a scenario, found {found}")


# -- extends -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Scenarios and commands", "Scenarios in YAML, `extends`, `--set`, built-in names")
def test_extends_merges_mappings_and_replaces_the_rest(small_file):
    variant = small_file.parent / "variant.yaml"
    variant.write_text("extends: small.yaml\nseed: 8\nworkload: {requests: 5}\nslo: {tpot: 10 ms}\n")
    base, scenario = load_scenario(small_file), load_scenario(variant)
    assert scenario.seed == 8
    assert scenario.workload[0].requests == 5
    assert scenario.workload[0].lengths == base.workload[0].lengths
    assert (scenario.slo.ttft, scenario.slo.tpot) == (0.5, 0.01)
    assert scenario.clients == base.clients


def test_another_kind_replaces_the_mapping(small_file):
    variant = small_file.parent / "variant.yaml"
    variant.write_text("extends: small.yaml\nrouter: {kind: round_robin}\n")
    assert load_scenario(variant).router.kind == "round_robin"
    variant.write_text("extends: small.yaml\nrouter: {load: input_tokens}\n")
    assert load_scenario(variant).router.load == "input_tokens"


def test_errors_name_the_file_that_says_it(small_file):
    variant = small_file.parent / "variant.yaml"
    variant.write_text("extends: small.yaml\nseed: 8\n")
    text = small_file.read_text().replace("requests: 20", "requests: many")
    small_file.write_text(text)
    assert refused(variant) == f"{small_file}:4:13: workload.requests: expected an integer, found 'many'"
    small_file.write_text(text.replace("many", "20"))
    variant.write_text("extends: small.yaml\n\nseed: x\n")
    assert refused(variant) == f"{variant}:3:7: seed: expected an integer, found 'x'"


def test_chains_cycles_and_bad_targets(small_file):
    folder = small_file.parent
    previous = "small.yaml"
    for i in range(MAX_EXTENDS + 2):
        (folder / f"c{i}.yaml").write_text(f"extends: {previous}\nseed: {i}\n")
        previous = f"c{i}.yaml"
    assert load_scenario(folder / "c5.yaml").seed == 5
    assert "scenarios extend one another" in refused(folder / previous)
    (folder / "a.yaml").write_text("extends: b.yaml")
    (folder / "b.yaml").write_text("extends: a.yaml")
    assert "b.yaml:1:10: extends: 'a.yaml' extends this file in turn" in refused(
        folder / "a.yaml")
    (folder / "a.yaml").write_text("extends: a.yaml")
    assert "extends this file in turn" in refused(folder / "a.yaml")
    (folder / "a.yaml").write_text("extends: smal.yaml")
    assert refused(folder / "a.yaml").endswith("found 'smal.yaml' (did you mean 'small.yaml'?)")
    (folder / "a.yaml").write_text("extends: [small.yaml]")
    assert "a.yaml:1:10: extends: expected the path of another scenario, found" in refused(folder / "a.yaml")


def test_paths_of_a_base_in_another_folder_stay_true(small_file):
    folder = small_file.parent / "below"
    folder.mkdir()
    (small_file.parent / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,20,3\n")
    small_file.write_text(small_file.read_text().replace(
        "{kind: fixed, prompt: 200, output: 20}", "{kind: trace, path: mine.csv, repeat: true}"))
    variant = folder / "variant.yaml"
    variant.write_text("extends: ../small.yaml\n")
    scenario = load_scenario(variant)
    assert scenario.workload[0].lengths.path == "../mine.csv"
    assert len(scenario.workload[0].draw(0, scenario.source.base_dir)) == 20


def test_merge_keeps_positions():
    base, over = parse_yaml("a: {x: 1, y: 2}", "base"), parse_yaml("\na: {y: 3}", "over")
    merged = merge(base, over)
    assert merged.plain() == {"a": {"x": 1, "y": 3}}
    assert merged.nearest("a.x")[0].mark.file == "base"
    assert (merged.nearest("a.y")[0].mark.file, merged.nearest("a.y")[0].mark.line) == ("over", 2)


# -- --set -------------------------------------------------------------------------------------------------------------


def test_overrides(small_file):
    scenario = load_scenario(small_file, [
        "seed=12", "clients.0.count=4", "workload.arrivals.rate=90 /min", "slo.e2e=3 s", "router={kind: round_robin}",
        "clients.1={count: 1, name: other, hardware: {kind: polynomial, profile: splitwise-2023-llama-2-70b-a100-tp8}, "
        "memory: {num_blocks: 9}}", "clients.1.memory.num_blocks=10",
    ])
    assert scenario.seed == 12
    assert [client.count for client in scenario.clients] == [4, 1]
    assert scenario.clients[1].memory.num_blocks == 10
    assert scenario.workload[0].arrivals.rate == 1.5
    assert scenario.slo.e2e == 3.0
    assert scenario.router.kind == "round_robin"


@pytest.mark.parametrize(("override", "line"), [
    ("seed=x", "--set seed=x: seed: expected an integer, found 'x'"),
    ("sead=1", "--set sead=1: sead: expected one of the keys "),
    ("seed", "--set seed: expected KEY.KEY=VALUE, found 'seed'"),
    ("=3", "--set =3: expected KEY.KEY=VALUE, found '=3'"),
    ("a..b=3", "--set a..b=3: expected KEY.KEY=VALUE, found 'a..b=3'"),
    ("seed.x=3", "--set seed.x=3: seed.x: expected a mapping or a list to set it in, found 7"),
    ("clients.x.count=3", "clients.x: expected a list index from 0 to 1 (1 appends), found 'x'"),
    ("clients.9.count=3", "clients.9: expected a list index from 0 to 1 (1 appends), found '9'"),
    ("clients.0.count=[", "--set clients.0.count=[: clients.0.count: expected valid YAML, found "),
    ("clients.0.cuont=3", "--set clients.0.cuont=3: clients.0.cuont: expected one of the keys kind, name, count, "
                          "model, role, platform, devices, engine, device,"),   # of an `llm` client
    ("clients.1.count=3", "--set clients.1.count=3: clients.1.model: missing: name a `model` and a `device`, or give "
                          "`hardware`"),
])
def test_wrong_overrides(small_file, override, line):
    message = refused(small_file, [override])
    assert line in message
    assert message.startswith("--set")


def test_a_path_on_the_command_line_is_relative_to_the_current_folder(small_file, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (here / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n")
    monkeypatch.chdir(here)
    scenario = load_scenario(small_file, ["workload.lengths={kind: trace, path: t.csv, repeat: true}"])
    assert scenario.workload[0].lengths.path == "here/t.csv"


def test_overrides_do_not_touch_the_document(small_file):
    document = load_document(small_file)
    before = document.plain()
    apply_override(document, "clients.0.count=9")
    assert document.plain() == before


# -- data --------------------------------------------------------------------------------------------------------------


def test_dicts(small_data, small_file, monkeypatch):
    assert load_scenario(small_data) == load_scenario(small_file)
    assert load_scenario(small_data, ["seed=1"]).seed == 1
    monkeypatch.chdir(small_file.parent)
    assert load_scenario({"extends": "small.yaml", "seed": 3}).seed == 3
    assert refused({**small_data, "seed": "x"}) == "seed: expected an integer, found 'x'"
    assert load_scenario(load_scenario(small_data), ["seed=5"]).seed == 5


def test_workloads_need_different_names(small_data):
    small_data["workload"] = [small_data["workload"], small_data["workload"]]
    assert refused(small_data) == "workload.0.name: two workloads are named 'main'; rename one"


def test_the_only_workload_of_a_resolved_scenario_needs_no_number():
    resolved = load_scenario("quickstart")   # its workload is a list by now
    changed = load_scenario(resolved, ["workload.requests=7"])
    assert changed == load_scenario(resolved, ["workload.0.requests=7"])
    assert [entry.requests for entry in changed.workload] == [7]
    two = load_scenario(resolved, {"workload.1": {**resolved.workload[0].model_dump(), "name": "other"}})
    with pytest.raises(InputError, match="a list index from 0 to 2"):
        load_scenario(two, ["workload.requests=7"])
