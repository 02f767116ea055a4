vllm serve Qwen/Qwen3-30B-A3B-Thinking-2507-FP8 --max-model-len 80000
