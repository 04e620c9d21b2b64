package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// maxRulesFile is more than a file of rules may have.
const maxRulesFile = 1 << 20

// ReadRulesFile returns what a file of scheduler rules holds. It waits for
// nobody who writes it: what is no file, such as a pipe, is refused.
func ReadRulesFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it is only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	return ReadRules(f)
}

// ReadRules returns the rules that in holds. Nothing at all is refused: a file
// that was emptied, or cut by a full disk, is no wish for the defaults.
func ReadRules(in io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxRulesFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxRulesFile:
		return nil, fmt.Errorf("it has more than %d bytes: too large for a file of rules", maxRulesFile)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, errors.New("it is empty: for the defaults write \"scheduler: {}\", or name no file")
	}
	return text, nil
}
