// Command vulndb lays out a directory of OSV reports as the database that
// govulncheck reads: index/db.json, index/modules.json, ID/GO-*.json.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"
)

type report struct {
	ID       string    `json:"id"`
	Modified time.Time `json:"modified"`
	Affected []struct {
		Package struct {
			Name string `json:"name"`
		} `json:"package"`
		Ranges []struct {
			Events []struct {
				Fixed string `json:"fixed,omitempty"`
			} `json:"events"`
		} `json:"ranges"`
	} `json:"affected"`
}

type vuln struct {
	ID       string    `json:"id"`
	Modified time.Time `json:"modified"`
	Fixed    string    `json:"fixed,omitempty"`
}

type module struct {
	Path  string `json:"path"`
	Vulns []vuln `json:"vulns"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: vulndb OSV-DIR OUT-DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "vulndb:", err)
		os.Exit(1)
	}
}

func run(in, out string) error {
	files, err := filepath.Glob(filepath.Join(in, "GO-*.json"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(out, "ID"), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(out, "index"), 0o755); err != nil {
		return err
	}
	modules, newest := map[string][]vuln{}, time.Time{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var r report
		if err := json.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if r.Modified.After(newest) {
			newest = r.Modified
		}
		for path, fixed := range r.modules() {
			modules[path] = append(modules[path], vuln{r.ID, r.Modified, fixed})
		}
		if err := os.WriteFile(filepath.Join(out, "ID", r.ID+".json"), b, 0o644); err != nil {
			return err
		}
	}
	list := make([]module, 0, len(modules))
	for path, vulns := range modules {
		list = append(list, module{path, vulns})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Path < list[j].Path })
	if err := write(filepath.Join(out, "index", "modules.json"), list); err != nil {
		return err
	}
	return write(filepath.Join(out, "index", "db.json"), map[string]time.Time{"modified": newest})
}

// modules returns each affected module with its last fixed version.
func (r report) modules() map[string]string {
	found := map[string]string{}
	for _, a := range r.Affected {
		if _, ok := found[a.Package.Name]; !ok {
			found[a.Package.Name] = ""
		}
		for _, g := range a.Ranges {
			for _, e := range g.Events {
				if e.Fixed != "" {
					found[a.Package.Name] = e.Fixed
				}
			}
		}
	}
	return found
}

func write(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}
