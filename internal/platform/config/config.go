// Package config is every setting of every role: defaults, one strict YAML
// file, and the environment over it.
//
// Load reports all faults at once and never a secret's value. No other package
// may read the environment.
package config

import "time"

// Config is the whole file. Each role reads its own part and the common ones.
// The comment of a field is its documentation: docs/config.md is printed from
// the tags.
type Config struct {
	DataDir        string         `yaml:"data_dir" env:"PADDOCK_DATA_DIR" doc:"directory for everything that this machine keeps"`
	Log            Log            `yaml:"log"`
	Telemetry      Telemetry      `yaml:"telemetry"`
	Database       Database       `yaml:"database"`
	Redis          Redis          `yaml:"redis"`
	Auth           Auth           `yaml:"auth"`
	ArtifactStore  ArtifactStore  `yaml:"artifact_store"`
	Master         Master         `yaml:"master"`
	TemplateCenter TemplateCenter `yaml:"templatecenter"`
	Cubelet        Cubelet        `yaml:"cubelet"`
	Proxy          Proxy          `yaml:"proxy"`
}

// Log says how the program talks.
type Log struct {
	Level  string `yaml:"level" env:"PADDOCK_LOG_LEVEL" doc:"debug, info, warn or error"`
	Format string `yaml:"format" env:"PADDOCK_LOG_FORMAT" doc:"text or json"`
}

// Telemetry says where traces go; nowhere by default.
type Telemetry struct {
	OTLPEndpoint string  `yaml:"otlp_endpoint" env:"PADDOCK_OTLP_ENDPOINT" doc:"URL of an OTLP/HTTP collector; empty: traces are not exported"`
	SampleRatio  float64 `yaml:"sample_ratio" env:"PADDOCK_TRACE_SAMPLE_RATIO" doc:"share of traces that are kept, 0 to 1"`
}

// Database names the shared database.
type Database struct {
	DSN         Secret `yaml:"dsn" env:"PADDOCK_DATABASE_DSN" doc:"empty: SQLite in the data directory; sqlite:/path/file.db; or mysql://user:password@tcp(host:3306)/name"`
	AutoMigrate bool   `yaml:"auto_migrate" env:"CUBE_AUTO_MIGRATION" doc:"apply schema migrations at start"`
}

// Redis carries what may be lost: live progress and routes.
type Redis struct {
	Addr     string `yaml:"addr" env:"PADDOCK_REDIS_ADDR" doc:"host:port; empty: one process does the same in memory"`
	Password Secret `yaml:"password" env:"PADDOCK_REDIS_PASSWORD" doc:"password of Redis"`
}

// Auth holds the secrets between users, roles and hosts. `paddock up` makes
// those that are not set.
type Auth struct {
	APIKey        Secret `yaml:"api_key" env:"PADDOCK_API_KEY" doc:"key of the public faces, e2b_ and 40 hex digits"`
	CallbackToken Secret `yaml:"callback_token" env:"CUBE_TEMPLATE_CALLBACK_TOKEN" doc:"shared by master and template centre"`
	HostToken     Secret `yaml:"host_token" env:"PADDOCK_HOST_TOKEN" doc:"shared by master and cubelets"`
	InsecureOpen  bool   `yaml:"insecure_open" env:"PADDOCK_INSECURE_OPEN" doc:"development only: accept calls without any token"`
}

// ArtifactStore says where artifact bytes live.
type ArtifactStore struct {
	Backend string `yaml:"backend" env:"CUBE_ARTIFACT_STORE_BACKEND" doc:"dir (the spec's fs) or s3"`
	Dir     string `yaml:"dir" env:"CUBE_TEMPLATE_CENTER_ARTIFACT_STORE_DIR" doc:"directory of finished images; empty: artifacts/ in the data directory"`
	S3      S3     `yaml:"s3"`
}

// S3 names a bucket.
type S3 struct {
	Endpoint   string        `yaml:"endpoint" env:"CUBE_S3_ENDPOINT" doc:"host:port or URL of the object store"`
	Bucket     string        `yaml:"bucket" env:"CUBE_S3_BUCKET" doc:"bucket of artifacts"`
	AccessKey  Secret        `yaml:"access_key" env:"CUBE_S3_ACCESS_KEY" doc:"access key"`
	SecretKey  Secret        `yaml:"secret_key" env:"CUBE_S3_SECRET_KEY" doc:"secret key"`
	Region     string        `yaml:"region" env:"CUBE_S3_REGION" doc:"region"`
	PathStyle  bool          `yaml:"use_path_style" env:"CUBE_S3_USE_PATH_STYLE" doc:"address buckets by path"`
	UseSSL     bool          `yaml:"use_ssl" env:"CUBE_S3_USE_SSL" doc:"speak TLS to the object store"`
	Presign    bool          `yaml:"presign" env:"CUBE_S3_PRESIGN" doc:"downloads are answered with a link to the object store; false: the template centre sends the bytes itself"`
	PresignFor time.Duration `yaml:"presign_for" env:"CUBE_S3_PRESIGN_FOR" doc:"life of such a link, at most 168h; it is made for each request and kept nowhere"`
	Prefix     string        `yaml:"artifact_prefix" env:"CUBE_S3_ARTIFACT_PREFIX" doc:"prefix of every object key"`
}

// Master is the control plane.
type Master struct {
	Listen             string        `yaml:"listen" env:"PADDOCK_MASTER_LISTEN" doc:"address of the HTTP face"`
	Addr               string        `yaml:"addr" env:"CUBE_MASTER_ADDR" doc:"URL at which the other roles reach the master; empty: that of master.listen"`
	TemplateCenterAddr string        `yaml:"template_center_addr" env:"CUBE_TEMPLATE_CENTER_ADDR" doc:"URL of the template centre; empty: that of templatecenter.listen"`
	DownloadBaseURL    string        `yaml:"download_base_url" env:"PADDOCK_DOWNLOAD_BASE_URL" doc:"URL from which hosts download artifacts; empty: master.addr, which hands on what the template centre sends, or the template centre when no address is set"`
	HostStaleAfter     time.Duration `yaml:"host_stale_after" env:"PADDOCK_HOST_STALE_AFTER" doc:"a host not heard of for so long is not chosen"`
	CreateTimeout      time.Duration `yaml:"create_timeout" env:"PADDOCK_CREATE_TIMEOUT" doc:"bound on one sandbox create"`
	LifeTimeout        time.Duration `yaml:"life_timeout" env:"PADDOCK_LIFE_TIMEOUT" doc:"bound on one pause, resume, rollback or snapshot; a host that takes longer goes on, and is asked what came of it"`
	DistributeTimeout  time.Duration `yaml:"distribute_timeout" env:"PADDOCK_DISTRIBUTE_TIMEOUT" doc:"bound on bringing one artifact to one host"`
	DistributeWorkers  int           `yaml:"distribute_workers" env:"PADDOCK_DISTRIBUTE_WORKERS" doc:"hosts served at once for one artifact"`
	SweepInterval      time.Duration `yaml:"sweep_interval" env:"PADDOCK_SWEEP_INTERVAL" doc:"pause between sweeps over stuck jobs and sandboxes"`
	HealRebuild        bool          `yaml:"heal_rebuild" env:"PADDOCK_HEAL_REBUILD" doc:"build a template's bytes again by itself when the artifact store has lost them and the image needs no credentials"`
	BuiltStaleAfter    time.Duration `yaml:"built_stale_after" env:"CUBE_MASTER_BUILT_STALE_AFTER" doc:"a built job that nobody distributes for so long is resumed"`
	ArtifactGCAfter    time.Duration `yaml:"artifact_gc_after" env:"PADDOCK_ARTIFACT_GC_AFTER" doc:"an artifact that nothing refers to is removed from hosts and store after so long"`
	SchedulerConfig    string        `yaml:"scheduler_config" env:"PADDOCK_SCHEDULER_CONFIG" doc:"file of the scheduler's rules, see guides/scheduling.md; a change of it is taken while the master runs; empty: the defaults"`
	AuditKept          time.Duration `yaml:"audit_kept" env:"PADDOCK_AUDIT_KEPT" doc:"how long it is remembered who changed what"`
}

// TemplateCenter is the build service.
type TemplateCenter struct {
	Listen              string        `yaml:"listen" env:"CUBE_TEMPLATE_CENTER_LISTEN" doc:"address of the HTTP face"`
	WorkDir             string        `yaml:"work_dir" env:"CUBE_TEMPLATE_CENTER_ARTIFACT_WORK_DIR" doc:"scratch; empty: work/ in the data directory"`
	MaxConcurrentBuilds int           `yaml:"max_concurrent_builds" env:"CUBE_TEMPLATE_CENTER_MAX_CONCURRENT_BUILDS" doc:"builds at once; the rest wait"`
	InsecureRegistries  []string      `yaml:"insecure_registries" env:"PADDOCK_INSECURE_REGISTRIES" doc:"host:port of registries that may be reached by plain HTTP"`
	CacheDir            string        `yaml:"cache_dir" env:"PADDOCK_LAYER_CACHE_DIR" doc:"layers as registries sent them; empty: layers/ in the data directory"`
	CacheQuotaMiB       int           `yaml:"cache_quota_mib" env:"PADDOCK_LAYER_CACHE_QUOTA_MIB" doc:"MiB of layers that are kept; those of running builds may exceed it"`
	EgressCA            string        `yaml:"egress_ca" env:"PADDOCK_EGRESS_CA" doc:"PEM file of certificates put into the trust stores of every template; empty: none"`
	ImageLimits         ImageLimits   `yaml:"image_limits"`
	ImagePolicy         ImagePolicy   `yaml:"image_policy"`
	GuestBinary         string        `yaml:"guest_binary" env:"PADDOCK_GUEST_BINARY" doc:"the agent put into every template; empty: paddock-guest beside this program"`
	MaxEnvdMiB          int           `yaml:"max_envd_mib" env:"PADDOCK_MAX_ENVD_MIB" doc:"largest envd of a job's own, in MiB; master and template centre need the same"`
	BuildTimeout        time.Duration `yaml:"build_timeout" env:"PADDOCK_BUILD_TIMEOUT" doc:"bound on one build"`
	PendingStaleAfter   time.Duration `yaml:"pending_stale_after" env:"CUBE_TEMPLATE_CENTER_RECONCILE_PENDING_STALE_AFTER" doc:"a job that nobody started for so long has failed"`
	PullingStaleAfter   time.Duration `yaml:"pulling_stale_after" env:"CUBE_TEMPLATE_CENTER_RECONCILE_PULLING_STALE_AFTER" doc:"a job whose image is pulled and that nobody reported on for so long has failed; one with a builder of this system ends, or is begun anew, as soon as that is lost"`
	RunningStaleAfter   time.Duration `yaml:"running_stale_after" env:"CUBE_TEMPLATE_CENTER_RECONCILE_RUNNING_STALE_AFTER" doc:"a running job that nobody reported on for so long has failed"`
	ReconcileInterval   time.Duration `yaml:"reconcile_interval" env:"CUBE_TEMPLATE_CENTER_RECONCILE_INTERVAL" doc:"pause between sweeps over stalled jobs"`
}

// ImageLimits bound what an image may hold. Images that people use pass the
// defaults.
type ImageLimits struct {
	Entries       int  `yaml:"entries" env:"PADDOCK_IMAGE_ENTRIES" doc:"entries of all layers, and directories that no entry names"`
	FileMiB       int  `yaml:"file_mib" env:"PADDOCK_IMAGE_FILE_MIB" doc:"MiB of files of all layers"`
	CompressedMiB int  `yaml:"compressed_mib" env:"PADDOCK_IMAGE_COMPRESSED_MIB" doc:"MiB of all layers as they travel"`
	Ratio         int  `yaml:"ratio" env:"PADDOCK_IMAGE_RATIO" doc:"times its size that a layer may grow, once it is over growth_mib"`
	WindowMiB     int  `yaml:"window_mib" env:"PADDOCK_IMAGE_WINDOW_MIB" doc:"MiB of memory that a layer's zstd compression may ask for"`
	Layers        int  `yaml:"layers" env:"PADDOCK_IMAGE_LAYERS" doc:"layers of one image"`
	ManifestKiB   int  `yaml:"manifest_kib" env:"PADDOCK_IMAGE_MANIFEST_KIB" doc:"KiB of a manifest or an index"`
	ConfigKiB     int  `yaml:"config_kib" env:"PADDOCK_IMAGE_CONFIG_KIB" doc:"KiB of an image's config"`
	Depth         int  `yaml:"depth" env:"PADDOCK_IMAGE_DEPTH" doc:"names in one path"`
	PathBytes     int  `yaml:"path_bytes" env:"PADDOCK_IMAGE_PATH_BYTES" doc:"bytes of one path"`
	GrowthMiB     int  `yaml:"growth_mib" env:"PADDOCK_IMAGE_GROWTH_MIB" doc:"MiB that a layer may become before its ratio is looked at"`
	ConfigItems   int  `yaml:"config_items" env:"PADDOCK_IMAGE_CONFIG_ITEMS" doc:"items of each list of an image's config: environment, command, ports, labels"`
	ConfigListKiB int  `yaml:"config_list_kib" env:"PADDOCK_IMAGE_CONFIG_LIST_KIB" doc:"KiB of each list of an image's config"`
	Xattrs        int  `yaml:"xattrs" env:"PADDOCK_IMAGE_XATTRS" doc:"extended attributes of one entry"`
	XattrKiB      int  `yaml:"xattr_kib" env:"PADDOCK_IMAGE_XATTR_KIB" doc:"KiB of the extended attributes of one entry"`
	HeaderKiB     int  `yaml:"header_kib" env:"PADDOCK_IMAGE_HEADER_KIB" doc:"KiB of what an archive says of one entry"`
	AbsoluteNames bool `yaml:"absolute_names" env:"PADDOCK_IMAGE_ABSOLUTE_NAMES" doc:"true: a slash before an entry's name is dropped, as some builders write it; false: it is refused"`
}

// ImagePolicy says what becomes of entries that a sandbox may not need: allow,
// strip (the template is made without them) or refuse.
type ImagePolicy struct {
	Devices      string `yaml:"devices" env:"PADDOCK_IMAGE_DEVICES" doc:"character and block devices: allow, strip or refuse; a device 0:0 is what overlay mounts call a whiteout and is never kept"`
	FIFOs        string `yaml:"fifos" env:"PADDOCK_IMAGE_FIFOS" doc:"named pipes: allow, strip or refuse"`
	Setuid       string `yaml:"setuid" env:"PADDOCK_IMAGE_SETUID" doc:"set-user-id and set-group-id bits of files: allow, strip or refuse"`
	Capabilities string `yaml:"capabilities" env:"PADDOCK_IMAGE_CAPABILITIES" doc:"file capabilities: allow, strip or refuse"`
}

// Warm is how many sandboxes a host starts before anybody asks.
type Warm struct {
	MaxPerTemplate int `yaml:"max_per_template" env:"PADDOCK_WARM_MAX_PER_TEMPLATE" doc:"sandboxes of one template that wait for a create; one waits after a create of it, more while creates come often; 0: none"`
	MinPerTemplate int `yaml:"min_per_template" env:"PADDOCK_WARM_MIN_PER_TEMPLATE" doc:"how many wait at least, from the first create of a template on until there was none for an hour"`
	MaxTotal       int `yaml:"max_total" env:"PADDOCK_WARM_MAX_TOTAL" doc:"sandboxes of all templates that wait"`
	MemoryMiB      int `yaml:"memory_mib" env:"PADDOCK_WARM_MEMORY_MIB" doc:"memory that all that wait may have; it is given up when creates need it"`
}

// Proxy brings requests to the ports of this machine's sandboxes.
type Proxy struct {
	Listen        string        `yaml:"listen" env:"PADDOCK_PROXY_LISTEN" doc:"address of the proxy"`
	Domain        string        `yaml:"domain" env:"PADDOCK_PROXY_DOMAIN" doc:"sandboxes are PORT-SANDBOX.domain; names below localhost need no DNS in browsers"`
	WakeTimeout   time.Duration `yaml:"wake_timeout" env:"PADDOCK_PROXY_WAKE_TIMEOUT" doc:"how long a request waits for a paused sandbox that it woke"`
	MaxRequests   int           `yaml:"max_requests" env:"PADDOCK_PROXY_MAX_REQUESTS" doc:"open requests at once"`
	MaxPerSandbox int           `yaml:"max_per_sandbox" env:"PADDOCK_PROXY_MAX_PER_SANDBOX" doc:"open requests of one sandbox at once"`
}

// Cubelet is the agent of one host.
type Cubelet struct {
	Listen            string        `yaml:"listen" env:"PADDOCK_CUBELET_LISTEN" doc:"address of the gRPC face"`
	MetricsListen     string        `yaml:"metrics_listen" env:"PADDOCK_CUBELET_METRICS_LISTEN" doc:"address of /metrics and /notify/health of a cubelet that is a process of its own; in one process the master has them"`
	NodeID            string        `yaml:"node_id" env:"PADDOCK_NODE_ID" doc:"name of this host; empty: its host name"`
	HostIP            string        `yaml:"host_ip" env:"PADDOCK_HOST_IP" doc:"address at which the master reaches this host"`
	InstanceType      string        `yaml:"instance_type" env:"PADDOCK_INSTANCE_TYPE" doc:"kind of sandboxes that this host serves"`
	Labels            []string      `yaml:"labels" env:"PADDOCK_HOST_LABELS" doc:"key=value, for selectors of sandboxes; those that an operator sets at the master stand over them"`
	Zone              string        `yaml:"zone" env:"PADDOCK_ZONE" doc:"where this host is, for selectors and topology spread"`
	ClusterLabel      string        `yaml:"cluster_label" env:"PADDOCK_CLUSTER_LABEL" doc:"group of hosts that this one belongs to, for affinity"`
	Runsc             string        `yaml:"runsc" env:"PADDOCK_RUNSC" doc:"the gVisor runtime; empty: runsc beside this program"`
	Subnet            string        `yaml:"subnet" env:"PADDOCK_SANDBOX_SUBNET" doc:"addresses of sandboxes, a /16 to /24 that the host does not use"`
	CPUOvercommit     float64       `yaml:"cpu_overcommit" env:"PADDOCK_CPU_OVERCOMMIT" doc:"allocatable CPU over physical CPU"`
	MemOvercommit     float64       `yaml:"mem_overcommit" env:"PADDOCK_MEM_OVERCOMMIT" doc:"allocatable memory over physical memory"`
	CreateConcurrency int           `yaml:"create_concurrency" env:"PADDOCK_CREATE_CONCURRENCY" doc:"creates at once on this host; one more is refused and made elsewhere; 0: no limit"`
	MaxSandboxes      int           `yaml:"max_sandboxes" env:"PADDOCK_MAX_SANDBOXES" doc:"sandboxes at once"`
	HeartbeatInterval time.Duration `yaml:"heartbeat_interval" env:"PADDOCK_HEARTBEAT_INTERVAL" doc:"pause between two status reports"`
	StartTimeout      time.Duration `yaml:"start_timeout" env:"PADDOCK_START_TIMEOUT" doc:"bound on a sandbox's start until its guest answers"`
	RedirectTo        []string      `yaml:"redirect_to" env:"PADDOCK_REDIRECT_TO" doc:"host:port of object stores on private addresses to which a download may be led; that of artifact_store.s3.endpoint is one of them"`
	Warm              Warm          `yaml:"warm"`
	OnStop            string        `yaml:"on_stop" env:"PADDOCK_ON_STOP" doc:"keep: sandboxes go on when the cubelet stops; kill: they end with it"`
}
