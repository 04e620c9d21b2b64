#!/usr/bin/env bash
# Writes generated code and generated documents.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
PATH=$TOOLS/node_modules/.bin:$PATH
buf lint
rm -rf internal/hostpb internal/envdpb
buf generate
UPDATE=1 go test -count=1 ./internal/fault ./internal/template ./internal/sandbox ./internal/platform/config >/dev/null
