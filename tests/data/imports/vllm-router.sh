#!/bin/sh
# The router of the chat fleet.
export VLLM_KEY=from-the-vault
exec vllm-router \
    --host 0.0.0.0 --port 30000 \
    --worker-urls http://10.0.0.11:8000 http://10.0.0.12:8000 \
    --policy consistent_hash \
    --intra-node-data-parallel-size 8 \
    --api-key "$VLLM_KEY" \
    --max-payload-size 268435456 \
    --request-timeout-secs 900 \
    --retry-max-retries 2 --cb-failure-threshold 4 --cb-timeout-duration-secs 20 \
    --queue-size 50 --queue-timeout-secs 15 \
    --max-concurrent-requests 512 \
    --prometheus-port 29000 > router.log 2>&1
