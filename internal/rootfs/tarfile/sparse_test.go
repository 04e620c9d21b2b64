package tarfile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

// sparse10 are the records of a sparse file of 100 bytes, version 1.0.
func sparse10(more ...string) []byte {
	return pax(append([]string{"GNU.sparse.major", "1", "GNU.sparse.minor", "0", "GNU.sparse.realsize", "100"}, more...)...)
}

// sparse00 are those of version 0.0, with a range for every two numbers.
func sparse00(blocks int, offsets ...int) []byte {
	kv := []string{"GNU.sparse.size", "100", "GNU.sparse.numblocks", fmt.Sprint(blocks)}
	for i, n := range offsets {
		kv = append(kv, [2]string{"GNU.sparse.offset", "GNU.sparse.numbytes"}[i%2], fmt.Sprint(n))
	}
	return pax(kv...)
}

func sparse01(blocks, list string, more ...string) []byte {
	return pax(append([]string{"GNU.sparse.size", "100", "GNU.sparse.numblocks", blocks, "GNU.sparse.map", list}, more...)...)
}

func TestRefusedSparse(t *testing.T) {
	file := func(body string) []byte { return entry("a", '0', body) }
	stored := func(list, body string) []byte { return join(sparse10(), file(string(padded(list))+body)) }
	old := func(body string, n ...int) []byte { return oldSparse(body, 100, ranges(n...)) }
	refuseAll(t, tarfile.Limits{}, map[string]refusal{
		"old, overlapping":        {old("1234", 0, 2, 1, 2), fault.LayerArchive, "2 bytes at 1 behind a range that ends at 2"},
		"old, backward":           {old("1234", 10, 2, 0, 2), fault.LayerArchive, "at 0 behind"},
		"old, behind the file":    {old("12", 99, 2), fault.LayerArchive, "in a file of 100"},
		"old, empty range behind": {old("", 101, 0), fault.LayerArchive, "in a file of 100"},
		"old, too little":         {old("1", 0, 2), fault.LayerArchive, "its sparse map has 2 bytes, and 1 follow"},
		"old, too much":           {old("123", 0, 2), fault.LayerArchive, "its sparse map has 2 bytes, and 3 follow"},
		"old, no map":             {old("1"), fault.LayerArchive, "its sparse map has 0 bytes, and 1 follow"},
		"old, negative offset":    {oldSparse("1", 100, strings.Repeat("\xFF", 12)+ranges(1)), fault.LayerArchive, "1 bytes at -1"},
		"old, negative length":    {oldSparse("1", 100, ranges(1)+strings.Repeat("\xFF", 12)), fault.LayerArchive, "-1 bytes at 1"},
		"old, overflow":           {oldSparse("1", 100, ranges(1)+binary(12, 0x7F, 255, 255, 255, 255, 255, 255, 255)), fault.LayerArchive, "9223372036854775807 bytes at 1"},
		"old, no number":          {oldSparse("1", 100, "offset      length      "), fault.LayerArchive, "no pair of numbers"},
		"old, half a pair":        {oldSparse("1", 100, ranges(1)), fault.LayerArchive, "no pair of numbers"},
		"old, the other half":     {oldSparse("1", 100, strings.Repeat("\x00", 12)+ranges(1)), fault.LayerArchive, "no pair of numbers"},
		"old, gap in the map":     {oldSparse("12", 100, ranges(1, 1)+strings.Repeat("\x00", 24)+ranges(3, 1)), fault.LayerArchive, "behind its end"},
		"old, early end":          {oldSparse("12", 100, ranges(0, 1), ranges(2, 1)), fault.LayerArchive, "behind its end"},
		"old, empty block":        {oldSparse("1234", 100, ranges(0, 1, 2, 1, 4, 1, 6, 1), "", ""), fault.LayerArchive, "behind its end"},
		"old, real size":          {oldSparse("", -1, ""), fault.LayerArchive, "its real size"},
		"old, negative size":      {block("a", 'S', gnu, at(483, strings.Repeat("\xFF", 12))), fault.LayerArchive, "its real size"},
		"old, absurd size":        {block("a", 'S', gnu, at(483, binary(12, 0x10, 0, 0, 0, 0, 0, 0, 1))), fault.LayerArchive, "its real size"},
		"old, not gnu":            {entry("a", 'S', ""), fault.LayerArchive, "where none can be"},
		"old and PAX":             {join(sparse10(), old("")), fault.LayerArchive, "where none can be"},
		"of a directory":          {join(sparse01("0", ""), entry("a", '5', "")), fault.LayerArchive, "where none can be: directory"},
		"of a hard link":          {join(sparse10(), entry("a", '1', "", target("b"))), fault.LayerArchive, "where none can be: hard link"},
		"unknown version":         {join(pax("GNU.sparse.major", "2", "GNU.sparse.minor", "0", "GNU.sparse.realsize", "1"), file("")), fault.LayerArchive, `version "2.0"`},
		"half a version":          {join(pax("GNU.sparse.major", "1", "GNU.sparse.realsize", "1"), file("")), fault.LayerArchive, `version "1."`},
		"only a name":             {join(pax("GNU.sparse.name", "b"), file("")), fault.LayerArchive, "without the file's size"},
		"two sizes":               {join(sparse10("GNU.sparse.size", "99"), file("")), fault.LayerArchive, "or with two"},
		"absurd size":             {join(sparse10("GNU.sparse.realsize", "1152921504606846977"), file("")), fault.LayerArchive, "1152921504606846977"},
		"size in words":           {join(sparse10("GNU.sparse.realsize", "all"), file("")), fault.LayerArchive, "GNU.sparse.realsize is no number"},
		"0.0, backward":           {join(sparse00(2, 5, 1, 4, 1), file("12")), fault.LayerArchive, "1 bytes at 4"},
		"0.0, half a pair":        {join(sparse00(1, 5, 1, 7), file("1")), fault.LayerArchive, "ends with an offset"},
		"0.0, two offsets":        {join(pax("GNU.sparse.offset", "1", "GNU.sparse.offset", "1"), file("")), fault.LayerArchive, "wrong place"},
		"0.0, length first":       {join(pax("GNU.sparse.numbytes", "1"), file("")), fault.LayerArchive, "wrong place"},
		"0.0, in words":           {join(pax("GNU.sparse.offset", "x"), file("")), fault.LayerArchive, "no number"},
		"0.0, other count":        {join(sparse00(2, 5, 1), file("1")), fault.LayerArchive, "1 ranges, and says another number"},
		"0.0, no count":           {join(pax("GNU.sparse.size", "9", "GNU.sparse.offset", "0", "GNU.sparse.numbytes", "1"), file("1")), fault.LayerArchive, "or none"},
		"0.0, size alone":         {join(pax("GNU.sparse.size", "9"), file("")), fault.LayerArchive, "0 ranges, and says another number or none"},
		"0.0, too little":         {join(sparse00(1, 5, 2), file("1")), fault.LayerArchive, "its sparse map has 2 bytes, and 1 follow"},
		"0.1, odd":                {join(sparse01("1", "5,1,6"), file("1")), fault.LayerArchive, "no list of pairs"},
		"0.1, comma":              {join(sparse01("1", "5,1,"), file("1")), fault.LayerArchive, "no list of pairs"},
		"0.1, in words":           {join(sparse01("1", "5,x"), file("1")), fault.LayerArchive, "no list of pairs"},
		"0.1, negative":           {join(sparse01("1", "5,-1"), file("")), fault.LayerArchive, "no list of pairs"},
		"0.1, other count":        {join(sparse01("3", "5,1,7,1"), file("12")), fault.LayerArchive, "2 ranges"},
		"0.1, overlapping":        {join(sparse01("2", "5,2,6,1"), file("123")), fault.LayerArchive, "1 bytes at 6"},
		"0.1, behind the file":    {join(sparse01("1", "100,1"), file("1")), fault.LayerArchive, "in a file of 100"},
		"both maps":               {join(sparse01("1", "5,1", "GNU.sparse.offset", "5", "GNU.sparse.numbytes", "1"), file("1")), fault.LayerArchive, "or it has two"},
		"1.0 and a map":           {join(sparse10("GNU.sparse.map", "5,1"), file("1")), fault.LayerArchive, "or two maps"},
		"1.0, overlapping":        {stored("2\n5\n2\n6\n1\n", "123"), fault.LayerArchive, "1 bytes at 6"},
		"1.0, behind the file":    {stored("1\n99\n2\n", "12"), fault.LayerArchive, "in a file of 100"},
		"1.0, no map":             {join(sparse10(), file("1")), fault.LayerArchive, "does not end within its contents"},
		"1.0, cut":                {stored("4\n"+strings.Repeat("1\n", 255), "1"), fault.LayerArchive, ""},
		"1.0, map in contents":    {stored("300\n"+strings.Repeat("0\n0\n", 127)[:508], ""), fault.LayerArchive, "does not end within"},
		"1.0, in words":           {stored("one\n", ""), fault.LayerArchive, "no list of numbers"},
		"1.0, empty line":         {stored("1\n\n1\n", ""), fault.LayerArchive, "no list of numbers"},
		"1.0, negative":           {stored("1\n-1\n1\n", ""), fault.LayerArchive, "no list of numbers"},
		"1.0, long number":        {stored("1\n00000000000000000000\n1\n", ""), fault.LayerArchive, "no list of numbers"},
		"1.0, ends early":         {stored("1\n5\n", ""), fault.LayerArchive, "no list of numbers"},
		"1.0, a huge count":       {stored("9223372036854775807\n", ""), fault.LayerArchive, "no list of numbers"},
		"1.0, too much":           {stored("1\n5\n1\n", "12"), fault.LayerArchive, "its sparse map has 1 bytes, and 2 follow"},
	})
	l := tarfile.Limits{Segments: 3}
	refuseAll(t, l, map[string]refusal{
		"old":           {old("", 0, 0, 0, 0, 0, 0, 0, 0), fault.LayerArchive, "more than 3 ranges"},
		"old, extended": {oldSparse("", 100, ranges(0, 0, 0, 0, 0, 0, 0, 0), ranges(0, 0)), fault.LayerArchive, "more than 3 ranges"},
		"0.0":           {join(sparse00(4, 0, 0, 0, 0, 0, 0, 0, 0), file("")), fault.LayerArchive, "more than 3 ranges"},
		"0.1":           {join(sparse01("4", "0,0,0,0,0,0,0,0"), file("")), fault.LayerArchive, "more than 3 ranges"},
		"1.0":           {stored("4\n0\n0\n0\n0\n0\n0\n0\n0\n", ""), fault.LayerArchive, "more than 3 ranges"},
	})
	one(t, join(sparse01("3", "0,0,0,0,0,0"), file("")), l)
}
