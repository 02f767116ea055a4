#!/usr/bin/env bash
set -eux
MODEL=${MODEL:-openai/gpt-oss-20b}
export TP=2 CONC=48
cat > engine.yaml <<EOF
async-scheduling: true
no-enable-prefix-caching: true
max-cudagraph-capture-size: 64
max-num-batched-tokens: 6144
EOF

vllm serve $MODEL --host 0.0.0.0 --port 8888 --config engine.yaml \
  --tensor-parallel-size=$TP --max-num-seqs $((CONC * 2)) > server.log 2>&1 &
sleep 5
curl -s http://localhost:8888/health
