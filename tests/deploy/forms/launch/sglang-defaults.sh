sglang serve --model-path Qwen/Qwen3-8B
