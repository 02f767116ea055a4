python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 \
  --dp 8 --enable-dp-attention
