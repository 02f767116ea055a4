# on the first node
vllm serve Qwen/Qwen3-235B-A22B -tp 16 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1
# on the second node
vllm serve Qwen/Qwen3-235B-A22B -tp 16 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless
