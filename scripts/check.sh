#!/usr/bin/env bash
# What can be said of the code without running it.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
PATH=$TOOLS/node_modules/.bin:$PATH

formatted() {
	local out
	out=$(git ls-files '*.go' | grep -v '\.pb\.go$\|\.connect\.go$' | xargs gofumpt -l)
	[ -z "$out" ] || { echo "run gofumpt -w on: $out"; return 1; }
}
generated() {
	local before after
	before=$(git ls-files -s internal/hostpb internal/envdpb | sha256sum)$(cat internal/hostpb/* internal/envdpb/* | sha256sum)
	buf lint && buf generate || return 1
	after=$(git ls-files -s internal/hostpb internal/envdpb | sha256sum)$(cat internal/hostpb/* internal/envdpb/* | sha256sum)
	[ "$before" = "$after" ] || { echo "generated code was stale: run make generate"; return 1; }
}
tidy() {
	for dir in . tools tools/runsc; do (cd $dir && go mod tidy -diff) || return 1; done
}
# vulnerable DATABASE: its exit code is 3 for findings. Those in the standard
# library are cured by the toolchain, not here.
vulnerable() {
	local out
	out=$(govulncheck -db "file://$1" ./... 2>&1) && return
	[ $? = 3 ] || { echo "$out"; return 1; }
	if echo "$out" | grep '^    Module: ' | grep -qv 'stdlib'; then echo "$out"; return 1; fi
}

quiet "format" formatted
quiet "vet" go vet ./...
quiet "generated code" generated
quiet "modules" tidy
quiet "golangci-lint" golangci-lint run ./...
quiet "staticcheck" staticcheck ./...
if db=$("$ROOT/scripts/vulndb.sh"); then
	quiet "govulncheck" vulnerable "$db"
else
	say "govulncheck left out: its database is out of reach"
fi
