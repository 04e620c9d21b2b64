package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWhatAKilledBuildLeftIsRemoved(t *testing.T) {
	dir := t.TempDir()
	old := func(name string) string {
		path := filepath.Join(dir, name)
		before := time.Now().Add(-2 * scratchAge)
		if err := os.MkdirAll(filepath.Join(path, "image"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, before, before); err != nil {
			t.Fatal(err)
		}
		return path
	}
	killed, running, foreign := old(scratchName+"1"), old(scratchName+"2"), old(scratchName+"notes")
	lock, err := lockScratch(running)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	young := filepath.Join(dir, scratchName+"3")
	if err := os.Mkdir(young, 0o700); err != nil {
		t.Fatal(err)
	}
	path, remove, err := makeScratch(dir)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{killed: false, running: true, young: true, foreign: true, path: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", filepath.Base(path), err == nil, want)
		}
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the scratch is still there: %v", err)
	}
}
