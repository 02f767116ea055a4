vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --kv-cache-memory-bytes=2147483648 --kv-cache-dtype fp8
