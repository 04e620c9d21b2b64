package cubeapi

import (
	"context"
	"net/http"
)

// SchedulerConfigAnswer carries the rules by which sandboxes are placed.
type SchedulerConfigAnswer struct {
	Envelope
	Config SchedulerConfig `json:"config"`
}

// SchedulerConfig is what one master goes by.
type SchedulerConfig struct {
	Path     string   `json:"path,omitempty"` // of the file on the master; absent: the defaults hold
	Hash     string   `json:"hash,omitempty"` // of the text of the file that holds
	Since    string   `json:"since"`
	Good     bool     `json:"good"`            // false: the file as it stands is not what holds
	Error    string   `json:"error,omitempty"` // why not
	ErrorAt  string   `json:"error_at,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	Rules    string   `json:"rules"` // all of them, as a file would say it
}

// SchedulerConfig returns the rules by which the master places sandboxes.
func (c *Client) SchedulerConfig(ctx context.Context) (*SchedulerConfig, error) {
	var a SchedulerConfigAnswer
	if err := c.call(ctx, http.MethodGet, PathSchedulerConfig, nil, &a); err != nil {
		return nil, err
	}
	return &a.Config, nil
}
