package elasticjob

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
)

func TestALauncherIsCopiedIntoWorkers(t *testing.T) {
	with := options
	with.LauncherImage, with.PullSecrets = "phalanx-launcher:1", []string{"key", "own"}
	job := jobOf(func(j *v1alpha1.ElasticJob) {
		spec := &worker(j).Template.Spec
		spec.InitContainers = []corev1.Container{{Name: "first", Image: "data"}}
		spec.Containers = append(spec.Containers, corev1.Container{Name: "beside", Image: "other"})
		spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "own"}}
	})
	pod := Pod(job, engine.Create{Role: v1alpha1.ReplicaTypeWorker}, with)
	first := pod.Spec.InitContainers[0]
	if len(pod.Spec.InitContainers) != 2 || first.Image != "phalanx-launcher:1" || first.Command != nil ||
		first.VolumeMounts[0].MountPath != "/phalanx" || first.VolumeMounts[0].ReadOnly {
		t.Errorf("init containers: %+v", pod.Spec.InitContainers)
	}
	for _, container := range pod.Spec.Containers {
		if len(container.VolumeMounts) != 1 || container.VolumeMounts[0].Name != pod.Spec.Volumes[0].Name ||
			!container.VolumeMounts[0].ReadOnly {
			t.Errorf("%s: %+v", container.Name, container.VolumeMounts)
		}
	}
	if got := pod.Spec.ImagePullSecrets; len(got) != 2 || got[0].Name != "own" || got[1].Name != "key" {
		t.Errorf("secrets: %v", got)
	}
	if len(worker(job).Template.Spec.InitContainers) != 1 {
		t.Error("the job's template was changed")
	}
}

func TestWhoGetsNoLauncher(t *testing.T) {
	with := options
	with.LauncherImage = "phalanx-launcher:1"
	without := jobOf(func(j *v1alpha1.ElasticJob) { j.Annotations = map[string]string{AnnotationLauncher: "none"} })
	pods := map[string]*corev1.Pod{
		"a job that says so":           Pod(without, engine.Create{Role: v1alpha1.ReplicaTypeWorker}, with),
		"the master":                   Pod(jobOf(), engine.Create{Role: v1alpha1.ReplicaTypeMaster}, with),
		"an operator without an image": Pod(jobOf(), engine.Create{Role: v1alpha1.ReplicaTypeWorker}, options),
	}
	for name, pod := range pods {
		if len(pod.Spec.InitContainers) > 0 {
			t.Errorf("%s: %v", name, pod.Spec.InitContainers)
		}
	}
}
