// Package bench is how a bench program tells its figures: one object a line
// for programs, a table for people.
//
// A figure is a ratio wherever it can be: the same machine, the same run, the
// peer's time below ours. This package must never measure anything itself.
package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Figure is one published number.
type Figure struct {
	Name  string  `json:"figure"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"` // x, ms, us, /s, MB, allocs or %
	N     int     `json:"n"`    // rounds that it was made of
	Note  string  `json:"note"`
}

// Print writes figures to w: as JSON, one object a line, or as a table.
func Print(w io.Writer, asJSON bool, figures ...Figure) error {
	if asJSON {
		e := json.NewEncoder(w)
		for _, f := range figures {
			if err := e.Encode(f); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "FIGURE\tVALUE\tUNIT\tN\tNOTE")
	for _, f := range figures {
		fmt.Fprintf(t, "%s\t%.2f\t%s\t%d\t%s\n", f.Name, f.Value, f.Unit, f.N, f.Note)
	}
	return t.Flush()
}

// P50 returns the median in milliseconds of at least one duration.
func P50(all []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(all))
	mid := len(sorted) / 2
	d := sorted[mid]
	if len(sorted)%2 == 0 {
		d = (sorted[mid-1] + sorted[mid]) / 2
	}
	return float64(d) / float64(time.Millisecond)
}

// Range tells the spread of durations, for notes.
func Range(all []time.Duration) string {
	return fmt.Sprintf("%d-%d ms", slices.Min(all).Milliseconds(), slices.Max(all).Milliseconds())
}
