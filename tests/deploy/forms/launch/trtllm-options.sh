cat <<EOF > extra.yml
kv_cache_config:
  enable_block_reuse: false
  dtype: fp8
  free_gpu_memory_fraction: 0.7
cuda_graph_config:
  enable_padding: true
max_batch_size: 64
print_iter_log: true
EOF
mpirun -n 1 trtllm-serve serve Qwen/Qwen3-8B --backend pytorch --max_batch_size 256 --extra_llm_api_options extra.yml
