#!/bin/sh
# Runs all tests: unit tests and integration tests in two processes each, then, one by one, what needs the machine for itself.
# Arguments reach pytest. A part in which they select nothing is no failure, unless they select nothing in any.
set -u
cd -- "$(dirname -- "$0")/../.."

worst=5 # nothing selected

run() {
    part=$1
    shift
    .venv/bin/python -m pytest --part="$part" "$@"
    status=$?
    case $status in
    0) [ "$worst" != 5 ] || worst=0 ;;
    5) ;;
    *)
        worst=$status
        echo "ridgeline: $part: tests failed (status $status)" >&2
        ;;
    esac
}

run units -n 2 --dist worksteal "$@"
# Real processes on a machine that others may use: a test gets a second look before its failure counts, and is listed as RERUN.
run integration -n 2 --dist loadfile --reruns 1 "$@"
run alone --reruns 1 "$@"
exit "$worst"
