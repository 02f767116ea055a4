#!/bin/bash
ARGS=(
  --tensor-parallel-size 4
  --max-model-len 16k   # tokens
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
)
ARGS+=(--max-num-seqs 20)
exec vllm serve "Qwen/Qwen3-32B" "${ARGS[@]}" "$@"
