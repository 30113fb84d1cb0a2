// Package gang says how the workers of a job are put on nodes all together or not at all. It knows three schedulers
// that can do that, by their objects' names alone. It is pure; package keeper writes what it says.
package gang

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"phalanx/operator/api/v1alpha1"
)

// Annotations of an ElasticJob.
const (
	// AnnotationScheduler chooses: volcano, coscheduling, koordinator or none. It counts more than BatchScheduler and the
	// name of the scheduler in the template.
	AnnotationScheduler = "phalanx.elasticjob/gang"
	// AnnotationMin is how many workers must find a place together, where that is fewer than all.
	AnnotationMin = "phalanx.elasticjob/gang-min"
)

// none is the choice of no gang, and DLRover's word for it in BatchScheduler.
const (
	none          = "none"
	noneOfDLRover = "default"
)

// Gang is that of a job's workers.
type Gang struct {
	Scheduler *Scheduler
	PodGroup  string // its name
	Min       int32  // workers that must find a place together
	All       int32
}

// Of is the gang that a job wants; nil: none. The error is a sentence for the user.
func Of(job *v1alpha1.ElasticJob) (*Gang, error) {
	worker := job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker]
	if worker == nil {
		return nil, nil
	}
	scheduler, err := choose(job, worker)
	if err != nil || scheduler == nil || ownMark(&worker.Template) {
		return nil, err
	}
	all := int32(1)
	if worker.Replicas != nil {
		all = *worker.Replicas
	}
	least, err := minimum(job, all)
	if err != nil || all == 0 {
		return nil, err
	}
	return &Gang{Scheduler: scheduler, PodGroup: job.Name + "-edljob-worker", Min: least, All: all}, nil
}

func choose(job *v1alpha1.ElasticJob, worker *v1alpha1.ReplicaSpec) (*Scheduler, error) {
	in := worker.Template.Spec.SchedulerName
	from, name := "metadata.annotations["+AnnotationScheduler+"]", job.Annotations[AnnotationScheduler]
	if name == "" {
		from, name = "spec.replicaSpecs.worker.BatchScheduler", worker.BatchScheduler
	}
	switch name {
	case "":
		return byPodsName(in), nil
	case none, noneOfDLRover:
		return nil, nil
	}
	chosen := byName(name)
	if chosen == nil {
		return nil, fmt.Errorf("%s: %q is not known; expected %s or %s", from, name, strings.Join(names(), ", "), none)
	}
	if other := byPodsName(in); other != nil && other != chosen {
		return nil, fmt.Errorf("%s is %s, and the template's schedulerName %s; expected them to agree", from, name, in)
	}
	return chosen, nil
}

// ownMark says that the template makes its pods members of a gang itself. Then nothing is added to that.
func ownMark(template *v1alpha1.PodTemplate) bool {
	for _, marks := range []map[string]string{template.Metadata.Labels, template.Metadata.Annotations} {
		for key := range marks {
			if strings.HasPrefix(key, prefixOfKoordinator) {
				return true
			}
			for _, scheduler := range schedulers {
				if strings.HasPrefix(key, scheduler.mark) { // older ones have a word behind it, as .../name
					return true
				}
			}
		}
	}
	return false
}

// minimum: a job that is made smaller than its minimum has a gang of all.
func minimum(job *v1alpha1.ElasticJob, all int32) (int32, error) {
	text, given := job.Annotations[AnnotationMin]
	if !given {
		return all, nil
	}
	number, err := strconv.ParseInt(text, 10, 32)
	if err != nil || number < 1 {
		return 0, fmt.Errorf("metadata.annotations[%s]: %q; expected a number of workers, 1 or more", AnnotationMin, text)
	}
	return min(int32(number), all), nil
}

// Decorate makes a worker's pod a member of the gang.
func (g *Gang) Decorate(pod *corev1.Pod) {
	marks := &pod.Labels
	if g.Scheduler.marksAnnotation {
		marks = &pod.Annotations
	}
	if *marks == nil {
		*marks = map[string]string{}
	}
	(*marks)[g.Scheduler.mark] = g.PodGroup
	pod.Spec.SchedulerName = cmp.Or(pod.Spec.SchedulerName, g.Scheduler.podsName)
}
