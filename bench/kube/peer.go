package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	kube "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/paddock-dev/paddock/internal/host"
	"github.com/paddock-dev/paddock/internal/scheduler"
)

// likeOurs are the plugins that do what our default filters and scores do, and
// the two without which there is no profile.
var likeOurs = []string{"PrioritySort", "NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodeResourcesFit", "DefaultBinder"}

// peer is a way to run the scheduler of Kubernetes.
type peer struct {
	name, note string
	plugins    []string // nil: all that it has by default
	percent    int32    // of nodes that are looked at; 0: as few as it does by default
}

// theirs is that scheduler with its own cache, between its queue and its
// binding cycle.
type theirs struct {
	s    *kube.Scheduler
	pods []*corev1.Pod
}

func (p peer) make(ctx context.Context, hosts []host.Facts, reqs []scheduler.Request) (placer, error) {
	c, err := latest.Default()
	if err != nil {
		return nil, err
	}
	profile := c.Profiles[0]
	if p.plugins != nil {
		var only []config.Plugin
		for _, one := range profile.Plugins.MultiPoint.Enabled {
			for _, name := range p.plugins {
				if one.Name == name {
					only = append(only, one)
				}
			}
		}
		if len(only) != len(p.plugins) {
			return nil, fmt.Errorf("of %s only %v are known", strings.Join(p.plugins, ", "), only)
		}
		profile.Plugins.MultiPoint.Enabled = only
	}
	client := fake.NewClientset()
	recorder := func(string) events.EventRecorder { return &events.FakeRecorder{} }
	informed := informers.NewSharedInformerFactory(client, 0)
	s, err := kube.New(ctx, client, informed, nil, recorder,
		kube.WithProfiles(profile), kube.WithParallelism(1), kube.WithPercentageOfNodesToScore(&p.percent))
	if err != nil {
		return nil, err
	}
	// Plugins look into listers, which are empty here but must be filled once.
	informed.Start(ctx.Done())
	informed.WaitForCacheSync(ctx.Done())
	log := klog.FromContext(ctx)
	for i := range hosts {
		s.Cache.AddNode(log, nodeOf(&hosts[i]))
		if err := s.Cache.AddPod(log, usedOf(&hosts[i])); err != nil {
			return nil, err
		}
	}
	t := &theirs{s: s}
	for i := range reqs {
		t.pods = append(t.pods, podOf(&reqs[i]))
	}
	return t, nil
}

// place is what the scheduling cycle does: choose, then assume.
func (t *theirs) place(ctx context.Context, i int) (host.ID, error) {
	pod := t.pods[i]
	got, err := t.s.SchedulePod(ctx, t.s.Profiles[corev1.DefaultSchedulerName], framework.NewCycleState(), pod)
	if err != nil {
		return "", err
	}
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = got.SuggestedHost
	t.pods[i] = assumed
	return host.ID(got.SuggestedHost), t.s.Cache.AssumePod(klog.FromContext(ctx), assumed)
}

func (t *theirs) remove(i int) error { return t.s.Cache.ForgetPod(klog.Background(), t.pods[i]) }

const (
	kindLabel     = "paddock.dev/instance-type"
	artifactLabel = "paddock.dev/"
)

// nodeOf is a host as Kubernetes has it. What it holds of templates are labels,
// as its image locality only scores, and does not filter.
func nodeOf(h *host.Facts) *corev1.Node {
	labels := map[string]string{kindLabel: h.InstanceType, corev1.LabelHostname: string(h.ID), corev1.LabelTopologyZone: h.Zone}
	for _, a := range h.Artifacts {
		labels[artifactLabel+a] = "held"
	}
	has := listOf(h.Allocatable)
	has[corev1.ResourcePods] = *resource.NewQuantity(h.Allocatable.Slots-h.Allocated.Slots+1, resource.DecimalSI) // its one pod stands for all
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: string(h.ID), Labels: labels},
		Spec:       corev1.NodeSpec{Unschedulable: h.Cordoned},
		Status:     corev1.NodeStatus{Capacity: has, Allocatable: has},
	}
	if !h.Ready {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	}
	return n
}

// usedOf is one pod that uses all that is used on a host: many would cost the
// peer more.
func usedOf(h *host.Facts) *corev1.Pod {
	p := podNamed("used-"+string(h.ID), h.Allocated)
	p.Spec.NodeName = string(h.ID)
	return p
}

func podOf(r *scheduler.Request) *corev1.Pod {
	p := podNamed(string(r.Sandbox), r.Resources)
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: kindLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{r.InstanceType}},
			{Key: artifactLabel + string(r.Artifact), Operator: corev1.NodeSelectorOpExists},
		}}},
	}}}
	return p
}

func podNamed(name string, size host.Resources) *corev1.Pod {
	list := listOf(size)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: corev1.PodSpec{
			SchedulerName: corev1.DefaultSchedulerName,
			Containers:    []corev1.Container{{Name: "sandbox", Image: "sandbox", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}},
		},
	}
}

func listOf(r host.Resources) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(r.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(r.MemBytes, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(r.DiskBytes, resource.BinarySI),
	}
}
