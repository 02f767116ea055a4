vllm serve Qwen/Qwen3-8B --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'
