vllm serve Qwen/Qwen3-32B --rope-scaling '{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}' \
  --max-model-len 131072 -tp 2
