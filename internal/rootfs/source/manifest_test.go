package source_test

import (
	"bytes"
	"maps"
	"math"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/rootfs/source"
)

// here is the platform of this program.
const here = "linux/" + runtime.GOARCH

// bend sets members of an object.
func bend(by object) func(object) {
	return func(o object) { change(o, by) }
}

// before puts text before the first brace's content.
func member(text string) func([]byte) []byte {
	return func(b []byte) []byte { return append([]byte("{"+text+","), b[1:]...) }
}

// small are limits that small images can exceed.
var small = source.Limits{Layers: 3, Manifest: 4096, Config: 4096, Compressed: 1000, ConfigItems: 10, ConfigBytes: 100}

// Each image is refused from a registry and from a layout alike.
func TestImagesThatAreRefused(t *testing.T) {
	layer := func(mediaType string, edit func(object)) spec {
		return spec{parts: []part{{plain: archiveOf(t, "a", "1"), mediaType: mediaType, edit: edit}}}
	}
	many := func(n int) []string { return strings.Split(strings.Repeat("x,", n-1)+"x", ",") }
	long := strings.Repeat("x", 101)
	zero := "sha256:" + strings.Repeat("0", 64)
	cases := []struct {
		name string
		spec spec
		want *fault.Code
		says string
	}{
		{"manifests and layers", spec{edit: bend(object{"manifests": []object{}})}, fault.ManifestAmbiguous, "both"},
		{"manifests and a config", spec{edit: bend(object{"manifests": []object{}, "layers": nil})}, fault.ManifestAmbiguous, "both"},
		{"another type in the manifest", spec{edit: bend(object{"mediaType": dockerManifest})}, fault.ManifestAmbiguous, "served as"},
		{"an index in the manifest's words", spec{edit: bend(object{"mediaType": ociIndex}), served: ociIndex}, fault.ManifestAmbiguous, ""},
		{"schema 1", spec{edit: bend(object{"schemaVersion": 1})}, fault.ManifestAmbiguous, "schema 1"},
		{"schema 1 by its layers", spec{edit: bend(object{"fsLayers": []object{}})}, fault.ManifestAmbiguous, "schema 1"},
		{"schema 1 by its type", spec{manifestType: "application/vnd.docker.distribution.manifest.v1+prettyjws"}, fault.ManifestAmbiguous, "schema 1"},
		{"schema 3", spec{edit: bend(object{"schemaVersion": 3})}, fault.ImageInvalid, "schema 3"},
		{"no schema", spec{edit: bend(object{"schemaVersion": nil})}, fault.ImageInvalid, ""},
		{"a member twice", spec{raw: member(`"layers":[]`)}, fault.ManifestAmbiguous, "twice"},
		{"a member in another case", spec{raw: member(`"Layers":[]`)}, fault.ManifestAmbiguous, "Layers"},
		{"bytes after the manifest", spec{raw: func(b []byte) []byte { return append(b, "{}"...) }}, fault.ManifestAmbiguous, "followed"},
		{"no object", spec{raw: func([]byte) []byte { return []byte(`[]`) }}, fault.ImageInvalid, "no JSON object"},
		{"no JSON", spec{raw: func(b []byte) []byte { return b[:len(b)/2] }}, fault.ImageInvalid, "no JSON object"},
		{"nothing", spec{raw: func([]byte) []byte { return nil }}, fault.ImageInvalid, "no JSON object"},
		{"a number for a list", spec{edit: bend(object{"layers": 7})}, fault.ImageInvalid, "layers"},
		{"no config", spec{edit: bend(object{"config": nil})}, fault.ManifestAmbiguous, ""},
		{"a null config", spec{raw: func(b []byte) []byte { return []byte(`{"schemaVersion":2,"config":null,"layers":[]}`) }}, fault.ImageInvalid, "config"},
		{"a chart", spec{configType: "application/vnd.cncf.helm.config.v1+json"}, fault.ImageInvalid, "helm"},
		{"an artifact", spec{manifestType: "application/vnd.acme.thing+json"}, fault.ImageInvalid, "acme"},

		{"manifest too large", spec{edit: bend(object{"annotations": object{"x": strings.Repeat("x", 5000)}})}, fault.ManifestTooLarge, "4096"},
		{"config too large", spec{config: object{"comment": strings.Repeat("x", 5000)}}, fault.ManifestTooLarge, "4096"},
		{"too many layers", spec{parts: []part{{mediaType: ociLayer}, {mediaType: ociLayer}, {mediaType: ociLayer}, {mediaType: ociLayer}}}, fault.ImageInvalid, "at most 3"},
		{"too many bytes", layer(ociLayer, nil), fault.TooManyBytes, "1000"},
		{"too many bytes by far", layer(ociLayer+"+gzip", bend(object{"size": int64(math.MaxInt64)})), fault.TooManyBytes, "1000"},

		{"a layer elsewhere", layer(ociLayer+"+gzip", bend(object{"urls": []string{"https://example.com/x"}})), fault.LayerForeign, "layer 1"},
		{"docker's foreign layer", layer("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", nil), fault.LayerForeign, "foreign"},
		{"a layer that is not distributed", layer("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", nil), fault.LayerForeign, "nondistributable"},
		{"an encrypted layer", layer(ociLayer+"+gzip+encrypted", nil), fault.LayerMedia, "encrypted"},
		{"an unknown layer", layer("application/vnd.in-toto+json", nil), fault.LayerMedia, "in-toto"},
		{"an unknown compression", layer(ociLayer+"+br", nil), fault.LayerMedia, "+br"},
		{"no type of layer", layer("", nil), fault.LayerMedia, ""},
		{"a layer without a digest", layer(ociLayer+"+gzip", bend(object{"digest": nil})), fault.ImageInvalid, "layer 1"},
		{"a digest that is a path", layer(ociLayer+"+gzip", bend(object{"digest": "sha256:../../../../etc/passwd"})), fault.ImageInvalid, "etc/passwd"},
		{"a digest in upper case", layer(ociLayer+"+gzip", bend(object{"digest": "sha256:" + strings.Repeat("A", 64)})), fault.ImageInvalid, "AAA"},
		{"a digest of another kind", layer(ociLayer+"+gzip", bend(object{"digest": "md5:d41d8cd98f00b204e9800998ecf8427e"})), fault.ImageInvalid, "md5"},
		{"a negative size", layer(ociLayer+"+gzip", bend(object{"size": -1})), fault.ImageInvalid, "-1"},
		{"a size that is none", layer(ociLayer+"+gzip", bend(object{"size": 1.5})), fault.ImageInvalid, "size"},
		{"a size of too many bits", layer(ociLayer+"+gzip", bend(object{"size": 1e30})), fault.ImageInvalid, "size"},

		{"fewer diff ids", spec{config: object{"rootfs": object{"type": "layers", "diff_ids": []string{}}}}, fault.LayerDigest, "its config 0"},
		{"no rootfs", spec{config: object{"rootfs": nil}}, fault.LayerDigest, "its config 0"},
		{"a diff id that is none", spec{config: object{"rootfs": object{"diff_ids": []string{"sha256:1"}}}}, fault.ImageInvalid, "sha256:1"},
		{"too many diff ids", spec{config: object{"rootfs": object{"diff_ids": []string{zero, zero, zero, zero}}}}, fault.ImageInvalid, "at most 3"},
		{"another diff id of a plain layer", spec{parts: []part{{plain: []byte("x"), mediaType: ociLayer, diffID: zero}}}, fault.LayerDigest, zero},
		{"config of another digest", spec{edit: func(m object) { change(m["config"].(object), object{"digest": zero}) }}, fault.ImageInvalid, ""},
		{"config of another size", spec{edit: func(m object) { change(m["config"].(object), object{"size": 5}) }}, fault.LayerDigest, "5"},
		{"a config's member twice", spec{rawConfig: member(`"config":{}`)}, fault.ManifestAmbiguous, "twice"},
		{"a config's member in another case", spec{rawConfig: member(`"Config":{}`)}, fault.ManifestAmbiguous, "Config"},
		{"a config that is none", spec{rawConfig: func([]byte) []byte { return []byte(`"x"`) }}, fault.ImageInvalid, "config"},

		{"another system", spec{config: object{"os": "windows"}}, fault.ImagePlatform, "windows"},
		{"another processor", spec{config: object{"architecture": "s390x"}}, fault.ImagePlatform, "s390x"},
		{"a newer processor", spec{config: object{"architecture": "amd64", "variant": "v9"}}, fault.ImagePlatform, "v9"},

		{"too much environment", spec{run: object{"Env": many(11)}}, fault.ImageConfigBad, "Env"},
		{"too long an environment", spec{run: object{"Env": []string{long}}}, fault.ImageConfigBad, "Env"},
		{"a NUL in the environment", spec{run: object{"Env": []string{"A=\x00"}}}, fault.ImageConfigBad, "NUL"},
		{"too long a command", spec{run: object{"Cmd": many(6), "Entrypoint": many(5)}}, fault.ImageConfigBad, "Entrypoint and Cmd"},
		{"a command that is no list", spec{run: object{"Cmd": "sh"}}, fault.ImageInvalid, "Cmd"},
		{"too long a directory", spec{run: object{"WorkingDir": strings.Repeat("x", 4097)}}, fault.ManifestTooLarge, ""},
		{"a NUL in the directory", spec{run: object{"WorkingDir": "/\x00"}}, fault.ImageConfigBad, "WorkingDir"},
		{"too long a user", spec{run: object{"User": strings.Repeat("x", 257)}}, fault.ImageConfigBad, "User"},
		{"too long a port", spec{run: object{"ExposedPorts": object{strings.Repeat("1", 300): object{}}}}, fault.ImageConfigBad, "port"},
		{"too many labels", spec{run: object{"Labels": labels(11)}}, fault.ImageConfigBad, "labels"},
		{"too long labels", spec{run: object{"Labels": object{"a": long}}}, fault.ImageConfigBad, "labels"},
	}
	for _, c := range cases {
		s := newStock()
		s.tags["1"] = s.image(t, c.spec)
		for _, ref := range []string{s.serve(t) + "/app:1", "oci:" + s.layout(t) + ":1"} {
			t.Run(c.name+" "+ref[:4], func(t *testing.T) {
				r := request(ref)
				r.Limits = small
				_, err := source.Resolve(t.Context(), r)
				refused(t, err, c.want, c.says)
				if err != nil && !strings.Contains(err.Error(), ref) {
					t.Errorf("the image is not named: %v", err)
				}
			})
		}
	}
}

func labels(n int) object {
	o := object{}
	for i := range n {
		o[strconv.Itoa(i)] = ""
	}
	return o
}

// What honest images have must pass, and so must what they lack.
func TestImagesThatPass(t *testing.T) {
	zstd := []part{{plain: archiveOf(t, "a", "1"), mediaType: ociLayer + "+zstd"}}
	same := part{plain: archiveOf(t, "a", "1"), mediaType: dockerLayer}
	for name, c := range map[string]spec{
		"no layers":                       {parts: []part{}},
		"null layers":                     {parts: []part{}, raw: func(b []byte) []byte { return bytes.Replace(b, []byte(`"layers":[]`), []byte(`"layers":null`), 1) }},
		"the same layer twice":            {parts: []part{same, same}},
		"no platform":                     {config: object{"os": nil, "architecture": nil}},
		"nothing to run":                  {config: object{"config": nil}},
		"null to run":                     {run: object{"Entrypoint": nil, "Cmd": nil, "Env": nil}},
		"no media type within":            {edit: bend(object{"mediaType": nil})},
		"empty urls":                      {parts: []part{{plain: archiveOf(t, "a", "1"), mediaType: ociLayer, edit: bend(object{"urls": []string{}})}}},
		"annotations of any case":         {edit: bend(object{"annotations": object{"Layers": "", "layers": "", "CONFIG": ""}})},
		"zstd":                            {parts: zstd},
		"an older processor of this kind": {config: object{"variant": ""}},
		"docker's manifest of OCI parts":  {manifestType: dockerManifest},
	} {
		s := newStock()
		s.tags["1"] = s.image(t, c)
		host, dir := s.serve(t), s.layout(t)
		for _, ref := range []string{host + "/app:1", "oci:" + dir + ":1"} {
			if im, err := source.Resolve(t.Context(), request(ref)); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if err := im.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAnIndexChoosesThePlatform(t *testing.T) {
	s := newStock()
	for i, p := range []string{"linux/amd64", "linux/amd64/v3", "linux/arm64/v8", "linux/arm/v5", "linux/arm/v6", "linux/arm/v7", "linux/s390x", "windows/amd64"} {
		parts := strings.Split(p+"/", "/")
		s.tags[p] = on(s.image(t, spec{config: object{"os": parts[0], "architecture": parts[1], "variant": parts[2]}, run: object{"User": strconv.Itoa(i)}}), p)
	}
	attestation := s.image(t, spec{configType: "application/vnd.in-toto+json"})
	signed := maps.Clone(s.tags["linux/amd64"])
	signed["artifactType"] = "application/vnd.example.signature"
	index := func(platforms ...string) object {
		entries := []object{on(attestation, "unknown/unknown"), on(signed, "linux/amd64")}
		for _, p := range platforms {
			entries = append(entries, s.tags[p])
		}
		return s.index(t, ociIndex, entries...)
	}
	all := []string{"linux/amd64/v3", "linux/amd64", "linux/arm/v5", "linux/arm/v6", "linux/arm/v7", "linux/arm64/v8", "linux/s390x", "windows/amd64"}
	nested := s.index(t, dockerList, on(attestation, "unknown/unknown"), index("linux/s390x"), index("linux/arm64/v8", "linux/amd64"))
	for i, c := range []struct {
		index object
		want  string
		gets  string
	}{
		{index(all...), "linux/amd64", "linux/amd64"},
		{index(all...), "linux/amd64/v1", "linux/amd64"},
		{index(all...), "linux/x86_64", "linux/amd64"},
		{index(all...), "linux/amd64/v2", "linux/amd64"},
		{index(all...), "linux/amd64/v4", "linux/amd64/v3"},
		{index(all...), "linux/arm64", "linux/arm64/v8"},
		{index(all...), "linux/arm64/v8", "linux/arm64/v8"},
		{index(all...), "linux/arm64/v9", "linux/arm64/v8"},
		{index(all...), "linux/arm", "linux/arm/v7"},
		{index(all...), "linux/arm/v7", "linux/arm/v7"},
		{index(all...), "linux/arm/v6", "linux/arm/v6"},
		{index("linux/arm/v5", "linux/arm/v6"), "linux/arm/v7", "linux/arm/v6"},
		{index("linux/arm/v7"), "linux/arm/v6", ""},
		{index("linux/amd64/v3"), "linux/amd64", ""},
		{index("linux/arm64/v8"), "linux/arm/v7", ""},
		{index(all...), "windows/amd64", "windows/amd64"},
		{index(all...), "linux/riscv64", ""},
		{index(), "linux/amd64", ""},
		{nested, "linux/amd64", "linux/amd64"},
		{nested, "linux/s390x", "linux/s390x"},
		{nested, "linux/arm64", "linux/arm64/v8"},
		{nested, "linux/riscv64", ""},
		{s.index(t, ociIndex, s.image(t, spec{config: object{"os": "linux", "architecture": "s390x"}})), "linux/amd64", ""},
	} {
		s.tags["1"] = c.index
		host, dir := s.serve(t), s.layout(t)
		for _, ref := range []string{host + "/app:1", "oci:" + dir + ":1"} {
			r := request(ref)
			r.Platform = c.want
			im, err := source.Resolve(t.Context(), r)
			switch {
			case c.gets == "":
				refused(t, err, fault.ImagePlatform, c.want)
			case err != nil:
				t.Errorf("%d: %s: %v", i, c.want, err)
			case im.Digest != s.tags[c.gets]["digest"]:
				t.Errorf("%d: %s got %s (user %s), want %s", i, c.want, im.Platform, im.Config.User, c.gets)
			}
			if im != nil {
				_ = im.Close()
			}
		}
	}
}

func TestIndexesThatAreRefused(t *testing.T) {
	s := newStock()
	image := on(s.image(t, spec{}), here)
	foreign := s.image(t, spec{config: object{"architecture": "s390x"}})
	deep := func(n int) object {
		d := s.index(t, ociIndex, image)
		for range n {
			d = s.index(t, ociIndex, d)
		}
		return d
	}
	edited := func(by object) object {
		d := maps.Clone(image)
		change(d, by)
		return s.index(t, ociIndex, d)
	}
	var wide []object
	for i := range 20 {
		wide = append(wide, s.index(t, ociIndex, on(foreign, "linux/s390x"), on(foreign, "linux/p"+strconv.Itoa(i))))
	}
	for name, c := range map[string]struct {
		index object
		want  *fault.Code // nil: it passes
		says  string
	}{
		"two nested":                           {deep(2), nil, ""},
		"three nested":                         {deep(3), fault.ImageInvalid, "deeper than 2"},
		"many":                                 {s.index(t, ociIndex, wide...), fault.ImageInvalid, "documents"},
		"another size":                         {edited(object{"size": 3}), fault.ImageInvalid, "its index says 3"},
		"too large by its size":                {edited(object{"size": 5 << 20}), fault.ManifestTooLarge, ""},
		"another type":                         {edited(object{"mediaType": dockerManifest}), fault.ManifestAmbiguous, dockerManifest},
		"a foreign one that claims to be ours": {s.index(t, ociIndex, on(foreign, here)), fault.ImagePlatform, "s390x"},
		"two without a platform":               {s.index(t, ociIndex, foreign, s.image(t, spec{})), fault.ImagePlatform, ""},
		"one without a platform":               {s.index(t, ociIndex, s.image(t, spec{})), nil, ""},
		"an entry twice":                       {s.index(t, ociIndex, image, image), nil, ""},
		"manifests that are none":              {s.add(ociIndex, []byte(`{"schemaVersion":2,"manifests":{}}`)), fault.ImageInvalid, "manifests"},
		"no manifests":                         {s.add(ociIndex, []byte(`{"schemaVersion":2}`)), fault.ManifestAmbiguous, ""},
	} {
		s.tags["1"] = c.index
		host, dir := s.serve(t), s.layout(t)
		for _, ref := range []string{host + "/app:1", "oci:" + dir + ":1"} {
			im, err := source.Resolve(t.Context(), request(ref))
			if c.want != nil {
				refused(t, err, c.want, c.says)
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if im != nil {
				_ = im.Close()
			}
		}
	}
}
