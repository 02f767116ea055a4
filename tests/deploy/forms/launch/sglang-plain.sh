python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --chunked-prefill-size 2048 --max-running-requests 40 --mem-fraction-static 0.8 --schedule-policy lpm --host 0.0.0.0
