package source

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/paddock-dev/paddock/internal/fault"
)

const (
	maxPath = 4096 // bytes of a working directory
	maxName = 256  // bytes of a user or a port
)

// imageConfig is what is read of an image's config.
type imageConfig struct {
	Config
	platform platform
	diffIDs  []string
}

func readConfig(raw []byte, l Limits) (imageConfig, error) {
	const what = "config"
	m, err := object(what, raw, "os", "architecture", "variant", "config", "rootfs")
	if err != nil {
		return imageConfig{}, err
	}
	p, err := platformIn(what, m)
	if err != nil {
		return imageConfig{}, err
	}
	c := imageConfig{platform: *p}
	if c.diffIDs, err = readDiffIDs(m, l); err != nil {
		return c, err
	}
	run, err := nested("config.config", m, "config", "Entrypoint", "Cmd", "Env", "WorkingDir", "User", "ExposedPorts", "Labels")
	if err != nil {
		return c, err
	}
	c.Config, err = readRun(run, l)
	return c, err
}

func readDiffIDs(m map[string]json.RawMessage, l Limits) ([]string, error) {
	fs, err := nested("rootfs", m, "rootfs", "type", "diff_ids")
	if err != nil {
		return nil, err
	}
	ids, err := value[[]string]("rootfs", fs, "diff_ids")
	if err != nil {
		return nil, err
	}
	if len(ids) > l.Layers {
		return nil, fault.New(fault.ImageInvalid, "its config names %d layers, at most %d are taken", len(ids), l.Layers)
	}
	for i, id := range ids {
		if !digestForm.MatchString(id) {
			return nil, fault.New(fault.ImageInvalid, "its config names layer %d as %.200q, which is no sha256 digest", i+1, id)
		}
	}
	return ids, nil
}

// readRun reads how the image wants to run.
func readRun(m map[string]json.RawMessage, l Limits) (Config, error) {
	var c Config
	for _, f := range []struct {
		name string
		to   *[]string
	}{{"Entrypoint", &c.Entrypoint}, {"Cmd", &c.Cmd}, {"Env", &c.Env}} {
		list, err := value[[]string]("config", m, f.name)
		if err == nil {
			err = l.allow(f.name, list)
		}
		if err != nil {
			return c, err
		}
		*f.to = list
	}
	if err := l.allow("Entrypoint and Cmd", slices.Concat(c.Entrypoint, c.Cmd)); err != nil {
		return c, err
	}
	for _, f := range []struct {
		name string
		to   *string
		most int
	}{{"WorkingDir", &c.WorkingDir, maxPath}, {"User", &c.User, maxName}} {
		s, err := value[string]("config", m, f.name)
		if err != nil {
			return c, err
		}
		if len(s) > f.most || strings.ContainsRune(s, 0) {
			return c, fault.New(fault.ImageConfigBad, "its %s %.200q has %d bytes, of at most %d, or a NUL", f.name, s, len(s), f.most)
		}
		*f.to = s
	}
	var err error
	if c.ExposedPorts, err = readPorts(m, l); err != nil {
		return c, err
	}
	return c, checkLabels(m, l)
}

// allow bounds a list of strings that will be given to a program.
func (l Limits) allow(what string, list []string) error {
	if len(list) > l.ConfigItems {
		return fault.New(fault.ImageConfigBad, "its %s has %d items, at most %d are taken", what, len(list), l.ConfigItems)
	}
	var bytes int64
	for _, s := range list {
		bytes += int64(len(s))
		if strings.ContainsRune(s, 0) {
			return fault.New(fault.ImageConfigBad, "its %s has %.200q, which holds a NUL", what, s)
		}
	}
	if bytes > l.ConfigBytes {
		return fault.New(fault.ImageConfigBad, "its %s has %d bytes, at most %d are taken", what, bytes, l.ConfigBytes)
	}
	return nil
}

// readPorts: the names of the members are the ports.
func readPorts(m map[string]json.RawMessage, l Limits) ([]string, error) {
	ports, err := nested("config.ExposedPorts", m, "ExposedPorts")
	if err != nil {
		return nil, err
	}
	var list []string
	for p := range ports {
		if len(p) > maxName {
			return nil, fault.New(fault.ImageConfigBad, "its port %.200q has %d bytes, at most %d are taken", p, len(p), maxName)
		}
		list = append(list, p)
	}
	slices.Sort(list)
	return list, l.allow("ExposedPorts", list)
}

// checkLabels bounds what is otherwise not looked at.
func checkLabels(m map[string]json.RawMessage, l Limits) error {
	labels, err := nested("config.Labels", m, "Labels")
	if err != nil {
		return err
	}
	if len(labels) > l.ConfigItems {
		return fault.New(fault.ImageConfigBad, "it has %d labels, at most %d are taken", len(labels), l.ConfigItems)
	}
	if n := int64(len(m["Labels"])); n > l.ConfigBytes {
		return fault.New(fault.ImageConfigBad, "its labels have %d bytes, at most %d are taken", n, l.ConfigBytes)
	}
	return nil
}

// fits refuses an image for another platform. One that names none was made by
// a tool that did not care.
func (c imageConfig) fits(want platform) error {
	have := c.platform
	if have.os == "" {
		have.os = want.os
	}
	if have.arch == "" {
		have.arch, have.variant = want.arch, want.variant
	}
	if fit(want, have) == 0 {
		return fault.New(fault.ImagePlatform, "it is for %s, not for %s", quoted(have.String()), want)
	}
	return nil
}
