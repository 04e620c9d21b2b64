package fail

import "slices"

// places are all that a program may be broken at, sorted. internal/archtest
// holds that each is in the code, and each of the code's is here.
var places = []string{
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
	"rootfs.before_mkfs",
	"rootfs.before_rename",
	"rootfs.pull",
	"templatecenter.after_store",
	"templatecenter.before_store",
}

// Places returns the names that the environment may arm.
func Places() []string { return slices.Clone(places) }
