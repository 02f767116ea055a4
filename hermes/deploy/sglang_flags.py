"""Flags of SGLang's server and the keys of a client that they set.

Names as in SGLang's ServerArgs (python/sglang/srt/arg_groups, November 2026, read, not run), where argparse takes
unique beginnings (`--tp 4` is `--tp-size 4`).
"""

from __future__ import annotations

from hermes.deploy.flags import Kind
from hermes.deploy.vllm_flags import Flag

__all__ = ["ALIASES", "BESIDE", "FLAGS", "KINDS", "NOT_MODELLED", "REFUSED"]

FLAGS = {
    "tp-size": Flag("parallel.tp", "int"),
    "chunked-prefill-size": Flag("scheduler.chunked_prefill_size", "int"),
    "max-running-requests": Flag("scheduler.max_running_requests", "int"),
    "max-prefill-tokens": Flag("scheduler.max_prefill_tokens", "int"),
    "schedule-policy": Flag("scheduler.schedule_policy", "text"),
    "schedule-conservativeness": Flag("scheduler.schedule_conservativeness", "float"),
    "enable-mixed-chunk": Flag("scheduler.enable_mixed_chunk", "switch"),
    "disable-overlap-schedule": Flag("scheduler.disable_overlap_schedule", "switch"),
    "disable-radix-cache": Flag("scheduler.disable_radix_cache", "switch"),
    "page-size": Flag("memory.block_size", "int"),
    "mem-fraction-static": Flag("memory.utilization", "float"),
    "context-length": Flag("max_model_len", "int"),
    "disable-hybrid-swa-memory": Flag("memory.hybrid", "off"),
}
ALIASES = {
    "model": "model-path", "tensor-parallel-size": "tp-size", "data-parallel-size": "dp-size", "ep": "ep-size",
    "pipeline-parallel-size": "pp-size", "expert-parallel-size": "ep-size", "nccl-init-addr": "dist-init-addr",
    "decode-context-parallel-size": "dcp-size", "attention-context-parallel-size": "attn-cp-size",
    "moe-data-parallel-size": "moe-dp-size", "speculative-draft-model": "speculative-draft-model-path"}
READ = ("model-path", "dp-size", "ep-size", "max-total-tokens", "kv-cache-dtype", "dtype", "quantization", "config")
REFUSED = {
    "enable-dp-attention": ("", "ranks that share a model have requests and KV of their own"),
    "pp-size": ("1", "pipeline stages of SGLang"), "dcp-size": ("1", "ranks that share the KV of a sequence"),
    "attn-cp-size": ("1", "ranks that share the tokens of a prompt"), "moe-dp-size": ("1", "copies of the experts"),
    "disaggregation-mode": ("null", "SGLang's hand-over of KV between engines"),
    "speculative-algorithm": ("", "SGLang's drafts, which take memory and change every step"),
    "cpu-offload-gb": ("0", "weights in host memory"),
}
"""Flags that change what fits into memory or every step and are not modelled: the value that changes nothing, and what
others do."""
_BESIDE = """
    abort-on-priority-when-disabled* admin-api-key allow-auto-truncate* api-key base-gpu-id
    bucket-e2e-request-latency+ bucket-inter-token-latency+ bucket-time-to-first-token+ chat-template
    checkpoint-engine-wait-weights-before-ready* completion-template constrained-json-disable-any-whitespace*
    constrained-json-whitespace-pattern crash-dump-folder custom-sigquit-handler decode-log-interval
    default-chat-template-kwargs delete-ckpt-after-loading* device disable-outlines-disk-cache* dist-init-addr
    dist-timeout download-dir enable-cache-report* enable-metrics* enable-metrics-for-all-schedulers* enable-p2p-check*
    enable-request-time-stats-logging* enable-ssl-refresh* enable-trace* export-metrics-to-file*
    export-metrics-to-file-dir extra-metric-labels fastapi-root-path file-storage-path gc-warning-threshold-secs
    generation-tokens-buckets+ gpu-id-step grammar-backend grpc-mode* grpc-port hf-chat-template-name host
    incremental-streaming-output* kv-events-config load-format log-level log-level-http log-requests*
    log-requests-format log-requests-level log-requests-target+ lora-paths+ model-checksum model-config-parser
    model-loader-extra-config modelopt-checkpoint-restore-path modelopt-checkpoint-save-path modelopt-export-path
    nccl-port nnodes node-rank numa-node+ otlp-traces-endpoint port preferred-sampling-params prompt-tokens-buckets+
    quantization-param-path random-seed reasoning-parser return-input-ids* return-output-ids* revision
    sampling-defaults served-model-name show-time-cost* skip-server-warmup* skip-tokenizer-init* sleep-on-idle*
    soft-watchdog-timeout ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password stat-loggers
    strip-thinking-cache* tokenizer-backend tokenizer-mode tokenizer-path tool-call-parser tool-server trace-modules
    trust-remote-code* trust-request-chat-template* use-ray* warmups watchdog-timeout weight-loader-disable-mmap*
    weight-loader-prefetch-checkpoints* weight-loader-prefetch-num-threads weight-version
"""   # `*`: a switch, `+`: one value or more
_NOT_MODELLED = """
    attention-backend batch-notify-size bf16-gemm-backend cp-strategy cuda-graph-backend-decode
    cuda-graph-backend-prefill cuda-graph-bs-decode+ cuda-graph-bs-prefill+ cuda-graph-config cuda-graph-max-bs-decode
    cuda-graph-max-bs-prefill cuda-graph-prefill-max-context cuda-graph-tc-compiler dcp-comm-backend
    decode-attention-backend deepep-config deepep-dispatcher-output-dtype deepep-mode default-priority-value
    detokenizer-worker-num disable-attn-tp-gather* disable-chunked-prefix-cache* disable-cuda-graph*
    disable-cuda-graph-padding* disable-custom-all-reduce* disable-decode-cuda-graph* disable-fast-image-processor*
    disable-flashinfer-autotune* disable-flashinfer-cutlass-moe-fp4-allgather* disable-prefill-cuda-graph*
    disable-priority-preemption* disable-shared-experts-fusion* disable-tokenizer-batch-decode*
    disaggregation-bootstrap-port disaggregation-decode-enable-offload-kvcache*
    disaggregation-decode-enable-radix-cache* disaggregation-decode-extra-slots
    disaggregation-decode-polling-interval disaggregation-ib-device disaggregation-transfer-backend dsa-decode-backend
    dsa-prefill-backend dsa-topk-backend dwdp-size dynamic-batch-tokenizer-batch-size
    dynamic-batch-tokenizer-batch-timeout elastic-ep-backend enable-aiter-allreduce-fusion*
    enable-attn-tp-input-scattered* enable-cudagraph-gc* enable-custom-logit-processor*
    enable-deterministic-inference* enable-dp-lm-head* enable-dynamic-batch-tokenizer* enable-dynamic-chunking*
    enable-elastic-expert-backup* enable-eplb* enable-expert-distribution-metrics* enable-flashinfer-allreduce-fusion*
    enable-flexkv* enable-fp32-lm-head* enable-fused-moe-sum-all-reduce* enable-fused-qk-norm-rope*
    enable-hierarchical-cache* enable-hisparse* enable-layernorm-sp* enable-layerwise-nvtx-marker* enable-lmcache*
    enable-lora* enable-lora-overlap-loading* enable-memory-saver* enable-mfu-metrics* enable-mis* enable-mscclpp*
    enable-multi-layer-eagle* enable-multimodal* enable-nccl-nvls* enable-page-major-kv-layout* enable-pdmux*
    enable-precise-embedding-interpolation* enable-prefill-cp* enable-prefill-delayer* enable-prefix-mm-cache*
    enable-priority-scheduling* enable-profile-cuda-graph* enable-quant-communications* enable-return-hidden-states*
    enable-return-routed-experts* enable-session-radix-cache* enable-single-batch-overlap* enable-streaming-session*
    enable-strict-thinking* enable-symm-mem* enable-tf32-matmul* enable-tokenizer-batch-encode* enable-torch-compile*
    enable-torch-symm-mem* enable-two-batch-overlap* enable-unified-memory* enable-waterfill* encoder-only*
    ep-dispatch-algorithm ep-num-redundant-experts eplb-algorithm eplb-rebalance-num-iterations
    expert-distribution-recorder-mode flashinfer-a2a-dispatch-type flashinfer-allreduce-fusion-backend
    flashinfer-mla-disable-ragged* flashinfer-mxfp4-moe-precision flexkv-config-file forward-hooks fp4-gemm-backend
    fp8-gemm-backend gc-threshold+ hicache-host-memory-mode hicache-io-backend hicache-mem-layout hicache-ratio
    hicache-size hicache-storage-backend hicache-storage-backend-extra-config hicache-storage-prefetch-policy
    hicache-write-policy hisparse-config image-processor-backend init-expert-location is-embedding*
    json-model-override-args keep-mm-feature-on-device* kt-cpuinfer kt-method kt-num-gpu-experts kt-threadpool-count
    kt-weight-path language-model-only* language-only* limit-mm-data-per-request linear-attn-backend
    lmcache-config-file load-balance-method lora-backend lora-eviction-policy lora-target-modules+
    mamba-backend mamba-full-memory-ratio mamba-radix-cache-strategy mamba-ssm-dtype mamba-track-interval
    max-inflight-prefill-tokens max-loaded-loras max-lora-chunk-size max-lora-rank max-loras-per-batch
    max-mamba-cache-size max-queued-requests min-free-slots-delay mm-attention-backend mm-enable-dp-encoder*
    mm-process-config model-impl modelopt-quant moe-a2a-backend moe-dense-tp-size moe-runner-backend
    mooncake-ib-device num-continuous-decode-steps num-reserved-decode-tokens offload-group-size offload-mode
    offload-num-in-group offload-prefetch-step pp-async-batch-depth pp-max-micro-batch-size prefill-attention-backend
    prefill-decode-interval prefill-max-requests prefill-only-disable-kv-cache* priority-scheduling-preemption-threshold
    quantize-and-serve* radix-cache-backend radix-eviction-policy radix-eviction-policy-config retraction-policy
    rl-on-policy-target schedule-low-priority-values-first* scheduler-recv-interval sm-group-num
    speculative-accept-threshold-acc speculative-accept-threshold-single speculative-attention-mode
    speculative-draft-attention-backend speculative-draft-model-path speculative-draft-model-quantization
    speculative-draft-window-size speculative-eagle-topk speculative-num-draft-tokens speculative-num-steps
    speculative-token-map stream-interval swa-full-tokens-ratio tbo-token-distribution-threshold
    tokenizer-worker-num torch-compile-max-bs triton-attention-num-kv-splits triton-attention-reduce-in-fp32*
"""
_EARLIER = """
    cuda-graph-bs+ cuda-graph-max-bs disable-jump-forward* enable-deepep-moe* enable-ep-moe* enable-flashinfer-mla*
    enable-flashinfer-cutlass-moe* enable-flashinfer-trtllm-moe* max-micro-batch-size stream-output*
    torchao-config nsa-decode-backend nsa-prefill-backend
"""
BESIDE = frozenset(word.rstrip("*+") for word in _BESIDE.split())
"""Flags that do not change when a token is computed."""
NOT_MODELLED = frozenset(word.rstrip("*+") for word in (_NOT_MODELLED + _EARLIER).split())
"""Flags that may change it, and that no key stands for."""
EARLIER = frozenset(word.rstrip("*+") for word in _EARLIER.split())


def _kind(word: str) -> Kind:
    return "switch" if word.endswith("*") else "values" if word.endswith("+") else "value"


KINDS: dict[str, Kind] = {
    **{word.rstrip("*+"): _kind(word) for word in (_BESIDE + _NOT_MODELLED + _EARLIER).split()},
    **dict.fromkeys((*READ, *ALIASES, *REFUSED), "value"), "enable-dp-attention": "switch",
    **{name: "switch" if flag.kind in ("switch", "off") else "value" for name, flag in FLAGS.items()}}
"""Every word that names a flag."""
