package fault

import "unicode/utf8"

// Clip returns the first words of text for people, at most that many bytes. It
// never cuts within a letter: half of one would make the whole text unfit for
// JSON and for gRPC.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	at := most
	for back := 1; back < utf8.UTFMax && at > 0 && !utf8.RuneStart(text[at]); back++ {
		at--
	}
	if !utf8.RuneStart(text[at]) {
		at = most // it is no text: there is no letter to spare
	}
	return text[:at]
}

// ClipEnd is Clip from the other side: it returns the last words.
func ClipEnd(text string, most int) string {
	if len(text) <= most {
		return text
	}
	from := len(text) - most
	at := from
	for ahead := 1; ahead < utf8.UTFMax && at < len(text) && !utf8.RuneStart(text[at]); ahead++ {
		at++
	}
	if at < len(text) && !utf8.RuneStart(text[at]) {
		at = from
	}
	return text[at:]
}
