package tarfile_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/tarfile"
)

type refusal struct {
	archive []byte
	code    *fault.Code
	says    string
}

func refuseAll(t *testing.T, l tarfile.Limits, cases map[string]refusal) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := readAll(bytes.NewReader(join(c.archive, end)), l)
			refused(t, err, c.code, c.says)
		})
	}
}

func TestRefusedNames(t *testing.T) {
	file := func(name string) []byte { return join(pax("path", name), entry("x", '0', "")) }
	link := func(target string) []byte { return join(pax("linkpath", target), entry("a", '1', "")) }
	refuseAll(t, tarfile.Limits{}, map[string]refusal{
		"dots":                 {entry("a/../b", '0', ""), fault.LayerPath, `entry "a/../b" at byte 0: its name has a part ".."`},
		"dots at the start":    {entry("../b", '0', ""), fault.LayerPath, `".."`},
		"dots at the end":      {entry("a/..", '5', ""), fault.LayerPath, `".."`},
		"dots in a long name":  {join(long("a/.."), entry("a", '5', "", gnu)), fault.LayerPath, `".."`},
		"dots in the prefix":   {entry("a", '0', "", prefix("..")), fault.LayerPath, `".."`},
		"dots in a sparse one": {join(sparse10("GNU.sparse.name", "../a"), entry("a", '0', string(padded("0\n")))), fault.LayerPath, `".."`},
		"NUL":                  {file("a\x00b"), fault.LayerPath, `a\x00b`},
		"NUL in a sparse name": {join(pax("GNU.sparse.name", "a\x00b"), entry("a", '0', "")), fault.LayerPath, `a\x00b`},
		"absolute":             {entry("/a", '0', ""), fault.LayerPath, "absolute"},
		"absolute directory":   {entry("//a/", '5', ""), fault.LayerPath, "absolute"},
		"long part":            {file("d/" + strings.Repeat("n", 256)), fault.LayerPath, "256 bytes"},
		"long name":            {file(strings.Repeat(strings.Repeat("n", 240)+"/", 16) + strings.Repeat("n", 241)), fault.LayerPath, "4096 bytes"},
		"deep":                 {file(strings.Repeat("d/", 128) + "f"), fault.LayerPath, "128 parts"},
		"no name":              {entry("", '0', ""), fault.LayerPath, "its name is empty"},
		"no name, directory":   {entry("", '5', ""), fault.LayerPath, "its name is empty"},
		"root a link":          {entry("./", '2', "", target("/etc")), fault.LayerRoot, "symbolic link"},
		"root a hard link":     {entry(".", '1', "", target("a")), fault.LayerRoot, "hard link"},
		"root a file":          {entry("./.", '0', ""), fault.LayerRoot, "regular file"},
		"root a device":        {entry("/", '3', ""), fault.LayerRoot, "character device"},
		"link to dots":         {link("../a"), fault.LayerLink, `its target has a part ".."`},
		"link to absolute":     {link("/a"), fault.LayerLink, "absolute"},
		"link to nothing":      {entry("a", '1', ""), fault.LayerLink, "its target is empty"},
		"link to the root":     {link("./"), fault.LayerLink, "root"},
		"link to a deep name":  {link(strings.Repeat("d/", 129)), fault.LayerLink, "128 parts"},
		"link to a long part":  {link(strings.Repeat("n", 256)), fault.LayerLink, "255"},
		"link with a NUL":      {link("a\x00b"), fault.LayerPath, `a\x00b`},
		"symlink with a NUL":   {join(pax("linkpath", "a\x00"), entry("a", '2', "")), fault.LayerPath, `a\x00`},
	})
	// The longest that is taken.
	for _, name := range []string{
		strings.Repeat("d/", 127) + "f", strings.Repeat(strings.Repeat("n", 240)+"/", 16) + strings.Repeat("n", 240),
		strings.Repeat("n", 255), strings.Repeat("./", 5000) + "a",
	} {
		one(t, file(name), tarfile.Limits{})
	}
}

func TestRefusedAbsoluteRoots(t *testing.T) {
	refuseAll(t, anyNames, map[string]refusal{
		"root a link":      {entry("/", '2', "", target("/etc")), fault.LayerRoot, "symbolic link"},
		"link to the root": {entry("/a", '1', "", target("/")), fault.LayerLink, "root"},
		"dots":             {entry("/../a", '0', ""), fault.LayerPath, `".."`},
	})
}

func TestRefusedTypes(t *testing.T) {
	for _, flag := range []byte("89ABDEIMNVXYZal\x01\xFF") {
		t.Run(fmt.Sprintf("%q", flag), func(t *testing.T) {
			_, err := readAll(bytes.NewReader(join(entry("odd", flag, ""), end)), tarfile.Limits{})
			refused(t, err, fault.LayerType, fmt.Sprintf(`entry "odd" at byte 0: it has the typeflag %q`, flag))
		})
	}
}

func TestRefusedXattrs(t *testing.T) {
	name := func(n string, more ...string) []byte {
		return join(pax(append([]string{"SCHILY.xattr." + n, "v"}, more...)...), entry("a", '0', ""))
	}
	var many []string
	for i := range 65 {
		many = append(many, fmt.Sprintf("SCHILY.xattr.user.%d", i), "")
	}
	k33 := strings.Repeat("v", 33<<10)
	refuseAll(t, tarfile.Limits{}, map[string]refusal{
		"too many":        {join(pax(many...), entry("a", '0', "")), fault.LayerXattr, "64 extended attributes"},
		"too large":       {name("user.a", "SCHILY.xattr.user.b", k33, "SCHILY.xattr.user.c", k33), fault.LayerXattr, "65536 bytes"},
		"no name":         {name(""), fault.LayerXattr, "0 bytes"},
		"long name":       {name(strings.Repeat("n", 256)), fault.LayerXattr, "256 bytes"},
		"NUL in a name":   {name("user.\x00a"), fault.LayerXattr, `user.\x00a`},
		"escaped NUL":     {join(pax("LIBARCHIVE.xattr.a%00", "YQ"), entry("a", '0', "")), fault.LayerXattr, `a\x00`},
		"twice":           {name("user.a", "SCHILY.xattr.user.a", "v"), fault.LayerXattr, "twice"},
		"twice otherwise": {name("user.a", "LIBARCHIVE.xattr.user.a", "dg", "LIBARCHIVE.xattr.user.%61", "dg"), fault.LayerXattr, "twice"},
		"two values":      {name("user.a", "LIBARCHIVE.xattr.user.a", "YQ"), fault.LayerXattr, "twice"},
		"bad base 64":     {name("user.a", "LIBARCHIVE.xattr.user.b", "!"), fault.LayerXattr, "base 64"},
		"cut escape":      {name("user.a", "LIBARCHIVE.xattr.user.%6", "YQ"), fault.LayerXattr, "malformed"},
		"bad escape":      {name("user.a", "LIBARCHIVE.xattr.user.%G1", "YQ"), fault.LayerXattr, "malformed"},
		"on a hard link":  {join(pax(many...), entry("a", '1', "", target("b"))), fault.LayerXattr, "64 extended attributes"},
	})
	one(t, join(pax(many[:128]...), entry("a", '0', "")), tarfile.Limits{})
}

func TestRefusedHeaders(t *testing.T) {
	file := func(edits ...edit) []byte { return entry("a", '0', "", edits...) }
	sized := func(flag byte) []byte { return entry("a", flag, "12345", target("b")) }
	bad := file()
	bad[0] ^= 1
	blank := file()
	copy(blank[148:], "        ")
	refuseAll(t, tarfile.Limits{}, map[string]refusal{
		"checksum":           {bad, fault.LayerArchive, "header at byte 0 has a wrong checksum"},
		"no checksum":        {blank, fault.LayerArchive, "checksum"},
		"second checksum":    {join(pax("path", "b"), bad), fault.LayerArchive, "header at byte 1024 has a wrong checksum"},
		"no archive":         {bytes.Repeat([]byte("no archive at all "), 100), fault.LayerArchive, "checksum"},
		"lone zero block":    {join(file(), make([]byte, 512), file()), fault.LayerArchive, "one zero block at byte 512"},
		"negative size":      {file(gnu, size(strings.Repeat("\xFF", 12))), fault.LayerArchive, "its size is -1"},
		"absurd size":        {file(gnu, size(binary(12, 0x10, 0, 0, 0, 0, 0, 0, 1))), fault.LayerArchive, "1152921504606846977"},
		"size over 63 bits":  {file(gnu, size(binary(12, 0x80, 0, 0, 0, 0, 0, 0, 0))), fault.LayerArchive, "no number"},
		"size over 64 bits":  {file(gnu, size(binary(12, 1, 0, 0, 0, 0, 0, 0, 0, 0))), fault.LayerArchive, "no number"},
		"size behind a NUL":  {file(size("\x0000000000777")), fault.LayerArchive, "no number"},
		"two numbers":        {file(size("000000 00001")), fault.LayerArchive, "no number"},
		"size in words":      {file(size("many        ")), fault.LayerArchive, "no number"},
		"decimal size":       {file(size("00000000008 ")), fault.LayerArchive, "no number"},
		"mode":               {file(mode("rwxr-xr-x")), fault.LayerArchive, "its mode is no number"},
		"uid":                {file(uid("root\x00\x00\x00\x00")), fault.LayerArchive, "its uid is no number"},
		"large uid":          {file(gnu, uid(binary(8, 1, 0, 0, 0, 0))), fault.LayerArchive, "its uid is 4294967296, which is not in 0 to 4294967295"},
		"negative gid":       {file(gnu, gid(strings.Repeat("\xFF", 8))), fault.LayerArchive, "its gid is -1"},
		"time":               {file(mtime("yesterday   ")), fault.LayerArchive, "its time is no number"},
		"far future":         {file(gnu, mtime(binary(12, 1, 0, 0, 0, 0, 0, 0, 1))), fault.LayerArchive, "72057594037927937 seconds"},
		"far past":           {file(gnu, mtime("\xFF\xFF\xFF\xFF\xF0\x00\x00\x00\x00\x00\x00\x00")), fault.LayerArchive, "seconds from 1970"},
		"device":             {entry("a", '3', "", device("x", "0")), fault.LayerArchive, "its major number is no number"},
		"negative device":    {entry("a", '4', "", gnu, device("0", strings.Repeat("\xFF", 8))), fault.LayerArchive, "its minor number is -1"},
		"device of V7":       {entry("a", '3', "", at(257, strings.Repeat("\x00", 8))), fault.LayerArchive, "the format V7"},
		"access time of gnu": {file(gnu, at(345, "some/prefix/")), fault.LayerArchive, "access or change time"},
		"change time of gnu": {file(gnu, at(357, "some/prefix/")), fault.LayerArchive, "access or change time"},
		"file with a slash":  {entry("a/", '0', ""), fault.LayerArchive, "ends in a slash"},
		"odd file, slash":    {entry("a/", '7', ""), fault.LayerArchive, "ends in a slash"},
		"hard link's size":   {sized('1'), fault.LayerArchive, "a hard link with a size of 5 bytes"},
		"symlink's size":     {sized('2'), fault.LayerArchive, "a symbolic link with a size"},
		"device's size":      {sized('3'), fault.LayerArchive, "a character device with a size"},
		"directory's size":   {sized('5'), fault.LayerArchive, "a directory with a size"},
		"FIFO's size":        {sized('6'), fault.LayerArchive, "a FIFO with a size"},
		"PAX size of a link": {join(pax("size", "1"), entry("a", '1', "", target("b"))), fault.LayerArchive, "a hard link with a size"},
		"symlink to nothing": {entry("a", '2', ""), fault.LayerArchive, "target of 0 bytes"},
		"long symlink":       {join(pax("linkpath", strings.Repeat("t", 4096)), entry("a", '2', "")), fault.LayerArchive, "target of 4096 bytes, which is not in 1 to 4095"},
	})
}

func TestRefusedExtensions(t *testing.T) {
	a := entry("a", '0', "")
	raw := func(s string) []byte { return join(entry("x", 'x', s), a) }
	refuseAll(t, tarfile.Limits{}, map[string]refusal{
		"two PAX headers":       {join(pax("uid", "1"), pax("gid", "1"), a), fault.LayerArchive, `two extended headers of the kind 'x'`},
		"two long names":        {join(long("b"), long("c"), a), fault.LayerArchive, `two extended headers of the kind 'L'`},
		"two long targets":      {join(longLink("b"), long("c"), longLink("c"), a), fault.LayerArchive, `two extended headers of the kind 'K'`},
		"name and path":         {join(long("b"), pax("path", "c"), a), fault.LayerArchive, "both the long name"},
		"target and linkpath":   {join(pax("linkpath", "c"), longLink("b"), entry("a", '1', "")), fault.LayerArchive, "both the long target"},
		"name and sparse name":  {join(sparse10("GNU.sparse.name", "b"), long("b"), entry("a", '0', string(padded("0\n")))), fault.LayerArchive, "both the long name"},
		"empty long name":       {join(long(""), a), fault.LayerArchive, "empty long name"},
		"long name of size 0":   {join(entry("l", 'L', ""), a), fault.LayerArchive, "empty long name"},
		"nothing behind":        {pax("path", "b"), fault.LayerArchive, "ends behind an extended header"},
		"no name behind":        {long("b"), fault.LayerArchive, "ends behind an extended header"},
		"global in between":     {join(pax("uid", "1"), global("gid", "1"), a), fault.LayerArchive, "between an extended header and its entry"},
		"global path":           {join(global("path", "b"), a), fault.LayerArchive, `a record that is one entry's own: "path"`},
		"global linkpath":       {join(global("linkpath", ""), a), fault.LayerArchive, "own"},
		"global size":           {join(global("size", "1"), a), fault.LayerArchive, "own"},
		"global sparse map":     {join(global("GNU.sparse.size", "1"), a), fault.LayerArchive, "own"},
		"global xattr":          {join(global("SCHILY.xattr.user.a", "1"), a), fault.LayerArchive, "own"},
		"other global xattr":    {join(global("LIBARCHIVE.xattr.user.a", "1"), a), fault.LayerArchive, "own"},
		"global device":         {join(global("SCHILY.devmajor", "1"), a), fault.LayerArchive, "own"},
		"size of the header":    {join(entry("x", 'x', "", size("x")), a), fault.LayerArchive, "size of its extended header"},
		"negative size of it":   {join(entry("x", 'L', "", gnu, size(strings.Repeat("\xFF", 12))), a), fault.LayerArchive, "size of its extended header"},
		"header over the limit": {join(entry("x", 'x', "", sizeOf(1<<20+1)), a), fault.LayerArchive, "more than 1048576 bytes"},
		"name over the limit":   {join(entry("x", 'L', "", gnu, size("77777777777")), a), fault.LayerArchive, "more than 1048576 bytes"},
		"global over the limit": {join(entry("x", 'g', "", gnu, size(binary(12, 0x7F, 0, 0, 0, 0, 0, 0, 0))), a), fault.LayerArchive, "more than 1048576 bytes"},
		"no length":             {raw("path=a\n"), fault.LayerArchive, "malformed PAX record"},
		"no space":              {raw("7path=a\n"), fault.LayerArchive, "malformed"},
		"signed length":         {raw("+9 path=a\n"), fault.LayerArchive, "malformed"},
		"short length":          {raw("8 path=a\n"), fault.LayerArchive, "malformed"},
		"long length":           {raw("11 path=a\n"), fault.LayerArchive, "malformed"},
		"huge length":           {raw("99999999999999999999 path=a\n"), fault.LayerArchive, "malformed"},
		"length of itself":      {raw("2 \n"), fault.LayerArchive, "malformed"},
		"no value":              {raw("7 path\n"), fault.LayerArchive, "malformed"},
		"no key":                {raw("5 =a\n"), fault.LayerArchive, "malformed"},
		"NUL in an xattr's key": {raw(pairs("x.xattr.\x00", "b")), fault.LayerArchive, "NUL in its key"},
		"NUL in the key":        {raw(pairs("pa\x00th", "b")), fault.LayerArchive, "NUL in its key"},
		"junk behind":           {raw(pairs("path", "b") + "\x00\x00"), fault.LayerArchive, "malformed"},
		"uid in words":          {join(pax("uid", "root"), a), fault.LayerArchive, "PAX record uid is no number"},
		"negative uid":          {join(pax("uid", "-1"), a), fault.LayerArchive, "no number"},
		"large gid":             {join(pax("gid", "4294967296"), a), fault.LayerArchive, "4294967296"},
		"global uid":            {join(global("uid", "4294967296"), a), fault.LayerArchive, "4294967296"},
		"size over 63 bits":     {join(pax("size", "9223372036854775808"), a), fault.LayerArchive, "PAX record size is no number"},
		"absurd size":           {join(pax("size", "9223372036854775807"), a), fault.LayerArchive, "its size is 9223372036854775807"},
		"negative size":         {join(pax("size", "-5"), a), fault.LayerArchive, "no number"},
		"time in words":         {join(pax("mtime", "now"), a), fault.LayerArchive, "mtime is no time"},
		"no seconds":            {join(pax("mtime", ".5"), a), fault.LayerArchive, "no time"},
		"only a sign":           {join(pax("mtime", "-"), a), fault.LayerArchive, "no time"},
		"two fractions":         {join(pax("mtime", "1.5.5"), a), fault.LayerArchive, "no time"},
		"late junk":             {join(pax("mtime", "1.0000000000000000x"), a), fault.LayerArchive, "no time"},
		"far time":              {join(pax("mtime", "-72057594037927937"), a), fault.LayerArchive, "seconds from 1970"},
	})
	// The limit is of all extended headers of one entry, and of each global one.
	l := tarfile.Limits{HeaderBytes: 100}
	b60 := strings.Repeat("b", 60)
	refuseAll(t, l, map[string]refusal{
		"together": {join(long(b60), longLink(b60), entry("a", '2', "")), fault.LayerArchive, "more than 100 bytes"},
	})
	one(t, join(global("comment", b60), global("comment", b60), long(b60), a), l)
}
