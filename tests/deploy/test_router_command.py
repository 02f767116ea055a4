"""Launch commands of routers as parts of a scenario. Defaults are those of SGLang's main.rs and router_args.py, and of
Dynamo's frontend configuration reference."""

from typing import Any

import pytest

from hermes.cli import main
from hermes.config.retries import SglangRetry
from hermes.deploy.objects import with_parts
from hermes.deploy.router_command import router_of
from hermes.errors import InputError
from hermes.gateway.config import MigrationConfig
from hermes.routing.dynamo_kv import DynamoKvConfig
from hermes.routing.sglang_cache_aware import SglangCacheAwareConfig
from hermes.scenario import load_scenario

PYTHON, FRONTEND = "python -m sglang_router.launch_router", "python3 -m dynamo.frontend --router-mode kv"
RETRY = {"retries": 4, "backoff": 0.05, "max_backoff": 30, "factor": 1.5, "jitter": 0.2, "per_try": 1800,
         "breaker": {"failures": 10, "successes": 3, "time": 60}}
TREE = {"cache_threshold": 0.3, "balance_abs_threshold": 64, "balance_rel_threshold": 1.5, "eviction_interval": 60,
        "max_tree_size": 2**26}
COSTS = {"overlap_credit": 1, "host_credit": 0.75, "prefill_load_scale": 1, "temperature": 0,
         "caches": {"kind": "events"}}


@pytest.mark.feature("Results, sweeps, studies", (
    "`hermes import router`: launch commands of SGLang's gateway and Dynamo's router"))
@pytest.mark.parametrize(("command", "router", "retry"), [
    (PYTHON, {}, {}),
    ("sglang-router", {"eviction_interval": 120}, {}),
    ("/usr/bin/smg launch --worker-urls http://a:1 http://b:2 --eviction-interval 30", {"eviction_interval": 30}, {}),
    (f"{PYTHON} --policy cache_aware --cache-threshold 0.5 --balance-abs-threshold=32 --balance-rel-threshold 1.0001 "
     "--eviction-interval-secs 90 --max-tree-size 16777216",
     {"cache_threshold": 0.5, "balance_abs_threshold": 32, "balance_rel_threshold": 1.0001, "eviction_interval": 90,
      "max_tree_size": 2**24}, {}),
    (f"{PYTHON} --retry-max-retries 3 --retry-initial-backoff-ms 100 --retry-max-backoff-ms 5000 "
     "--retry-backoff-multiplier 2 --retry-jitter-factor 0.1 --request-timeout-secs 600", {},
     {"retries": 2, "backoff": 0.1, "max_backoff": 5, "factor": 2, "jitter": 0.1, "per_try": 600}),
    (f"{PYTHON} --cb-failure-threshold 5 --cb-success-threshold 2 --cb-timeout-duration-secs 30 "
     "--cb-window-duration-secs 60", {}, {"breaker": {"failures": 5, "successes": 2, "time": 30}}),
    (f"{PYTHON} --retry-max-retries 0", {}, {"retries": 0}),
    (f"{PYTHON} --disable-retries --disable-circuit-breaker", {}, {"retries": 0, "breaker": None}),
    (f"{PYTHON} \\\n  --service-discovery --selector app=a role=b --host 0.0.0.0 --redis-url a "
     "--max-concurrent-requests -1", {}, {}),
    (f"docker run --rm -p 1:1 lmsysorg/sgl sh -c '{PYTHON} --cache-threshold 0.1'", {"cache_threshold": 0.1}, {}),
])
def test_sglang(command: str, router: dict[str, Any], retry: dict[str, Any]) -> None:
    parts = router_of(command).parts
    assert parts == {"router": {"kind": "sglang_cache_aware", **TREE, **router},
                     "gateway": {"retry": {"kind": "sglang", **RETRY, **retry}}}
    SglangCacheAwareConfig.model_validate(parts["router"])
    SglangRetry.model_validate(parts["gateway"]["retry"])


def test_the_binarys_defaults_are_the_simulated_ones() -> None:
    parts = router_of("sglang-router").parts
    assert SglangCacheAwareConfig.model_validate(parts["router"]) == SglangCacheAwareConfig()
    assert SglangRetry.model_validate({**parts["gateway"]["retry"], "per_try": None}) == SglangRetry()


@pytest.mark.parametrize(("command", "router"), [
    (FRONTEND, {}),
    (f"{FRONTEND} --router-kv-overlap-score-credit 0.8 --router-prefill-load-scale 2 --router-temperature 0.5",
     {"overlap_credit": 0.8, "prefill_load_scale": 2, "temperature": 0.5}),
    (f"{FRONTEND} --router-host-cache-hit-weight 0.5 --router-disk-cache-hit-weight .25", {"host_credit": 0.5}),
    (f"{FRONTEND} --router-kv-overlap-score-credit-decay 0.0 --migration-limit 0 --no-load-aware", {}),
    (f"{FRONTEND} --router-queue-threshold None --router-track-active-blocks --router-assume-kv-reuse", {}),
    (f"{FRONTEND} --no-router-kv-events --router-ttl-secs 60", {"caches": {"kind": "approximate", "ttl": 60}}),
    (f"{FRONTEND} --no-kv-events --kv-events --router-ttl-secs 60", {}),
    (f"{FRONTEND} --kv-overlap-score-weight 2.5 --http-port 8000", {"prefill_load_scale": 2.5}),
    (f"{FRONTEND} --router-kv-overlap-score-weight 0", {"prefill_load_scale": 0, "overlap_credit": 0}),
    (f"DYN_ROUTER_USE_KV_EVENTS=false DYN_LOG=debug {FRONTEND}", {"caches": {"kind": "approximate", "ttl": 120}}),
    ("export DYN_ROUTER_MODE=kv DYN_ROUTER_TEMPERATURE=1\npython -m dynamo.frontend --router-temperature 0.2",
     {"temperature": 0.2}),
    (f"docker run -e DYN_ROUTER_PREFILL_LOAD_SCALE=3 nvcr.io/x bash -c '{FRONTEND}'", {"prefill_load_scale": 3}),
])
def test_dynamo(command: str, router: dict[str, Any]) -> None:
    parts = router_of(command).parts
    assert parts == {"router": {"kind": "dynamo_kv", **COSTS, **router}}
    DynamoKvConfig.model_validate(parts["router"])


@pytest.mark.parametrize(("command", "migration"), [
    (f"{FRONTEND} --migration-limit 3", {"limit": 3}),
    ("DYN_MIGRATION_LIMIT=2 python -m dynamo.frontend", {"limit": 2}),
    ("python -m dynamo.frontend --migration-limit 1 --migration-max-seq-len 4096", {"limit": 1, "max_seq_len": 4096}),
])
def test_dynamos_migration(command: str, migration: dict[str, Any]) -> None:
    assert router_of(command).parts["gateway"] == {"migration": migration}
    MigrationConfig.model_validate(migration)


@pytest.mark.parametrize(("command", "router"), [
    (f"{PYTHON} --policy round_robin", {"kind": "round_robin"}),
    (f"{PYTHON} --policy random", {"kind": "random"}),
    ("python -m dynamo.frontend", {"kind": "round_robin"}),
    ("python -m dynamo.frontend --router-mode power-of-two", {"kind": "power_of_two", "load": "requests"}),
])
def test_other_policies(command: str, router: dict[str, Any]) -> None:
    assert router_of(command).parts["router"] == router


@pytest.mark.parametrize(("command", "told"), [
    (f"{PYTHON} --policy power_of_two", "--policy: expected one of cache_aware, round_robin, random"),
    (f"{PYTHON} --pd-disaggregation", "--pd-disaggregation: is not modelled"),
    (f"{PYTHON} --max-concurrent-requests 256", "--max-concurrent-requests: expected -1, as simulated"),
    (f"{PYTHON} --cache-threshold much", "--cache-threshold: expected a number from 0 on"),
    (f"{PYTHON} --balance-rel-threshold 1_5", "--balance-rel-threshold: expected a number from 0 on"),
    (f"{PYTHON} --cache-threshold 1e400", "--cache-threshold: expected a number from 0 on"),
    (f"{PYTHON} --balance-abs-threshold 1.5", "--balance-abs-threshold: expected a whole number"),
    (f"{PYTHON} --cache-threshold --port 1", "--cache-threshold: needs a value"),
    (f"{PYTHON} --disable-retries=yes", "--disable-retries: is a switch"),
    (f"{PYTHON} cache_aware", "command: a value without its flag"),
    (f"{FRONTEND} --router-queue-threshold 2", "--router-queue-threshold: expected None, as simulated"),
    (f"{FRONTEND} --load-aware", "--load-aware: is not modelled"),
    (f"{FRONTEND} --router-replica-sync", "--router-replica-sync: is not modelled"),
    (f"{FRONTEND} --router-kv-overlap-score-credit-decay 0.5", "-credit-decay: expected 0, as simulated"),
    (f"{FRONTEND} --router-temperature nan", "--router-temperature: expected a number from 0 on"),
    ("python -m dynamo.frontend --router-mode direct", "--router-mode: expected one of kv, round-robin"),
    (f"DYN_ROUTER_QUEUE_THRESHOLD=4 {FRONTEND}", "DYN_ROUTER_QUEUE_THRESHOLD: as --router-queue-threshold"),
    (f"DYN_ROUTER_ASSUME_KV_REUSE=false {FRONTEND}", "DYN_ROUTER_ASSUME_KV_REUSE: as --no-router-assume-kv-reuse"),
    (f"DYN_ROUTER_LOAD_AWARE=true {FRONTEND}", "DYN_ROUTER_LOAD_AWARE: as --load-aware"),
    (f"DYN_ROUTER_USE_KV_EVENTS=maybe {FRONTEND}", "DYN_ROUTER_USE_KV_EVENTS: expected true or false"),
    ("vllm serve a", "command: expected a command `python -m sglang_router"),
    ("", "command: expected a command `python -m sglang_router"),
])
def test_what_is_refused(command: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        router_of(command)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_retries_of_another_kind_go() -> None:
    document = with_parts("quickstart", {"gateway": {"retry": {"kind": "litellm", "cooldown": None}}}, None)
    assert document["gateway"]["retry"]["kind"] == "litellm"
    document = with_parts("quickstart", router_of(PYTHON).parts, None)
    assert load_scenario(document).gateway.retry.kind == "sglang"


def test_the_command_writes_a_scenario(tmp_path, capsys) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    for command, into, path in ((f"{PYTHON} --max-tree-size 9", "quickstart", first), (FRONTEND, str(first), second)):
        assert main(["import", "router", command, "--into", into, "-o", str(path)]) == 0
    assert "note: --max-tree-size counts characters there and tokens here" in capsys.readouterr().err
    assert load_scenario(str(first)).router.max_tree_size == 9
    assert load_scenario(str(second)).router.kind == "dynamo_kv"
    assert load_scenario(str(second)).gateway.retry.retries == 4   # a router says nothing of the gateway's retries
