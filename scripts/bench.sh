#!/usr/bin/env bash
# Runs every program below bench/; BENCH_FLAGS=-json prints one object a line.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
for main in bench/*/main.go; do
	dir=$(dirname "$main")
	# A peer with many dependencies is a module of its own.
	[ -e "$dir/go.mod" ] || go run "./$dir" ${BENCH_FLAGS:-}
done
