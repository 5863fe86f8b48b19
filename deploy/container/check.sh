#!/bin/sh
# Builds the image and does with it what docs/how-to/container.md says, beside a simulated worker: it becomes healthy, answers, may
# write nowhere, and ends only when the last stream has. Needs docker, or ENGINE=podman, and curl. Takes two minutes; what it starts is
# removed, the image stays. Arguments reach the build: --build-arg PYTHON=… for another base.
set -eu
cd -- "$(dirname -- "$0")/../.."

engine=${ENGINE:-docker}
image=ridgeline
name=ridgeline-check-$$
work=$(mktemp -d)
chmod 755 "$work"
trap '"$engine" rm -f "$name" "$name-worker" >/dev/null 2>&1 || :; "$engine" network rm "$name" >/dev/null 2>&1 || :; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

fail() {
    echo "image check: $*" >&2
    "$engine" logs "$name" >&2 || :
    exit 1
}
chat() { # tokens, then options of curl
    tokens=$1
    shift
    curl -sS --fail-with-body --max-time 60 "$@" "http://$address/v1/chat/completions" -H 'Content-Type: application/json' -d '{"model":
        "my-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": '"$tokens"', "ignore_eos": true, "stream": true}'
}

format=
case $engine in *podman) format='--format docker' ;; esac # the other format has no health check
# shellcheck disable=SC2086
"$engine" build $format -f deploy/container/Dockerfile -t "$image" "$@" . >"$work/build" 2>&1 || { cat "$work/build" >&2; exit 1; }
echo "built: $("$engine" run --rm "$image" --version), $("$engine" image inspect -f '{{.Size}}' "$image") bytes"

"$engine" network create "$name" >/dev/null
"$engine" run -d --name "$name-worker" --network "$name" --no-healthcheck "$image" \
    simulate --model my-model --shape llama-3.1-8b --gpu h100-sxm --host 0.0.0.0 >/dev/null
printf 'listen: 0.0.0.0:8080\nmodels: [{name: my-model, workers: ["http://%s-worker:8000"]}]\n' "$name" >"$work/ridgeline.yaml"
"$engine" run -d --name "$name" --network "$name" -p 127.0.0.1::8080 --read-only --tmpfs /tmp --shm-size 256m --cap-drop ALL \
    --security-opt no-new-privileges --stop-timeout 135 -v "$work/ridgeline.yaml:/etc/ridgeline/ridgeline.yaml:ro" "$image" >/dev/null
address=$("$engine" port "$name" 8080/tcp | head -n 1)

seconds=0
until [ "$("$engine" inspect -f '{{.State.Health.Status}}' "$name")" = healthy ]; do
    [ "$seconds" -lt 60 ] || fail "not healthy after a minute"
    seconds=$((seconds + 1))
    sleep 1
done
echo "healthy: after $seconds s"

chat 5 -o "$work/stream" || fail "no answer"
grep -q '^data: \[DONE\]' "$work/stream" || fail "the stream has no end"
echo "answers: a stream from the worker"

"$engine" exec -i "$name" python - <<'PYTHON' || fail "it may do more than it should"
import os, sys
status = dict(line.split(":\t", 1) for line in open("/proc/1/status") if ":\t" in line)
if os.getuid() != 10001 or int(status["CapEff"], 16) or int(status["CapBnd"], 16) or status["NoNewPrivs"].strip() != "1":
    sys.exit(f"runs as {os.getuid()} with {status['CapEff'].strip()}")
for folder in ("/", "/etc", "/opt/ridgeline", "/usr/bin"):
    try:
        open(f"{folder}/written", "w").close()
    except OSError:
        continue
    sys.exit(f"{folder} can be written to")
PYTHON
echo "confined: user 10001, no capabilities, nothing written"

chat 500 -o "$work/stream" & # five seconds
sleep 1
"$engine" stop "$name" >/dev/null
wait "$!" || fail "a stream was cut off by the stop"
[ "$(grep -c '"content":' "$work/stream")" -ge 500 ] || fail "a stream ended early"
[ "$("$engine" inspect -f '{{.State.ExitCode}}' "$name")" = 0 ] || fail "it did not end with 0"
echo "ends: after the last stream, with 0"
