package fault_test

import (
	"testing"
	"unicode/utf8"

	"github.com/paddock-dev/paddock/internal/fault"
)

func TestClipsKeepWholeLetters(t *testing.T) {
	for _, c := range []struct {
		text       string
		most       int
		first, end string
	}{
		{"", 3, "", ""},
		{"abc", 3, "abc", "abc"},
		{"abcd", 3, "abc", "bcd"},
		{"abcd", 0, "", ""},
		{"aé", 2, "a", "é"},
		{"éa", 2, "é", "a"},
		{"磁盘满", 8, "磁盘", "盘满"},
		{"磁盘满", 2, "", ""},
		{"😀😀", 7, "😀", "😀"},
		// What was broken before is cut where it is asked.
		{"\x80\x80\x80\x80\x80\x80\x80\x80", 6, "\x80\x80\x80\x80\x80\x80", "\x80\x80\x80\x80\x80\x80"},
	} {
		first, end := fault.Clip(c.text, c.most), fault.ClipEnd(c.text, c.most)
		if first != c.first || end != c.end {
			t.Errorf("%q to %d: %q and %q, want %q and %q", c.text, c.most, first, end, c.first, c.end)
		}
	}
}

func FuzzClip(f *testing.F) {
	f.Add("磁盘满😀é", 5)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most &= 0xff
		for _, part := range []string{fault.Clip(text, most), fault.ClipEnd(text, most)} {
			if len(part) > most || utf8.ValidString(text) && !utf8.ValidString(part) {
				t.Errorf("%q to %d: %q", text, most, part)
			}
			if len(text) <= most && part != text || len(part) < min(len(text), most)-3 {
				t.Errorf("%q to %d: only %q", text, most, part)
			}
		}
	})
}
