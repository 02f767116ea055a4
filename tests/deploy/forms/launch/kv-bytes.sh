vllm serve meta-llama/Llama-3.1-8B-Instruct --kv-cache-memory-bytes 8G --gpu-memory-utilization 0.5
