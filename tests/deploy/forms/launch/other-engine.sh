text-generation-launcher --model-id mistralai/Mistral-7B-v0.1 --num-shard 2
