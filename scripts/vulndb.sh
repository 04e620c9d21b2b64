#!/usr/bin/env bash
# Makes the vulnerability database that govulncheck reads, of the module that
# carries its reports, and prints its directory.
. "$(dirname "$0")/lib.sh"
dir=$(cd "$ROOT/tools" && go mod download -json golang.org/x/vulndb@latest | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
[ -d "$dir/data/osv" ] || die "the vulnerability reports could not be fetched"
out=$TOOLS/vulndb-$(basename "$dir")
if ! [ -d "$out" ]; then
	go run "$ROOT/test/vulndb" "$dir/data/osv" "$out.new" >&2
	mv "$out.new" "$out"
fi
echo "$out"
