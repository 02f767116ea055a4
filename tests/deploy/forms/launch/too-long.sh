vllm serve Qwen/Qwen3-32B -tp 2 \
  --max-model-len 131072
