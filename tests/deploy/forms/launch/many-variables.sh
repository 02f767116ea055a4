docker run --gpus '"device=0,1"' -e HF_TOKEN=x -e VLLM_ATTENTION_BACKEND=FLASHINFER -e NCCL_P2P_LEVEL=NVL \
  -e VLLM_USE_DEEP_GEMM=1 -e VLLM_LOGGING_LEVEL=INFO -v ~/.cache/huggingface:/root/.cache/huggingface \
  vllm/vllm-openai:v0.32.0 Qwen/Qwen3-32B --moe-backend x --tensor-parallel-size 4 --kv-offloading-size 20 --kv-offloading-backend lmcache
