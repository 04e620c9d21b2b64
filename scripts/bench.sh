#!/usr/bin/env bash
# Runs every program below bench/; BENCH_FLAGS=-json prints one object a line.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
for dir in bench/*/; do
	go run "./$dir" ${BENCH_FLAGS:-}
done
