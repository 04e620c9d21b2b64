package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// field is one setting: a leaf of Config, as its tags tell.
type field struct {
	key   string // dotted path in the file, such as master.listen
	env   string
	doc   string
	value reflect.Value // settable when the Config was given by address
}

// fieldsOf returns every setting of c in the order of the file.
func fieldsOf(c *Config) []field { return walk("", reflect.ValueOf(c).Elem()) }

func walk(prefix string, v reflect.Value) []field {
	var all []field
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		key := prefix + tag.Get("yaml")
		if inner := v.Field(i); inner.Kind() == reflect.Struct {
			all = append(all, walk(key+".", inner)...)
		} else {
			all = append(all, field{key: key, env: tag.Get("env"), doc: tag.Get("doc"), value: inner})
		}
	}
	return all
}

func (f field) secret() bool { return f.value.Type() == reflect.TypeFor[Secret]() }

func (f field) list() bool { return f.value.Kind() == reflect.Slice }

// text returns the value as a file or the environment would give it. A secret
// stays hidden.
func (f field) text() string {
	switch v := f.value.Interface().(type) {
	case time.Duration:
		return short(v)
	case []string:
		return strings.Join(v, ",")
	default:
		return fmt.Sprint(v)
	}
}

// raw returns the value to compare with an earlier one.
func (f field) raw() any {
	if list, ok := f.value.Interface().([]string); ok {
		return strings.Join(list, "\x00")
	}
	return f.value.Interface()
}

// short writes a duration as a person would: 10m, not 10m0s.
func short(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// set reads text into the setting. Its fault never shows a secret, since a
// secret takes any text.
func (f field) set(text string) error {
	switch f.value.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return f.wants(text, "a duration with its unit, such as 30s or 10m")
		}
		f.value.SetInt(int64(d))
		return nil
	case []string:
		return f.setList(strings.Split(text, ","))
	}
	switch f.value.Kind() {
	case reflect.String:
		f.value.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return f.wants(text, "true or false")
		}
		f.value.SetBool(b)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return f.wants(text, "a whole number")
		}
		f.value.SetInt(int64(n))
	case reflect.Float64:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return f.wants(text, "a number")
		}
		f.value.SetFloat(x)
	default:
		panic("config: no reader for a setting of type " + f.value.Type().String())
	}
	return nil
}

// setList keeps the parts that are not blank.
func (f field) setList(parts []string) error {
	list := []string{}
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" {
			list = append(list, p)
		}
	}
	f.value.Set(reflect.ValueOf(list))
	return nil
}

func (f field) wants(text, what string) error {
	return fmt.Errorf("%q: must be %s", text, what)
}
