vllm serve Qwen/Qwen3-8B --config wrong.yaml
