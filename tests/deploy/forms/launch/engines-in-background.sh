for GPU in 0; do
  CUDA_VISIBLE_DEVICES=$GPU nohup vllm serve Qwen/Qwen3-8B --port 8001 --max-num-seqs 50 > one.log &
done
CUDA_VISIBLE_DEVICES=1 nohup vllm serve Qwen/Qwen3-8B --port 8002 --max-num-seqs 50 > two.log &
wait
