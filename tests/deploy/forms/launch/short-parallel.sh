vllm serve Qwen/Qwen3-32B --tensor-parallel 2 --pipeline-par=2
