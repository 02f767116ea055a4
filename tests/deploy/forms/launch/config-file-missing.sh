vllm serve Qwen/Qwen3-8B --config /etc/vllm/absent.yaml
