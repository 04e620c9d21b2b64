package cubeapi

// NetworkConfig is what sandboxes may reach by themselves: nothing, unless it
// says so. Of allowOut and denyOut, allowOut counts.
type NetworkConfig struct {
	AllowInternetAccess *bool    `json:"allowInternetAccess,omitempty"` // every public address; default false
	AllowOut            []string `json:"allowOut,omitempty"`            // addresses or networks of IPv4; a private one must be named itself
	DenyOut             []string `json:"denyOut,omitempty"`
	Rules               []any    `json:"rules,omitempty"`              // refused so far
	AllowPublicTraffic  *bool    `json:"allowPublicTraffic,omitempty"` // false is refused so far
	MaskRequestHost     string   `json:"maskRequestHost,omitempty"`    // refused so far
}

// DNSConfig is what a sandbox's resolver is told. Its servers must be reachable
// by NetworkConfig; without servers, those of the host are taken that are.
type DNSConfig struct {
	Servers  []string `json:"servers,omitempty"` // addresses of IPv4, at most 3
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// RLimit is the limits of each process.
type RLimit struct {
	NoFile uint64 `json:"no_file,omitempty"` // open files; 0: 1048576
}

// SecurityContext is who a sandbox's programs run as. What a sandbox cannot be
// held to is refused.
type SecurityContext struct {
	Capabilities   *Capabilities `json:"capabilities,omitempty"` // refused so far
	Privileged     bool          `json:"privileged,omitempty"`   // refused: root has its own kernel already
	RunAsUser      *IntValue     `json:"run_as_user,omitempty"`
	RunAsGroup     *IntValue     `json:"run_as_group,omitempty"`
	RunAsUsername  string        `json:"run_as_username,omitempty"`
	NoNewPrivs     bool          `json:"no_new_privs,omitempty"`    // refused so far
	ReadonlyRootfs bool          `json:"readonly_rootfs,omitempty"` // refused so far
}

// Capabilities is what a program may do beyond its user.
type Capabilities struct {
	Add        []string `json:"add,omitempty"`
	Drop       []string `json:"drop,omitempty"`
	AddAmbient []string `json:"add_ambient,omitempty"`
}

// IntValue is a number that may be absent.
type IntValue struct {
	Value int64 `json:"value"`
}

// VolumeMount puts a volume into a sandbox.
type VolumeMount struct {
	Name          string `json:"name,omitempty"`
	ContainerPath string `json:"container_path,omitempty"`
}
