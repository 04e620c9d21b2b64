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
	"cubelet.artifact.chunk",
	"cubelet.artifact.verified",
	"cubelet.create.confirm",
	"cubelet.create.init",
	"cubelet.create.journal",
	"cubelet.create.parts",
	"cubelet.create.runtime",
	"master.built.after_commit",
	"master.clean.after_host",
	"master.clean.after_hosts",
	"master.clean.after_release",
	"master.create.after_charge",
	"master.create.after_host",
	"master.create.after_row",
	"master.delete.after_commit",
	"master.dispatch.after_call",
	"master.gc.before_release",
	"master.migrate.after_commit",
	"master.migrate.after_move",
	"master.migrate.after_row",
	"master.redo.after_commit",
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
	"templatecenter.after_move",
	"templatecenter.after_store",
	"templatecenter.after_upload",
	"templatecenter.before_move",
	"templatecenter.before_store",
}

// Places returns the names that the environment may arm.
func Places() []string { return slices.Clone(places) }
