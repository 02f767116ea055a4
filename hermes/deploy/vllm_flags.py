"""Flags of `vllm serve` and the keys of an LLM client that they set.

Names as in vLLM 0.33 (`vllm serve --help=all`), where a dash and an underscore mean the same. A switch is turned off
by `--no-NAME`; one that begins with `enable-` or `disable-` from 0.33 on by the opposite word as well
(`--disable-prefix-caching`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hermes.errors import InputError, Verbatim

__all__ = ["BESIDE", "CAPACITY", "EARLIER", "FLAGS", "NOT_MODELLED", "ON", "SHORT", "SWITCHES", "USUAL", "Flag",
           "canonical", "whole_number"]


@dataclass(frozen=True)
class Flag:
    """A flag that a key stands for.

    Args:
        path: Key of the client, by dotted path.
        kind: "int" (with a suffix: 8k, 8K), "float", "text", "switch" (`--x` and `--no-x`), or "off": a
            switch that sets false.
        default: A value that sets nothing, in addition to -1.
    """

    path: str
    kind: str
    default: str | None = None

    def value(self, name: str, text: str) -> Any:
        """Read a value. Raises `InputError`."""
        if self.kind == "int":
            return whole_number(name, text)
        if self.kind == "float":
            try:
                return float(text)
            except ValueError:
                raise InputError("a number", text, field=f"--{name}") from None
        return text


FLAGS = {
    "tensor-parallel-size": Flag("parallel.tp", "int"),
    "data-parallel-size": Flag("parallel.dp", "int"),
    "pipeline-parallel-size": Flag("parallel.pp", "int"),
    "enable-expert-parallel": Flag("parallel.ep", "switch"),
    "max-num-batched-tokens": Flag("scheduler.max_num_batched_tokens", "int"),
    "max-num-scheduled-tokens": Flag("scheduler.max_num_scheduled_tokens", "int"),
    "max-num-seqs": Flag("scheduler.max_num_seqs", "int"),
    "max-num-active-seqs": Flag("scheduler.max_num_active_seqs", "int"),
    "max-num-queued-reqs": Flag("scheduler.max_num_queued_reqs", "int"),
    "max-num-queued-tokens": Flag("scheduler.max_num_queued_tokens", "int"),
    "prefill-schedule-interval": Flag("scheduler.prefill_schedule_interval", "int", "1"),
    "api-server-count": Flag("api_servers.count", "int"),
    "stream-interval": Flag("api_servers.stream_interval", "int", "1"),
    "enable-lora": Flag("scheduler.max_loras", "switch"),   # without it vLLM ignores the next one
    "max-loras": Flag("scheduler.max_loras", "int"),
    "max-model-len": Flag("max_model_len", "int", "auto"),
    "gpu-memory-utilization": Flag("memory.utilization", "float"),
    "device-memory-utilization": Flag("memory.utilization", "float"),
    "block-size": Flag("memory.block_size", "int"),
    "num-gpu-blocks-override": Flag("memory.num_blocks", "int"),
    "enable-prefix-caching": Flag("memory.prefix_caching", "switch"),
    "disable-hybrid-kv-cache-manager": Flag("memory.hybrid", "off"),
    "enable-chunked-prefill": Flag("scheduler.enable_chunked_prefill", "switch"),
    "long-prefill-token-threshold": Flag("scheduler.long_prefill_token_threshold", "int"),
    "long-prefill-token-threshold-adaptive": Flag("scheduler.adaptive_long_prefill_threshold", "switch"),
    "scheduler-reserve-full-isl": Flag("scheduler.reserve_full_isl", "switch"),
    "watermark": Flag("scheduler.watermark", "float"),
    "scheduling-policy": Flag("scheduler.policy", "text"),
    "async-scheduling": Flag("scheduler.async_scheduling", "switch"),
}
SHORT = {
    "O": "optimization-level", "ac": "attention-config", "asc": "api-server-count", "cc": "compilation-config",
    "dc": "diffusion-config", "dcp": "decode-context-parallel-size", "dp": "data-parallel-size",
    "dpa": "data-parallel-address", "dpb": "data-parallel-backend", "dpe": "data-parallel-external-lb",
    "dph": "data-parallel-hybrid-lb", "dpl": "data-parallel-size-local",
    "dpm": "data-parallel-multi-port-external-lb", "dpn": "data-parallel-rank", "dpp": "data-parallel-rpc-port",
    "dpr": "data-parallel-start-rank", "ep": "enable-expert-parallel", "n": "nnodes",
    "pcp": "prefill-context-parallel-size", "pp": "pipeline-parallel-size", "q": "quantization",
    "r": "node-rank", "sc": "speculative-config", "tp": "tensor-parallel-size",
}

_BESIDE = """
    aggregate-engine-logging* allow-credentials* allow-deprecated-quantization* allowed-headers
    allowed-local-media-path allowed-media-domains allowed-methods allowed-origins
    anthropic-disabled-thinking-effort api-key chat-template chat-template-content-format code-revision
    cohere-format cohere-is-reasoning-model* collect-detailed-traces config-format cpu-distributed-timeout-seconds
    cudagraph-metrics* custom-histogram-buckets data-parallel-address data-parallel-backend
    data-parallel-external-lb* data-parallel-hybrid-lb* data-parallel-multi-port-external-lb* data-parallel-rank
    data-parallel-rpc-port data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port
    default-chat-template-kwargs device-ids disable-access-log-for-endpoints disable-fastapi-docs*
    disable-log-stats* disable-uvicorn-access-log* distributed-executor-backend distributed-timeout-seconds
    download-dir dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
    dp-supervisor-probe-timeout-s enable-auto-tool-choice* enable-cumem-allocator* enable-ep-weight-filter*
    enable-fault-tolerance* enable-flash-late-interaction* enable-force-include-usage* enable-log-deltas*
    enable-log-outputs* enable-log-requests* enable-logging-iteration-details* enable-mfu-metrics*
    enable-nccl-comm-suspend* enable-offline-docs* enable-per-request-metrics* enable-prompt-tokens-details*
    enable-request-id-headers* enable-scale-out* enable-server-load-tracking* enable-sleep-mode*
    enable-ssl-refresh* enable-tokenizer-info-endpoint* exclude-tools-when-tool-choice-none*
    fail-on-environ-validation* fault-tolerance-config fingerprint-mode fingerprint-value generation-config grpc*
    grpc-port h11-max-header-count h11-max-incomplete-event-size headless* hf-config-path hf-token host
    ignore-patterns io-processor-plugin jit-monitor-mode jit-monitor-verbose* kv-cache-metrics*
    kv-cache-metrics-sample kv-events-config load-format log-config-file log-error-stack* log-level logging-config
    logits-processors lora-modules master-addr master-port max-log-len max-logprobs max-lora-cls-labels
    max-parallel-loading-workers middleware model-loader-extra-config node-rank numa-bind* numa-bind-cpus
    numa-bind-nodes
    otlp-traces-endpoint override-generation-config per-request-spec-decode-metrics port profiler-config
    pt-load-map-location ray-workers-use-nsight* reasoning-effort-map reasoning-parser reasoning-parser-plugin
    renderer-num-workers response-role return-tokens-as-token-ids* revision root-path safetensors-load-strategy
    safetensors-prefetch-block-size safetensors-prefetch-num-threads seed served-model-name
    show-hidden-metrics-for-version shutdown-timeout skip-tokenizer-init* sleep-mode-backend
    sleep-mode-offload-cudagraph* sleep-preserve-parameter-names sse-keep-alive-interval ssl-ca-certs
    ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile tokenizer tokenizer-mode tokenizer-revision tokens-only*
    tool-call-parser tool-parser-plugin tool-server tool-strict-level trust-remote-code*
    trust-request-chat-template* trust-request-mm-kwargs* uds use-tqdm-on-load* uvicorn-log-level watchdog-config
    weight-transfer-config
"""
_NOT_MODELLED = """
    additional-config attention-backend attention-config aux-output-config convert cp-kv-cache-interleave-size
    cpu-offload-params dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
    dcp-kv-cache-interleave-size dcp-q-replicate* default-mm-loras diffusion-config disable-cascade-attn*
    disable-chunked-mm-input* disable-custom-all-reduce* disable-nccl-for-dp-synchronization*
    disable-sliding-window* dp-sync-interval ec-manager-config ec-transfer-config elastic-ep-max-dp-size
    enable-batch-sharded-sampling* enable-dbo* enable-elastic-ep* enable-eplb* enable-flashinfer-autotune*
    enable-hc-sp* enable-layerwise-nvtx-tracing* enable-mamba-cache-stochastic-rounding*
    enable-mamba-shared-prefix-checkpoint* enable-mixed-moe-lora-format* enable-mm-embeds*
    enable-moe-shared-loras* enable-prompt-embeds* enable-return-routed-experts* enable-shm-tensor-arena*
    enable-tower-connector-lora* enable-trace-replay* enforce-eager* engram-config eplb-config
    expert-placement-strategy fully-sharded-loras* gdn-prefill-backend hf-overrides interleave-mm-strings*
    ir-op-priority kda-decode-backend kda-prefill-backend kernel-config kv-sharing-fast-prefill*
    language-model-only* limit-mm-per-prompt linear-backend logprobs-mode lora-dtype lora-target-modules
    mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds
    mamba-ssm-cache-dtype mamba-ssu-algorithm max-cpu-loras media-io-kwargs mm-device-do-normalize*
    mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
    mm-encoder-fp8-scale-save-path mm-encoder-only* mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb
    mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs
    mm-shm-cache-max-object-size-mb mm-tensor-ipc model-class-overrides model-impl moe-backend monokernel* nnodes
    offload-backend offload-num-in-group offload-params offload-prefetch-step pooler-config
    prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit quantization-config
    reasoning-config replayssm-buffer-len return-sampling-mask* runner scheduler-cls skip-mm-profiling*
    sparse-indexer-topk-backend specialize-active-lora* structured-outputs-config swa-bounded-replay* ubatch-size
    use-fp64-gumbel* use-replayssm* video-pruning-method video-pruning-rate watermark-config worker-cls
    worker-extension-cls
"""   # `*`: a switch
_EARLIER_BESIDE = """
    device disable-frontend-multiprocessing* disable-log-requests* enable-reasoning* engine-use-ray*
    guided-decoding-backend max-seq-len-to-capture multi-step-stream-outputs preemption-mode swap-space
    tokenizer-pool-extra-config tokenizer-pool-size tokenizer-pool-type use-v2-block-manager* worker-use-ray*
"""
_EARLIER_NOT_MODELLED = """
    calculate-kv-scales cuda-graph-sizes disable-mm-preprocessor-cache* enable-prompt-adapter*
    lora-extra-vocab-size max-long-partial-prefills max-num-partial-prefills num-lookahead-slots
    num-scheduler-steps num-speculative-tokens rope-scaling rope-theta speculative-model task
"""
EARLIER = frozenset((_EARLIER_BESIDE + _EARLIER_NOT_MODELLED).replace("*", "").split())
"""Flags that versions before 0.33 have, of which no beginning names one."""
BESIDE = frozenset((_BESIDE + _EARLIER_BESIDE).replace("*", "").split())
"""Flags that do not change when a token is computed."""
NOT_MODELLED = frozenset((_NOT_MODELLED + _EARLIER_NOT_MODELLED).replace("*", "").split())
"""Flags that may change it, and that no key stands for."""
SWITCHES = frozenset(name[:-1] for name in (_BESIDE + _NOT_MODELLED + _EARLIER_BESIDE + _EARLIER_NOT_MODELLED).split()
                     if name.endswith("*"))
"""Those of the two lists that take no value."""
CAPACITY = {
    "decode-context-parallel-size": ("1", "ranks share the KV of a sequence, so that more sequences fit"),
    "prefill-context-parallel-size": ("1", "ranks share the tokens of a prompt, and its KV"),
    "kv-cache-dtype-skip-layers": ("", "layers keep KV of another precision"),
}
"""Flags that change how much KV fits and are not modelled: the value that changes nothing, and what others do."""
USUAL = {
    "nnodes": ("1",), "task": ("auto", "generate"), "runner": ("auto", "generate"),
    "convert": ("auto", "none"), "num-scheduler-steps": ("1",), "max-num-partial-prefills": ("1",),
    "model-impl": ("auto", "vllm"), "moe-backend": ("auto",), "lora-dtype": ("auto",), "ubatch-size": ("0",),
    "mamba-cache-dtype": ("auto",), "mamba-ssm-cache-dtype": ("auto",)}
"""Values of flags that are not modelled with which they change nothing."""
ON = frozenset((
    "dcp-q-replicate", "disable-cascade-attn", "disable-nccl-for-dp-synchronization",
    "enable-batch-sharded-sampling", "enable-flashinfer-autotune", "mm-device-do-normalize", "swa-bounded-replay",
))
"""Switches that are not modelled and on, or as vLLM finds best, where the command leaves them out."""

_ALL = BESIDE | NOT_MODELLED | FLAGS.keys()
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)\Z")


def whole_number(name: str, text: str) -> int:
    """Read a whole number as vLLM does: 8k is 8,000, 8K is 8,192. Raises `InputError`."""
    found = _NUMBER.match(text.strip())
    if found is None:
        raise InputError("a whole number, such as 8192, 8k (8,000) or 8K (8,192)", text, field=f"--{name}")
    factor = 1
    if found[2]:
        power = "kmgt".index(found[2].lower()) + 1
        factor = (1000 if found[2].islower() else 1024) ** power
    value = float(found[1]) * factor
    if not value.is_integer():   # nor is infinity, which 400 digits are
        raise InputError(Verbatim(f"{text} is not a whole number; write it out"), field=f"--{name}")
    return int(value)


def canonical(name: str) -> str:
    """Return the name of a flag as the lists have it, after `no-` where it turns a switch off."""
    for prefix, inverse in (("enable-", "disable-"), ("disable-", "enable-")):
        other = inverse + name.removeprefix(prefix)
        if name.startswith(prefix) and other in _ALL and name not in _ALL:
            return f"no-{other}"
    return name
