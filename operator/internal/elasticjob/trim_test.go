package elasticjob

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
)

// What is read of a pod is the same whether it was trimmed or not, and most of it is gone.
func TestATrimmedPodReadsTheSame(t *testing.T) {
	job := &v1alpha1.ElasticJob{}
	job.Name, job.UID = "job", "uid"
	worker := &v1alpha1.ReplicaSpec{}
	worker.Template.Spec.Containers = []corev1.Container{{Name: "trains", Image: "b"}, {Name: "side", Image: "a"}}
	worker.Template.Metadata.Annotations = map[string]string{"theirs": "text"}
	job.Spec.ReplicaSpecs = map[string]*v1alpha1.ReplicaSpec{v1alpha1.ReplicaTypeWorker: worker}
	before := engine.Counts{}.With(engine.Killed).With(engine.Application)
	pod := Pod(job, engine.Create{Role: v1alpha1.ReplicaTypeWorker, ID: 4, Rank: 2, Before: before}, Options{})
	now := metav1.NewTime(time.Unix(1000, 0))
	pod.UID, pod.CreationTimestamp, pod.DeletionTimestamp = "pod", now, &now
	pod.Spec.NodeName = "node"
	pod.Spec.Containers = slices.Insert(pod.Spec.Containers, 0, corev1.Container{Name: "proxy", Image: "c"})
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	exit := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 201, Reason: "OOMKilled", Message: "last words", FinishedAt: now,
	}}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "Evicted", Message: "too much", StartTime: &now,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False", Reason: "R", Message: "M"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "side"}, {Name: "trains", State: exit, Image: "unread"}},
	}
	want := Observe([]*corev1.Pod{pod})
	if want[0].End.ExitCode != 201 || want[0].End.Detail != "too much" {
		t.Errorf("%+v", want[0].End)
	}
	trimmed, err := Trim(pod.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	got := trimmed.(*corev1.Pod)
	if difference := cmp.Diff(want, Observe([]*corev1.Pod{got})); difference != "" {
		t.Errorf("(-whole +trimmed):\n%s", difference)
	}
	if v1alpha1.OwnerUID(got) != "uid" {
		t.Errorf("owner %v", got.OwnerReferences)
	}
	if got.Size()*2 > pod.Size() {
		t.Errorf("%d of %d bytes are left", got.Size(), pod.Size())
	}
	blocked := pod.DeepCopy()
	blocked.Status.Phase, blocked.DeletionTimestamp = corev1.PodPending, nil
	blocked.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "why"},
	}}}
	want = Observe([]*corev1.Pod{blocked})
	if trimmed, err = Trim(blocked.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	difference := cmp.Diff(want, Observe([]*corev1.Pod{trimmed.(*corev1.Pod)}))
	if difference != "" || want[0].Blocked.Reason == "" {
		t.Errorf("(-whole +trimmed):\n%s", difference)
	}
}
