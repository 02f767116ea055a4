vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seq 72 --max_num_batched 3072 --gpu-mem=0.85 --no-enable-prefix
