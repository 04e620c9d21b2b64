#!/usr/bin/env bash
# Installs what building, testing and the demo need and this machine lacks.
# It can be run again at any time; when all is there it takes a moment.
# usage: setup.sh run|test|bench|check
. "$(dirname "$0")/lib.sh"
level=${1:-run}
GO_NEEDED=go$(sed -n 's/^go //p' "$(dirname "$0")/../tools/runsc/go.mod") # the highest of our modules

[ "$(id -u)" = 0 ] || die "run as root: packages are installed, and sandboxes need mounts and namespaces"
command -v go >/dev/null || die "Go is missing: install $GO_NEEDED or newer from https://go.dev/dl"
have=$(GOTOOLCHAIN=local go env GOVERSION)
[ "$(printf '%s\n' "$GO_NEEDED" "$have" | sort -V | head -n 1)" = "$GO_NEEDED" ] || die "$have is too old: install $GO_NEEDED or newer from https://go.dev/dl"

packages=(ca-certificates iproute2 nftables mmdebstrap docker-registry)
[ "$level" = run ] || packages+=(e2fsprogs gcc libc6-dev mariadb-server redis-server busybox-static skopeo umoci zstd)
[ "$level" = run ] || command -v npm >/dev/null || packages+=(nodejs npm)
missing=()
for p in "${packages[@]}"; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
	# The tests start the servers that they need, on ports of their own: the
	# packages must not start any.
	policy=/usr/sbin/policy-rc.d made=
	[ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && made=1; }
	trap '[ -z "${made:-}" ] || rm -f $policy' EXIT
	export DEBIAN_FRONTEND=noninteractive
	quiet "package lists" apt-get update -q
	quiet "packages: ${missing[*]}" apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

# tool MODULE-DIR PACKAGE NAME: built once for each pin.
tool() {
	local dir=$1 pkg=$2 out=$3 stamp
	stamp=$(cat "$ROOT/$dir/go.mod" "$ROOT/$dir/go.sum" | sha256sum | cut -c1-16)-$(go env GOVERSION)
	[ -x "$out" ] && [ "$(cat "$out.stamp" 2>/dev/null)" = "$stamp" ] && return
	mkdir -p "$(dirname "$out")"
	quiet "tool $(basename "$out")" env -C "$ROOT/$dir" CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -ldflags '-s -w' -o "$out" "$pkg"
	echo "$stamp" >"$out.stamp"
}

tool tools/runsc gvisor.dev/gvisor/runsc "$ROOT/bin/runsc"
[ "$level" = run ] || tool tools github.com/versity/versitygw/cmd/versitygw "$TOOLS/bin/versitygw"

# modules DIR NAME: what its package-lock.json names, once for each lock.
modules() {
	local from=$ROOT/$1 to=$TOOLS/$2
	cmp -s "$from/package-lock.json" "$to/installed" && return
	rm -rf "$to"
	mkdir -p "$to"
	cp "$from/package.json" "$from/package-lock.json" "$to/"
	quiet "modules $2" npm ci --prefix "$to" --no-audit --no-fund --ignore-scripts
	cp "$from/package-lock.json" "$to/installed"
}

[ "$level" = run ] || modules test/e2b e2b
if [ "$level" = check ]; then
	tool tools github.com/golangci/golangci-lint/v2/cmd/golangci-lint "$TOOLS/bin/golangci-lint"
	tool tools honnef.co/go/tools/cmd/staticcheck "$TOOLS/bin/staticcheck"
	tool tools golang.org/x/vuln/cmd/govulncheck "$TOOLS/bin/govulncheck"
	tool tools mvdan.cc/gofumpt "$TOOLS/bin/gofumpt"
	tool tools google.golang.org/protobuf/cmd/protoc-gen-go "$TOOLS/bin/protoc-gen-go"
	tool tools google.golang.org/grpc/cmd/protoc-gen-go-grpc "$TOOLS/bin/protoc-gen-go-grpc"
	tool tools connectrpc.com/connect/cmd/protoc-gen-connect-go "$TOOLS/bin/protoc-gen-connect-go"
	if ! [ -x "$TOOLS/node_modules/.bin/buf" ]; then
		command -v npm >/dev/null || quiet "npm" apt-get install -y -q --no-install-recommends npm
		mkdir -p "$TOOLS"
		cp "$ROOT/tools/package.json" "$ROOT/tools/package-lock.json" "$TOOLS/"
		quiet "tool buf" npm ci --prefix "$TOOLS" --no-audit --no-fund
	fi
fi
