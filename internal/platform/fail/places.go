package fail

import "slices"

// places are all that a program may be broken at, sorted. internal/archtest
// holds that each is in the code, and each of the code's is here.
var places = []string{
	"blobcache.claimed",
	"blobcache.evict",
	"blobcache.evicted",
	"blobcache.opened",
	"blobcache.renamed",
	"blobcache.reserved",
	"blobcache.synced",
	"blobcache.write",
	"blobcache.written",
	"cubelet.artifact.verified",
	"cubelet.create.confirm",
	"cubelet.create.init",
	"cubelet.create.journal",
	"cubelet.create.parts",
	"cubelet.create.runtime",
	"master.built.after_commit",
	"master.clean.after_hosts",
	"master.create.after_charge",
	"master.create.after_host",
	"master.create.after_row",
	"master.delete.after_commit",
	"master.dispatch.after_call",
	"master.resume.after_distribute",
	"master.resume.after_host",
	"master.resume.after_publish",
	"master.resume.after_targets",
	"master.sandbox_delete.after_commit",
	"master.submit.after_commit",
	"rootfs.before_finish",
	"rootfs.before_rename",
	"rootfs.compact",
	"rootfs.inject",
	"rootfs.layer",
	"rootfs.pull",
	"rootfs.spool",
	"templatecenter.after_store",
	"templatecenter.before_built",
	"templatecenter.before_store",
	"templatecenter.built",
	"templatecenter.claimed",
}

// Places returns the names that the environment may arm.
func Places() []string { return slices.Clone(places) }
