package gang

import (
	"maps"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"phalanx/operator/api/v1alpha1"
)

// Scheduler is one that knows gangs. Its objects are named here and nowhere imported: a cluster has one of them or
// none.
type Scheduler struct {
	Name     string
	podsName string // schedulerName of pods, as its own installation has it
	kind     schema.GroupVersionKind

	mark            string // of a pod: the name of its PodGroup
	marksAnnotation bool   // else the mark is a label

	resources bool // minResources: what all of the minimum ask for
	priority  bool // priorityClassName
	// queue is an annotation of job or template whose value is spec.queue; empty: it knows no queues.
	queue string
	// annotations of the PodGroup
	annotations func(g *Gang) map[string]string
}

var volcano = &Scheduler{
	Name: "volcano", podsName: "volcano",
	kind: schema.GroupVersionKind{Group: "scheduling.volcano.sh", Version: "v1beta1", Kind: "PodGroup"},
	mark: "scheduling.k8s.io/group-name", marksAnnotation: true,
	resources: true, priority: true, queue: "scheduling.volcano.sh/queue-name",
}

var coscheduling = &Scheduler{
	Name: "coscheduling", podsName: "scheduler-plugins-scheduler",
	kind:      schema.GroupVersionKind{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Kind: "PodGroup"},
	mark:      "scheduling.x-k8s.io/pod-group",
	resources: true,
}

// prefixOfKoordinator begins the annotations by which its gangs can be had without any PodGroup.
const prefixOfKoordinator = "gang.scheduling.koordinator.sh/"

// koordinator: once its gang has found its places, a pod that takes another's place up need not wait for all others.
var koordinator = &Scheduler{
	Name: "koordinator", podsName: "koord-scheduler",
	kind: schema.GroupVersionKind{Group: "scheduling.sigs.k8s.io", Version: "v1alpha1", Kind: "PodGroup"},
	mark: "pod-group.scheduling.sigs.k8s.io",
	annotations: func(g *Gang) map[string]string {
		return map[string]string{
			prefixOfKoordinator + "match-policy": "once-satisfied",
			prefixOfKoordinator + "total-number": strconv.FormatInt(int64(g.All), 10),
		}
	},
}

var schedulers = [...]*Scheduler{volcano, coscheduling, koordinator}

// OfDefinition is the scheduler whose PodGroups a custom resource definition of this name defines; nil: none.
func OfDefinition(name string) *Scheduler {
	for _, scheduler := range schedulers {
		if scheduler.Definition() == name {
			return scheduler
		}
	}
	return nil
}

// Definition is the name of the custom resource definition of its PodGroups.
func (s *Scheduler) Definition() string { return "podgroups." + s.kind.Group }

// Version is that of its PodGroups.
func (s *Scheduler) Version() string { return s.kind.Version }

func byName(name string) *Scheduler {
	for _, scheduler := range schedulers {
		if scheduler.Name == name {
			return scheduler
		}
	}
	return nil
}

func byPodsName(name string) *Scheduler {
	for _, scheduler := range schedulers {
		if scheduler.podsName == name {
			return scheduler
		}
	}
	return nil
}

func names() []string {
	var names []string
	for _, scheduler := range schedulers {
		names = append(names, scheduler.Name)
	}
	return names
}

// Empty is a PodGroup of this gang's kind and name, to be read into.
func (g *Gang) Empty(namespace string) *unstructured.Unstructured {
	group := &unstructured.Unstructured{}
	group.SetGroupVersionKind(g.Scheduler.kind)
	group.SetNamespace(namespace)
	group.SetName(g.PodGroup)
	return group
}

// Wanted is what of the PodGroup is ours: its spec, and annotations. Whatever else it has is the scheduler's.
func (g *Gang) Wanted(job *v1alpha1.ElasticJob) (spec map[string]any, annotations map[string]string) {
	worker := job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker]
	spec = map[string]any{"minMember": int64(g.Min)}
	if resources := Resources(&worker.Template.Spec, g.Min); g.Scheduler.resources && len(resources) > 0 {
		spec["minResources"] = resources
	}
	if class := priorityClass(worker); g.Scheduler.priority && class != "" {
		spec["priorityClassName"] = class
	}
	if queue := queueOf(job, worker, g.Scheduler.queue); queue != "" {
		spec["queue"] = queue
	}
	annotations = map[string]string{}
	if g.Scheduler.annotations != nil {
		maps.Copy(annotations, g.Scheduler.annotations(g))
	}
	return spec, annotations
}

// priorityClass of a gang; empty where only a part of its ranks is high.
func priorityClass(worker *v1alpha1.ReplicaSpec) string {
	switch worker.Priority {
	case "":
		return worker.Template.Spec.PriorityClassName
	case "high", "low":
		return worker.Priority
	}
	return ""
}

func queueOf(job *v1alpha1.ElasticJob, worker *v1alpha1.ReplicaSpec, annotation string) string {
	if annotation == "" {
		return ""
	}
	if queue := worker.Template.Metadata.Annotations[annotation]; queue != "" {
		return queue
	}
	return job.Annotations[annotation]
}
