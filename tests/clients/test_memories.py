"""Memories that a KV tier names as its bandwidth: rates, ports of clients, messages; and the shipped files."""

import pytest
from each import each

import hermes
from hermes.clients.kv_tier import Tier
from hermes.clients.tier_config import KvTierConfig
from hermes.config.validation import validate
from hermes.config.yaml_document import parse_yaml
from hermes.core.clock import Clock
from hermes.errors import InputError
from hermes.hardware.descriptions.files import names_in
from hermes.hardware.descriptions.memories import load_memory

FILE = "format: hermes-memory/1\nname: m\nbandwidth: 100 B/s\n{more}sources: [made up]\n"


@pytest.fixture
def tier(tmp_path):
    def made(more=""):
        (tmp_path / "m.yaml").write_text(FILE.format(more=more))
        config = validate(KvTierConfig, parse_yaml(f"{{name: t, capacity: 1 GB, bandwidth: {tmp_path}/m.yaml}}"), "x")
        found = Tier(config, Clock(), "")
        found.clients += [3, 7]
        return found
    return made


def ends(tier, reads):
    """Seconds after which reads (client, bytes) end that start together."""
    found = []
    for client, num_bytes in reads:
        tier.read(client, num_bytes, lambda: found.append(tier.env.now / 1e9))
    tier.env.run()
    return found


@pytest.mark.feature("Pipelines and services", "KV tiers: memories with ports, latency and sources")
@pytest.mark.parametrize(("more", "reads", "seconds"), [
    ("", [(3, 600)], [6.0]),                                   # 600 bytes at 100 B/s
    ("port: 60 B/s\n", [(3, 600)], [10.0]),                    # at the client's 60 B/s
    ("port: 60 B/s\n", [(3, 600), (3, 600)], [20.0, 20.0]),    # two reads of one client share its port
    ("port: 60 B/s\n", [(3, 600), (7, 600)], [12.0, 12.0]),    # two clients share 100 B/s: 50 each
    ("port: 60 B/s\n", [(3, 600), (7, 300)], [11.0, 6.0][::-1]),   # 300 at 50, then 300 at 60
])
def test_reads_share_the_tier_and_their_client_s_port(tier, more, reads, seconds):
    assert ends(tier(more), reads) == pytest.approx(seconds, abs=1e-6)


def test_latency_is_added_to_the_lookup(tier):
    assert tier("latency: 20 ms\n").lookup_ns == 20_000_000


def test_a_memory_without_a_port_is_its_bandwidth():
    tiers = {"levels": [{"name": "pool", "capacity": "1 TB", "scope": "all"}]}
    runs = []
    for bandwidth, lookup in (("60 GB/s", "10 us"), ("cxl-box", 0)):
        tiers["levels"][0] |= {"bandwidth": bandwidth, "lookup": lookup}
        runs.append(hermes.simulate("pipelines/prefix-tiers",
                                    overrides=["workload.requests=60", f"clients.0.tiers={tiers}"]))
    assert runs[0].summary["tiers"]["pool"]["read_bytes"] > 0
    assert (runs[0].metrics.ttft_ns == runs[1].metrics.ttft_ns).all()


@pytest.mark.parametrize(("bandwidth", "said"), [
    ("cxl-bix", "did you mean 'cxl-box'"), ("missing.yaml", "an existing file"), ("-5", "greater than 0"),
    ("32 GB/x", "bytes/s or a memory"),
])
def test_a_wrong_bandwidth_is_one_line(bandwidth, said):
    levels = f"[{{name: host, capacity: 1 GB, bandwidth: {bandwidth}}}]"
    with pytest.raises(InputError) as caught:
        hermes.simulate("pipelines/prefix-tiers", overrides=[f"clients.0.tiers.levels={levels}"])
    assert "clients.0.tiers.levels.0.bandwidth" in str(caught.value)
    assert said in str(caught.value)


@each("name", names_in("memories"))
def test_shipped_memories_name_the_source_of_each_figure(name):
    memory = load_memory(name)
    assert memory.name == name
    for figure in ("bandwidth", "port", "latency", "dollars_per_gb", "watts_per_gb"):
        if getattr(memory, figure):
            assert any(figure in source.partition(":")[0] or f"; {figure}" in source
                       for source in memory.sources), figure
    assert memory.dollars_per_gb is not None or any(source.startswith("no price") for source in memory.sources)
