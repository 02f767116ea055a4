CAPABILITY=$(nvidia-smi -i 0 --query-gpu=compute_cap --format=csv,noheader)
if [ "$CAPABILITY" = "10.0" ]; then
    export VLLM_SOME_KERNEL=1
    SETTINGS="settings.yaml"
else
    SETTINGS="hopper.yaml"
fi
ISL=1000
LENGTH="${LENGTH:-$(( ISL + 2 * 500 + 96 ))}"
vllm serve openai/gpt-oss-20b --config ${SETTINGS} --max-model-len $LENGTH &
