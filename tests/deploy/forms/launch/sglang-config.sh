sglang serve --model-path Qwen/Qwen3-8B --config sglang.yaml --max-running-requests 24
