docker run --gpus 1 vllm/vllm-openai:v0.11.2 --model Qwen/Qwen3-14B
