package rootfs_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/fault"
	"github.com/paddock-dev/paddock/internal/platform/config"
	"github.com/paddock-dev/paddock/internal/rootfs"
)

// TestEachLimitAndRuleCanBeConfigured: none is left behind on its way.
func TestEachLimitAndRuleCanBeConfigured(t *testing.T) {
	c := config.Default().TemplateCenter
	limits, policy := rootfs.LimitsOf(c.ImageLimits), rootfs.PolicyOf(c.ImagePolicy)
	if want := rootfs.DefaultLimits(); limits != want {
		t.Errorf("the configuration's defaults are\n%+v, the builder's\n%+v", limits, want)
	}
	if policy.String() != (rootfs.Policy{}).String() {
		t.Errorf("the configuration's default policy is %s", policy)
	}
	for i := range reflect.TypeFor[config.ImageLimits]().NumField() {
		changed := c.ImageLimits
		switch f := reflect.ValueOf(&changed).Elem().Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(!f.Bool())
		default:
			f.SetInt(f.Int() - 1)
		}
		if rootfs.LimitsOf(changed) == limits {
			t.Errorf("%s changes nothing", reflect.TypeFor[config.ImageLimits]().Field(i).Name)
		}
	}
	for i := range reflect.TypeFor[config.ImagePolicy]().NumField() {
		changed := c.ImagePolicy
		reflect.ValueOf(&changed).Elem().Field(i).SetString("refuse")
		if rootfs.PolicyOf(changed) == policy {
			t.Errorf("%s changes nothing", reflect.TypeFor[config.ImagePolicy]().Field(i).Name)
		}
	}
}

func TestLimitsOfOneEntry(t *testing.T) {
	layer := archive(t, xattr(xattr(file("f", ""), "user.a", strings.Repeat("v", 600)), "user.b", strings.Repeat("v", 600)))
	for name, c := range map[string]struct {
		limits rootfs.Limits
		code   *fault.Code
	}{
		"attributes":       {rootfs.Limits{Xattrs: 1}, fault.LayerXattr},
		"their bytes":      {rootfs.Limits{XattrBytes: 1000}, fault.LayerXattr},
		"extended headers": {rootfs.Limits{HeaderBytes: 1000}, fault.LayerArchive},
	} {
		if _, err := rootfs.Lay(c.limits, rootfs.Policy{}, layer); fault.Of(err) != c.code {
			t.Errorf("%s: error %v, want %s", name, err, c.code.Name)
		}
	}
	if _, err := rootfs.Lay(rootfs.Limits{Xattrs: 2, XattrBytes: 1300, HeaderBytes: 2000}, rootfs.Policy{}, layer); err != nil {
		t.Error(err)
	}
}
