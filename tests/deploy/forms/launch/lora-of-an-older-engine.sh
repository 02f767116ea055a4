docker run --gpus 1 vllm/vllm-openai:v0.24.0 --model Qwen/Qwen3-14B --enable-lora --max-loras 2 --max-lora-rank 32 --max-num-seqs 60
