vllm serve meta-llama/Llama-3.1-8B-Instruct --config settings.yaml --max-num-seqs 40
