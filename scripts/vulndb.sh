#!/usr/bin/env bash
# Prints the directory of the vulnerability reports that govulncheck reads: a
# Go module carries them, since their public database may be out of reach.
. "$(dirname "$0")/lib.sh"
cd "$ROOT/tools"
dir=$(go mod download -json golang.org/x/vulndb@latest | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
[ -d "$dir/data/osv" ] || die "the vulnerability reports could not be fetched"
echo "$dir/data/osv"
