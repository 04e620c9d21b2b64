package openapi

import "net/http"

// Handler serves a document.
func Handler(text []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(text) // a broken connection is the client's loss
	})
}
