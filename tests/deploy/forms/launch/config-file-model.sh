vllm serve --config whole.yaml
