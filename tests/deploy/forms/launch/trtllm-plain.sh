trtllm-serve nvidia/Llama-3.1-8B-Instruct-FP8 --tp_size 2 --max_batch_size 128 --max_num_tokens 4096 --max_seq_len 8192 --kv_cache_free_gpu_memory_fraction 0.85 --port 8000
