"""What `hermes export` writes, `hermes import vllm` reads: of every shipped scenario whose engines can be launched."""

import pytest
from each import check_each

from hermes.deploy.engine_scenario import read_source
from hermes.deploy.manifests import KINDS, manifest_text
from hermes.deploy.vllm import command_lines, launches_of
from hermes.errors import InputError
from hermes.scenario import builtin_scenarios, load_scenario

LOAD = {"requests": 1, "arrivals": {"kind": "at_once"}, "lengths": {"kind": "fixed", "prompt": 1, "output": 1}}
WRITERS = {"vllm": lambda scenario: "\n".join(command_lines(scenario)),
           **{kind: lambda scenario, kind=kind: manifest_text(kind, scenario) for kind in KINDS}}
PARTS = 8


def facts(launches):
    """What starts an engine, without its name: manifests write names in small letters."""
    return sorted((launch.count, launch.role, launch.model, launch.flags, launch.devices) for launch in launches)


@pytest.mark.drawn
@pytest.mark.parametrize("part", range(PARTS))
def test_every_scenario_comes_back(part):
    read = dict.fromkeys(WRITERS, 0)

    def check(name):
        scenario = load_scenario(name)
        try:
            launches = launches_of(scenario)
        except InputError:
            return
        engines = {launch.engine_version for launch in launches}
        engine = f"vllm-{engines.pop().rpartition('.')[0]}" if len(engines) == 1 else None
        for kind, write in WRITERS.items():
            try:
                text = write(scenario)
            except InputError as error:
                assert "engines of at most 8 devices" in str(error)   # of one machine, in manifests
                continue
            source = read_source(text, None, device=launches[0].device or "h100-sxm", model=None, engine=engine)
            back = load_scenario({"workload": LOAD, "clients": source.clients})
            assert facts(launches_of(back)) == facts(launches), kind
            read[kind] += 1

    check_each(list(builtin_scenarios())[part::PARTS], check)
    assert all(count >= 3 for count in read.values()), read
