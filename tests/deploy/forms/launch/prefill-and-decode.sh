CUDA_VISIBLE_DEVICES=0 vllm serve meta-llama/Llama-3.1-8B-Instruct --port 8100 --max-model-len 12000 \
    --kv-transfer-config '{"kv_connector":"P2pNcclConnector","kv_role":"kv_producer","kv_rank":0,"kv_parallel_size":2}' &
CUDA_VISIBLE_DEVICES=1 vllm serve meta-llama/Llama-3.1-8B-Instruct --port 8200 --max-model-len 12000 --max-num-seqs 30 \
    --kv-transfer-config.kv_connector MooncakeConnector --kv-transfer-config.kv_role kv_consumer &
python3 toy_proxy.py --port 8000
