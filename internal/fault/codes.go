package fault

// The codes. One line each; docs/faults.md is printed from this table.
var (
	// Of every layer.
	Bug              = code("internal", Internal, 0, "the server met a state that its own code should have made impossible", "report it with the request id; the server's log has the details")
	CallCancelled    = code("cancelled", Cancelled, 0, "the caller went away before the answer", "none needed")
	Deadline         = code("deadline_exceeded", Unavailable, 130595, "the call did not end in its time", "try again; if it stays so, look at the load of the named part")
	InvalidInput     = code("invalid_input", Invalid, 0, "the request breaks a rule of the interface", "correct the named field")
	Unsupported      = code("unsupported", Invalid, 0, "the request asks for something that this system does not offer", "leave the named field out, or do as the message says")
	Unauthenticated  = code("unauthenticated", Anonymous, 0, "no API key, or a wrong one", "pass the key that `paddock up` printed: --api-key, PADDOCK_API_KEY, or header X-API-KEY")
	TokenRejected    = code("token_rejected", Anonymous, 0, "the shared token between the roles is missing or wrong", "give every role the same CUBE_TEMPLATE_CALLBACK_TOKEN and PADDOCK_HOST_TOKEN")
	TokenExpired     = code("token_expired", Anonymous, 0, "the short-lived token was right and is over", "ask for a new one: masters make one with each hand-out, users get theirs with GET /cube/rootfs-artifact?artifact_id=...&link=true")
	TokenUnset       = code("token_unset", Unavailable, 0, "this server was started without the shared token and refuses internal calls", "set CUBE_TEMPLATE_CALLBACK_TOKEN and PADDOCK_HOST_TOKEN on every role")
	NoSuchThing      = code("not_found", NotFound, 0, "nothing has that id", "list what exists")
	StateConflict    = code("state_conflict", Conflict, 0, "the thing is in a state that does not accept this", "look at its state, then decide again")
	VersionConflict  = code("version_conflict", Conflict, 0, "somebody changed the row since it was read", "read it again and decide again")
	Exists           = code("already_exists", Conflict, 0, "something has that name already", "choose another name, or delete the other thing")
	SubmissionReused = code("submission_conflict", Conflict, 0, "the request id was used before with other content", "use a new request id for new content")
	StaleController  = code("stale_controller", Superseded, 0, "the lease is held by another, or at a later epoch", "stop; acquire the lease again before acting")
	LeaseHeld        = code("lease_held", Superseded, 0, "another holder has the lease and it has not expired", "wait until it expires or is released")
	StoreUnavailable = code("store_unavailable", Unavailable, 0, "the database or the artifact store did not answer", "check that the database of `database.dsn` and the store of `artifact_store` are up, whichever the message names")
	SchemaUnknown    = code("schema_unknown", Unavailable, 0, "the database holds migrations that this program does not know, or knows otherwise", "run the newer program, or restore the database that fits this one")
	PeerUnavailable  = code("peer_unavailable", Unavailable, 0, "another role of this system did not answer", "start the named role and check its address in the configuration")

	// Start and configuration.
	BadConfig     = code("bad_config", Invalid, 0, "the configuration has faults, all of which are listed", "correct each named key")
	PortInUse     = code("port_in_use", Conflict, 0, "another process listens on that address", "stop it, or choose another address for the named key")
	DataDir       = code("data_dir_unusable", Invalid, 0, "the data directory cannot be made or written", "choose a writable directory with --data-dir")
	DataDirLocked = code("data_dir_locked", Conflict, 0, "another paddock runs on this data directory", "stop it, or choose another --data-dir")
	MachineUnfit  = code("machine_unfit", Unavailable, 0, "this machine lacks what Paddock needs", "do what each failed line says, then run `paddock doctor` again")
	ToolMissing   = code("tool_missing", Unavailable, 0, "a program that this role needs is not installed", "install the named program; `make setup` installs all of them")

	// Templates.
	ImageRef          = code("image_ref_invalid", Invalid, 0, "the image reference cannot be read", "write it as registry/name:tag or registry/name@sha256:digest")
	ImageNotFound     = code("image_not_found", NotFound, 0, "the registry has no such image", "check name and tag, and that it was pushed")
	ImageDenied       = code("image_denied", Forbidden, 0, "the registry refused access to the image", "pass --registry-username and --registry-password-stdin, or log in with docker")
	ImagePlatform     = code("image_platform", Invalid, 0, "the image has no variant for this platform", "push a variant for the platform that the message names")
	ImageInvalid      = code("image_invalid", Invalid, 0, "the image's manifest, config or layers break the image format", "rebuild and push the image")
	ManifestAmbiguous = code("manifest_ambiguous", Invalid, 0, "the manifest can be read in two ways, or is not of the media type that it was served as", "rebuild and push the image with one manifest of one kind")
	ManifestTooLarge  = code("manifest_too_large", Invalid, 0, "the manifest, an index or the config is larger than is read", "rebuild the image with less metadata")
	ImageConfigBad    = code("image_config_refused", Invalid, 0, "the image's config has more environment, command or labels than is taken", "shorten what the message names")
	LayerForeign      = code("layer_foreign", Invalid, 0, "a layer is to be fetched from somewhere else than the image", "push the image with all of its layers")
	LayerMedia        = code("layer_media_type", Invalid, 0, "a layer has an unknown media type or compression", "rebuild the image with tar layers, plain or compressed by gzip or zstd")
	LayerWindow       = code("layer_window", Invalid, 0, "a layer's compression asks for more memory than is given", "compress the layer with a smaller window")
	LayerDigest       = code("layer_digest", Invalid, 0, "a layer's bytes are not those that manifest or config name", "push the image again; if it stays so, its registry is damaged")
	LayerDamaged      = code("layer_damaged", Unavailable, 0, "a layer in the cache was not what it was when it was stored, and was thrown out", "try again; if it stays so, check the disk of the layer cache")
	LayerTrailing     = code("layer_trailing_bytes", Invalid, 0, "a layer holds bytes after its end", "rebuild the layer")
	LayerArchive      = code("layer_archive", Invalid, 0, "a layer is no well-formed tar archive", "rebuild the layer")
	LayerPath         = code("layer_path", Invalid, 0, "an entry's name is absolute, climbs out, holds a NUL, is too long or too deep", "rebuild the layer without the entry that the message names")
	LayerRoot         = code("layer_root", Invalid, 0, "a layer replaces the root directory by something else", "rebuild the layer without the entry that the message names")
	LayerLink         = code("layer_link", Invalid, 0, "a hard link leads to nothing, to a directory, or out of the image", "rebuild the layer without the entry that the message names")
	LayerType         = code("layer_type", Invalid, 0, "an entry is of a kind that no file system has", "rebuild the layer without the entry that the message names")
	LayerDevice       = code("layer_device", Invalid, 0, "an entry is a device or a named pipe, and the policy refuses these", "rebuild the layer without it, or set the policy of devices or fifos to allow or strip")
	LayerSetuid       = code("layer_setuid", Invalid, 0, "an entry is setuid or setgid, and the policy refuses that", "rebuild the layer without it, or set the policy of setuid to allow or strip")
	LayerCapability   = code("layer_capability", Invalid, 0, "an entry has file capabilities, and the policy refuses them", "rebuild the layer without it, or set the policy of capabilities to allow or strip")
	LayerXattr        = code("layer_xattr", Invalid, 0, "an entry has too many, too large or unknown extended attributes", "rebuild the layer without them")
	LayerDuplicate    = code("layer_duplicate", Invalid, 0, "a layer names one path twice, as two kinds of file", "rebuild the layer without the entry that the message names")
	LayerWhiteout     = code("layer_whiteout", Invalid, 0, "a whiteout is malformed or removes something outside its directory", "rebuild the layer without the entry that the message names")
	TooManyEntries    = code("image_entries", Invalid, 0, "the image has more entries than the limit", "raise the limit that the message names, or make the image smaller")
	TooManyBytes      = code("image_bytes", Invalid, 0, "the image has more bytes than the limit", "raise the limit that the message names, or make the image smaller")
	TooMuchMetadata   = code("image_metadata", Invalid, 0, "names, link targets, extended attributes or maps of holes need more memory than is given to an image", "rebuild the image with shorter link targets, fewer distinct extended attributes, or fewer holes")
	TooCompressed     = code("image_ratio", Invalid, 0, "a layer grows more when it is decompressed than the limit lets it", "raise the limit that the message names, or rebuild the layer")
	BuildTooLong      = code("build_too_long", Unavailable, 0, "the build took longer than the limit", "raise templatecenter.build_timeout, or make the image smaller")
	RegistryRedirect  = code("registry_redirect", Invalid, 0, "the registry leads to a private or link-local address that is not its own", "list that address in templatecenter.insecure_registries if it is meant so")
	ImageUnfit        = code("image_unfit", Invalid, 0, "the image holds something that ext4 cannot hold", "change the entry that the message names")
	Ext4Damaged       = code("ext4_damaged", Invalid, 0, "the file is no ext4 image, or a damaged one", "build the image again")
	Ext4Unsupported   = code("ext4_unsupported", Invalid, 0, "the file is an ext4 image with features that this program does not read", "read it with e2fsprogs")
	RegistryDown      = code("registry_unavailable", Unavailable, 0, "the registry did not answer", "check that the registry is up and that this host reaches it; http:// registries must be listed in templatecenter.insecure_registries")
	DiskFull          = code("disk_full", Unavailable, 130527, "there is not enough room on the disk", "free space on the directory that the message names")
	BuildFailed       = code("build_failed", Internal, 0, "making the root filesystem failed", "read the job's error; `paddock tpl status --job-id` shows it")
	BuildCancelled    = code("build_cancelled", Unavailable, 0, "the build was stopped before its end", "submit the image again")
	BuildStalled      = code("build_stalled", Unavailable, 0, "nobody reported on the job for too long; its builder has probably ended", "submit the image again")
	CredentialsLost   = code("credentials_lost", Unavailable, 0, "the process that had the registry's credentials, or the job's own envd, ended before the build did; they are never stored", "submit the image again")
	CredentialsNeeded = code("credentials_needed", Invalid, 0, "the image was pulled with credentials, which are never stored, and must be pulled again", "pass registry_username and registry_password with the redo: `paddock tpl redo --registry-username`")
	BytesElsewhere    = code("bytes_elsewhere", Unavailable, 0, "the artifact's bytes are not in the store that this template centre looks at, and another store has or had them", "give all template centres one artifact_store; if that store is lost for good, write its name, which the message has behind dir:, to .store-id in the directory of artifacts")
	EnvdNeeded        = code("envd_needed", Invalid, 0, "the template was made with an envd of its own, which is never stored, and would have to be built again", "submit the image again with `paddock tpl create-from-image --envd`, and move the alias")
	TooManyWaiting    = code("too_many_waiting", Exhausted, 0, "jobs that wait for a builder hold as much in memory as is given to them", "try again when some of them have begun")
	BytesLost         = code("artifact_lost", Conflict, 0, "neither the artifact store nor a local directory has the bytes of this artifact", "build them again with `paddock tpl redo`")
	BuildInProgress   = code("attempt_in_progress", Conflict, 0, "another job works on this template, or on one of the same spec", "wait for it with `paddock tpl watch`, or end it with `paddock tpl cancel`")
	AliasInvalid      = code("alias_invalid", Invalid, 0, "an alias is 1-64 of a-z, 0-9 and -, begins with a letter or digit, and not with tpl- or snap-", "choose another alias")
	AliasTaken        = code("alias_taken", Conflict, 0, "a later request gave that alias to another template", "move it with `paddock tpl alias` if it is meant so")
	TemplateNotFound  = code("template_not_found", NotFound, 0, "no template has that id or alias", "`paddock tpl list` shows what exists; one that is CREATING or FAILED there is only a job so far")
	TemplateNotReady  = code("template_not_ready", Conflict, 0, "the template is not ready", "wait for its job, or read the job's error")
	TemplateInUse     = code("template_in_use", Conflict, 0, "sandboxes run from this template", "delete the named sandboxes first")
	NoTemplateHosts   = code("no_template_hosts", Invalid, 0, "no healthy host could take the template", "`paddock host list` shows why each host is out; start a cubelet of that instance_type, or correct instance_type and distribution_scope")
	JobNotFound       = code("job_not_found", NotFound, 0, "no job has that id", "`paddock tpl list` shows the newest job of each template")
	ArtifactNotFound  = code("artifact_not_found", NotFound, 0, "no artifact has that id, or its bytes are gone", "rebuild the template")
	ArtifactCorrupt   = code("artifact_corrupt", Internal, 0, "the bytes do not match the recorded sha256 or size", "rebuild the template; check the disk of the artifact store")

	// Sandboxes and hosts.
	NoHost           = code("no_host", Unavailable, 130598, "no host is fit to be chosen", "start a cubelet; `paddock host list` shows why each host is out")
	NoCapacity       = code("no_capacity", Unavailable, 130597, "hosts are up, but none has room", "delete sandboxes, ask for less, or add a host")
	HostFull         = code("insufficient_capacity", Exhausted, 130480, "the host refused: it has less room than was thought", "try again; the scheduler will choose another host")
	HostBusy         = code("host_busy", Exhausted, 130513, "the host makes as many sandboxes at once as it may", "try again; raise cubelet.create_concurrency, or the host's quota, if it stays so")
	QueueFull        = code("queue_full", Exhausted, 130429, "too many creates wait, or this one would wait longer than it may", "try again after the time that the message names, or give it more time")
	HostUnknown      = code("host_unknown", NotFound, 130404, "no host registered under that id", "start its cubelet; it registers by itself")
	HostUnreachable  = code("host_unreachable", Unavailable, 130596, "the host's cubelet did not answer", "check the cubelet and the network to it")
	SandboxNotFound  = code("sandbox_not_found", NotFound, 130404, "no sandbox has that id", "`paddock sandbox list` shows what runs")
	SandboxNotReady  = code("sandbox_not_ready", Conflict, 130490, "the sandbox is not running", "look at its state with `paddock sandbox info`")
	RuntimeFailed    = code("runtime_failed", Internal, 130508, "the runtime could not do it", "the message has the runtime's own words; the cubelet's log has the rest")
	GuestUnreachable = code("guest_unreachable", Unavailable, 130539, "the agent inside the sandbox did not answer in time", "look at the log of its cubelet; the image may be broken, or the host overloaded")
	ProbeFailed      = code("probe_failed", Conflict, 0, "the sandbox's own program did not pass the readiness probe of its template in time", "the message has the probe, its last answer and the program's last output; let the program listen on that port on all addresses, not on 127.0.0.1 only, or correct the probe")
	CommandNotFound  = code("command_not_found", NotFound, 0, "the sandbox has no such program", "check the name; programs are looked up in the PATH of the image")
	FileNotFound     = code("file_not_found", NotFound, 0, "the sandbox has no such file", "check the path; it must be absolute")
	FileIsDirectory  = code("file_is_directory", Invalid, 0, "the path is a directory", "name a file")
	ArchiveRefused   = code("archive_refused", Invalid, 0, "an archive is damaged, too large, or has an entry with no place below its directory", "leave the named entry out, or make the archive anew")
	SandboxDiskFull  = code("sandbox_disk_full", Conflict, 0, "the sandbox's writable layer is full", "delete files inside, or make the template with a larger --writable-layer-size")
)

var (
	all    []*Code
	byName = map[string]*Code{}
)

// code adds one row to the registry. Package variables are made in order, so
// All lists them as they stand above.
func code(name string, class *Class, ret int, meaning, remedy string) *Code {
	c := &Code{Name: name, Class: class, Ret: ret, Meaning: meaning, Remedy: remedy}
	all = append(all, c)
	byName[name] = c
	return c
}

// All returns every code, in the order of the table.
func All() []*Code { return append([]*Code(nil), all...) }
