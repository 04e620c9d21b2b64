package bench_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/paddock-dev/paddock/bench"
)

func TestP50(t *testing.T) {
	ms := func(all ...int) (out []time.Duration) {
		for _, n := range all {
			out = append(out, time.Duration(n)*time.Millisecond)
		}
		return out
	}
	for _, c := range []struct {
		all  []time.Duration
		want float64
	}{{ms(7), 7}, {ms(9, 1, 5), 5}, {ms(4, 1, 3, 2), 2.5}} {
		if got := bench.P50(c.all); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.all, got, c.want)
		}
	}
}

func TestPrintWritesOneObjectALine(t *testing.T) {
	var b bytes.Buffer
	if err := bench.Print(&b, true, bench.Figure{"a.b", 1.5, "x", 3, "of"}, bench.Figure{Name: "c"}); err != nil {
		t.Fatal(err)
	}
	want := `{"figure":"a.b","value":1.5,"unit":"x","n":3,"note":"of"}
{"figure":"c","value":0,"unit":"","n":0,"note":""}
`
	if b.String() != want {
		t.Errorf("printed %s", b.String())
	}
}
