python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B --enable-prefix-caching=False --enable-chunked-prefill True --swap-space 16 --device cuda --disable-log-requests
