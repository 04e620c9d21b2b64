#!/usr/bin/env bash
# Runs every test. The services that tests need are started by the tests.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
"$ROOT/scripts/image.sh" >/dev/null
export PADDOCK_BIN=$ROOT/bin
go test -race -count=1 -timeout 40m "${@:-./...}"
