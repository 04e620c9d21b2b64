//go:build race

package rootfs_test

const manyEntries = 100_000
