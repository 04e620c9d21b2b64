package config

import (
	"net"
	"net/url"
	"strings"
)

// Redirects returns the object stores, as host:port, to which a host may be led
// although their addresses are private.
func (c *Config) Redirects() []string {
	var list []string
	for _, at := range c.Cubelet.RedirectTo {
		list = append(list, strings.ToLower(at))
	}
	s := c.ArtifactStore.S3
	if s.Endpoint == "" {
		return list
	}
	host, secure := s.Endpoint, s.UseSSL
	if u, err := url.Parse(s.Endpoint); err == nil && u.Host != "" {
		host, secure = u.Host, u.Scheme == "https"
	}
	if _, _, err := net.SplitHostPort(host); err != nil {
		port := "80"
		if secure {
			port = "443"
		}
		host = net.JoinHostPort(strings.Trim(host, "[]"), port)
	}
	host = strings.ToLower(host)
	return append(list, host, s.Bucket+"."+host) // by path, or by name
}
