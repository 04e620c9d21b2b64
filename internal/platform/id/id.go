// Package id makes the ids of stored things. It must never be used for
// secrets: half of an id is the time.
package id

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// New returns prefix and 24 hex digits: 48 bits of milliseconds since 1970,
// then 48 random bits. Ids of one prefix sort by age and have one length.
func New(prefix string) string {
	var b [12]byte
	binary.BigEndian.PutUint64(b[:8], uint64(time.Now().UnixMilli())<<16)
	_, _ = rand.Read(b[6:]) // crypto/rand ends the program rather than fail
	return prefix + hex.EncodeToString(b[:])
}

// Secret returns prefix and n random bytes in hex.
func Secret(prefix string, n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // crypto/rand ends the program rather than fail
	return prefix + hex.EncodeToString(b)
}
