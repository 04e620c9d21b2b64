package templatecenter

import "net/http"

// Routes returns the table of routes: METHOD path, and who may call.
func (c *Center) Routes() map[string]string {
	all := map[string]string{}
	for _, r := range c.table(http.NotFoundHandler()) {
		all[r.Method+" "+r.Path] = r.Security
	}
	return all
}

// Document returns the document of the face.
func (c *Center) Document() ([]byte, error) { return document(c.table(http.NotFoundHandler())).YAML() }
