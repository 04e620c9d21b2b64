#!/usr/bin/env bash
# Runs every test. The services that tests need are started by the tests.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
"$ROOT/scripts/image.sh" >/dev/null
export PADDOCK_BIN=$ROOT/bin
# The pure Go SQLite is full of pointer arithmetic: checking each is a third of
# the time of what uses it, and finds nothing of ours.
go test -race '-gcflags=modernc.org/...=-d=checkptr=0' -count=1 -timeout 45m "${@:-./...}"
