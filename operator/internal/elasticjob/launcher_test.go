package elasticjob

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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
		user, amounts := int64(7), corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")}
		spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &user}
		all := amounts.DeepCopy()
		all["nvidia.com/gpu"] = resource.MustParse("8")
		spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: all, Requests: amounts}
	})
	pod := Pod(job, engine.Create{Role: v1alpha1.ReplicaTypeWorker}, with)
	first := pod.Spec.InitContainers[0]
	if len(pod.Spec.InitContainers) != 2 || first.Image != "phalanx-launcher:1" || first.Command != nil ||
		first.VolumeMounts[0].MountPath != "/phalanx" || first.VolumeMounts[0].ReadOnly {
		t.Errorf("init containers: %+v", pod.Spec.InitContainers)
	}
	// Else the pod were of another class, or one that a quota or a restricted namespace refuses.
	if context := first.SecurityContext; *context.RunAsUser != 7 || *context.AllowPrivilegeEscalation {
		t.Errorf("%+v", context)
	}
	if amounts := first.Resources; amounts.Limits.Cpu().String() != "2" || amounts.Requests.Memory().String() != "1Gi" ||
		len(amounts.Limits) != 2 {
		t.Errorf("%+v", amounts)
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
