//go:build !race

package rootfs_test

const manyEntries = 1_000_000
