#!/usr/bin/env bash
# Makes the images that bench/rootfs measures with, once for each version of
# this file, as one OCI layout with a tag each, and prints its path:
#   minbase     Debian's smallest, 1 layer, as published base images have it
#   toolchain   that, and Python, Node and git, in 6 layers as a Dockerfile with
#               a RUN for each would make them
#   smallfiles  that, and Node and two node_modules, in 5 layers
# Everything comes from Debian's packages and from npm.
. "$(dirname "$0")/lib.sh"
suite=bookworm
declare -A npm_lists=(
	[app]="next@14.2.4 react@18.3.1 react-dom@18.3.1 antd@5.18.1 @mui/icons-material@5.15.20 @mui/material@5.15.20 @emotion/react@11.11.4 @emotion/styled@11.11.5 date-fns@3.6.0 lodash@4.17.21 rxjs@7.8.1 core-js@3.37.1 express@4.19.2"
	[ci]="typescript@5.4.5 webpack@5.92.0 eslint@8.57.0 jest@29.7.0 aws-sdk@2.1640.0 @babel/core@7.24.7 @babel/preset-env@7.24.7 prettier@3.3.2"
)

key=$(sha256sum <"$0" | cut -c1-12)
out=$ROOT/.cache/bench-images-$key
[ -s "$out/index.json" ] && { echo "$out"; exit; }

# What is done stays: a later run goes on after it.
work=$out.part
lay=$work/layout
bundle=$work/bundle
mkdir -p "$work"

# once NAME: runs the function of that name, if it never came to its end.
once() {
	[ -e "$work/$1.done" ] && return
	rm -rf --one-file-system "$bundle"
	"$1"
	touch "$work/$1.done"
}
# inside COMMAND...: runs it in the bundle, with mounts that end with it.
inside() {
	cp /etc/resolv.conf "$bundle/rootfs/etc/resolv.conf"
	unshare --mount --propagation private bash -euc '
		root=$1; shift
		mount -t proc proc "$root/proc"
		mount --rbind /dev "$root/dev"
		exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"
	' - "$bundle/rootfs" "$@" >&2
	rm "$bundle/rootfs/etc/resolv.conf"
}
from_base() { # TAG
	umoci tag --image "$lay:minbase" "$1" >&2
	umoci unpack --image "$lay:$1" "$bundle" >&2
}
layer() { # what changed since, on top of TAG
	umoci repack --refresh-bundle --image "$lay:$1" --history.created_by "$2" "$bundle" >&2
	say "layer: $2" >&2
}
packages() { # TAG PACKAGE...
	local tag=$1
	shift
	inside sh -ec 'apt-get update -q; apt-get install -y -q -o Dpkg::Options::=--force-unsafe-io --no-install-recommends "$@"; rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin' - "$@"
	layer "$tag" "apt-get install $*"
}
modules() { # TAG DIR LIST
	mkdir -p "$bundle/rootfs/$2"
	echo '{"name":"bench","version":"1.0.0","private":true}' >"$bundle/rootfs/$2/package.json"
	# shellcheck disable=SC2086 # the list is words
	env -C "$bundle/rootfs/$2" npm install --ignore-scripts --legacy-peer-deps --no-audit --no-fund --save-exact $3 >&2
	layer "$1" "npm install in /$2"
}

minbase() {
	rm -rf "$lay"
	SOURCE_DATE_EPOCH=1700000000 mmdebstrap --quiet --mode=root --format=tar --variant=minbase "$suite" "$work/base.tar" >&2
	umoci init --layout "$lay" >&2
	umoci new --image "$lay:minbase" >&2
	umoci raw add-layer --image "$lay:minbase" --history.created_by "Debian $suite minbase" "$work/base.tar" >&2
	umoci config --image "$lay:minbase" --config.cmd bash --config.env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin >&2
	rm "$work/base.tar"
}
toolchain() {
	from_base toolchain
	packages toolchain ca-certificates curl iproute2
	packages toolchain git
	packages toolchain build-essential
	packages toolchain python3 python3-pip python3-venv
	packages toolchain nodejs npm
}
smallfiles() {
	from_base smallfiles
	packages smallfiles ca-certificates nodejs
	modules smallfiles app "${npm_lists[app]}"
	modules smallfiles ci "${npm_lists[ci]}"
	mkdir "$bundle/rootfs/app/src"
	seq 500 | sed 's/.*/export const n& = &;/' | split -l 1 - "$bundle/rootfs/app/src/n"
	layer smallfiles "COPY src /app/src"
}
once minbase
once toolchain
once smallfiles

umoci gc --layout "$lay" >&2
mv -T "$lay" "$out"
rm -rf --one-file-system "$work"
echo "$out"
