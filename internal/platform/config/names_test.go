package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/paddock-dev/paddock/internal/platform/config"
)

// Every variable that the specification and the tools around it know is taken
// for what it means, or said to mean nothing here. None is passed over in
// silence: whoever moves an installation must not find out by a lost directory.
func TestEveryKnownNameIsTakenOrTold(t *testing.T) {
	secret := func(s config.Secret) string { return s.Reveal() }
	for _, c := range []struct {
		name, value string
		read        func(config.Config) string // nil: it has no effect
		want        string
		notice      string // what is said of it; empty: nothing
	}{
		{"CUBE_TEMPLATE_CENTER_ADDR", "http://tc:1", func(c config.Config) string { return c.Master.TemplateCenterAddr }, "http://tc:1", ""},
		{"CUBE_TC_ADDR", "http://tc:1", func(c config.Config) string { return c.Master.TemplateCenterAddr }, "http://tc:1", "old name of CUBE_TEMPLATE_CENTER_ADDR"},
		{"CUBE_TEMPLATE_CALLBACK_TOKEN", "0123456789abcdef", func(c config.Config) string { return secret(c.Auth.CallbackToken) }, "0123456789abcdef", ""},
		{"CUBE_TC_CALLBACK_TOKEN", "0123456789abcdef", func(c config.Config) string { return secret(c.Auth.CallbackToken) }, "0123456789abcdef", "old name of CUBE_TEMPLATE_CALLBACK_TOKEN"},
		{"CUBE_MASTER_ADDR", "http://m:1", func(c config.Config) string { return c.Master.Addr }, "http://m:1", ""},
		{"CUBE_TEMPLATE_CENTER_MASTER_ENDPOINT", "http://m:1", func(c config.Config) string { return c.Master.Addr }, "http://m:1", "old name of CUBE_MASTER_ADDR"},
		{"CUBE_MASTER_ENDPOINT", "http://m:1", func(c config.Config) string { return c.Master.Addr }, "http://m:1", "old name of CUBE_MASTER_ADDR"},
		{"CUBE_TEMPLATE_CENTER_ARTIFACT_STORE_DIR", "/a", func(c config.Config) string { return c.ArtifactStore.Dir }, "/a", ""},
		{"CUBEMASTER_ROOTFS_ARTIFACT_STORE_DIR", "/a", func(c config.Config) string { return c.ArtifactStore.Dir }, "/a", "old name of"},
		{"CUBE_TEMPLATE_CENTER_ARTIFACT_WORK_DIR", "/w", func(c config.Config) string { return c.TemplateCenter.WorkDir }, "/w", ""},
		{"CUBEMASTER_ROOTFS_ARTIFACT_DIR", "/w", func(c config.Config) string { return c.TemplateCenter.WorkDir }, "/w", "old name of"},
		{"CUBE_TEMPLATE_CENTER_LOOP_MOUNT_EXT4_ENABLED", "true", nil, "", "has no effect: images are made without loop devices"},
		{"CUBEMASTER_LOOP_MOUNT_EXT4_ENABLED", "true", nil, "", "has no effect"},
		{"CUBE_TEMPLATE_CENTER_MAX_CONCURRENT_BUILDS", "5", func(c config.Config) string { return fmt.Sprint(c.TemplateCenter.MaxConcurrentBuilds) }, "5", ""},
		{"CUBE_TC_MAX_CONCURRENT_BUILDS", "5", func(c config.Config) string { return fmt.Sprint(c.TemplateCenter.MaxConcurrentBuilds) }, "5", "old name of"},
		{"CUBE_TEMPLATE_CENTER_RECONCILE_DISABLED", "true", nil, "", "has no effect"},
		{"CUBE_TEMPLATE_CENTER_RECONCILE_INTERVAL", "7m", func(c config.Config) string { return c.TemplateCenter.ReconcileInterval.String() }, "7m0s", ""},
		{"CUBE_TEMPLATE_CENTER_RECONCILE_STALE_AFTER", "7m", func(c config.Config) string {
			return c.TemplateCenter.PendingStaleAfter.String() + " " + c.TemplateCenter.PullingStaleAfter.String() + " " + c.TemplateCenter.RunningStaleAfter.String()
		}, "7m0s 7m0s 7m0s", "old name of"},
		{"CUBE_TEMPLATE_CENTER_RECONCILE_PENDING_STALE_AFTER", "7m", func(c config.Config) string { return c.TemplateCenter.PendingStaleAfter.String() }, "7m0s", ""},
		{"CUBE_TEMPLATE_CENTER_RECONCILE_RUNNING_STALE_AFTER", "7m", func(c config.Config) string { return c.TemplateCenter.RunningStaleAfter.String() }, "7m0s", ""},
		{"CUBE_TEMPLATE_CENTER_RECONCILE_PULLING_STALE_AFTER", "7m", func(c config.Config) string { return c.TemplateCenter.PullingStaleAfter.String() }, "7m0s", ""},
		{"CUBE_TEMPLATE_CENTER_NODE_IP", "10.0.0.1", nil, "", "has no effect"},
		{"CUBE_SANDBOX_NODE_IP", "10.0.0.1", nil, "", "has no effect"},
		{"CUBE_TEMPLATECENTER_LAYER_CACHE_DIR", "/l", func(c config.Config) string { return c.TemplateCenter.CacheDir }, "/l", "old name of PADDOCK_LAYER_CACHE_DIR"},
		{"CUBE_TEMPLATECENTER_LAYER_CACHE_QUOTA_BYTES", "21474836480", func(c config.Config) string { return fmt.Sprint(c.TemplateCenter.CacheQuotaMiB) }, "20480", "old name of PADDOCK_LAYER_CACHE_QUOTA_MIB"},
		{"CUBE_TEMPLATECENTER_LAYER_CACHE_QUOTA_BYTES", "20GiB", nil, "", "has no effect"},
		{"CUBEMASTER_NATIVE_ROOTFS_EXPORT_ENABLED", "true", nil, "", "has no effect"},
		{"CUBEMASTER_NATIVE_ROOTFS_EXPORT_JOBS", "6", nil, "", "has no effect"},
		{"CUBEMASTER_EXT4_OVERHEAD_PERCENT", "10", nil, "", "has no effect"},
		{"CUBEMASTER_EXT4_FIXED_OVERHEAD_MIB", "256", nil, "", "has no effect"},
		{"CUBE_ARTIFACT_STORE_BACKEND", "fs", func(c config.Config) string { return c.ArtifactStore.Backend }, "dir", ""},
		{"CUBE_S3_ENDPOINT", "s3:9000", func(c config.Config) string { return c.ArtifactStore.S3.Endpoint }, "s3:9000", ""},
		{"CUBE_S3_BUCKET", "bytes", func(c config.Config) string { return c.ArtifactStore.S3.Bucket }, "bytes", ""},
		{"CUBE_S3_ACCESS_KEY", "ak", func(c config.Config) string { return secret(c.ArtifactStore.S3.AccessKey) }, "ak", ""},
		{"CUBE_S3_SECRET_KEY", "sk", func(c config.Config) string { return secret(c.ArtifactStore.S3.SecretKey) }, "sk", ""},
		{"CUBE_S3_REGION", "eu", func(c config.Config) string { return c.ArtifactStore.S3.Region }, "eu", ""},
		{"CUBE_S3_USE_PATH_STYLE", "false", func(c config.Config) string { return fmt.Sprint(c.ArtifactStore.S3.PathStyle) }, "false", ""},
		{"CUBE_S3_USE_SSL", "true", func(c config.Config) string { return fmt.Sprint(c.ArtifactStore.S3.UseSSL) }, "true", ""},
		{"CUBE_S3_ARTIFACT_PREFIX", "p/", func(c config.Config) string { return c.ArtifactStore.S3.Prefix }, "p/", ""},
		{"CUBE_MASTER_IMAGE_JOB_RECONCILE_DISABLED", "true", nil, "", "has no effect"},
		{"CUBE_MASTER_BUILT_STALE_AFTER", "7m", func(c config.Config) string { return c.Master.BuiltStaleAfter.String() }, "7m0s", ""},
		{"CUBE_AUTO_MIGRATION", "false", func(c config.Config) string { return fmt.Sprint(c.Database.AutoMigrate) }, "false", ""},
		{"CUBEMASTER_NO_SUCH_THING", "1", nil, "", "is no setting and has no effect"},
		{"CUBE_MASTER_BUILD_STALE_AFTER", "1", nil, "", "the nearest is CUBE_MASTER_BUILT_STALE_AFTER"},
	} {
		l, err := config.Read(config.LoadOptions{Environ: []string{c.name + "=" + c.value}})
		if err != nil {
			t.Errorf("%s=%s: %v", c.name, c.value, err)
			continue
		}
		if c.read != nil {
			if got := c.read(l.Config); got != c.want {
				t.Errorf("%s=%s gives %q, want %q", c.name, c.value, got, c.want)
			}
		}
		said := strings.Join(l.Notices, "; ")
		if c.notice == "" && said != "" || !strings.Contains(said, c.notice) || c.notice != "" && !strings.Contains(said, c.name) {
			t.Errorf("%s=%s: notices %q, want %q", c.name, c.value, said, c.notice)
		}
	}
}
