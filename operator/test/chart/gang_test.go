//go:build apiserver

package chart

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/gang"
)

// definitions are those of testdata/podgroups.yaml, by group.
func definitions(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	text, err := os.ReadFile("testdata/podgroups.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(document), &definition); err != nil {
			t.Fatal(err)
		}
		found[definition.Spec.Group] = &definition
	}
	return found
}

func define(t *testing.T, definition *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	create(t, definition)
	t.Cleanup(func() {
		if err := cluster.client.Delete(context.Background(), definition); err != nil {
			t.Error(err)
		}
	})
	awaitServed(t, definition.Name)
}

// awaitCondition waits until the job's condition of its gang has a reason.
func awaitCondition(t *testing.T, namespace, reason string) metav1.Condition {
	t.Helper()
	var found metav1.Condition
	await(t, &v1alpha1.ElasticJobList{}, namespace, func(list client.ObjectList) error {
		status := list.(*v1alpha1.ElasticJobList).Items[0].Status
		condition := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionGang)
		if condition == nil || condition.Reason != reason {
			return fmt.Errorf("conditions %v, want the reason %s", status.Conditions, reason)
		}
		found = *condition
		return nil
	})
	return found
}

func awaitGroup(t *testing.T, kind schema.GroupVersionKind, namespace string, least int64) *unstructured.Unstructured {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind("PodGroupList"))
	var found *unstructured.Unstructured
	await(t, list, namespace, func(client.ObjectList) error {
		if len(list.Items) != 1 {
			return fmt.Errorf("%d PodGroups", len(list.Items))
		}
		found = &list.Items[0]
		got, _, err := unstructured.NestedInt64(found.Object, "spec", "minMember")
		if err != nil || got != least {
			return fmt.Errorf("minMember %d, want %d: %v", got, least, err)
		}
		return nil
	})
	return found
}

// With each of the schedulers: a job that is there before its definitions hears of them, the PodGroup is the job's and
// follows its size, and one that somebody deletes is back with the next pod.
func TestPodGroupsOfSchedulers(t *testing.T) {
	r := install(t, "metrics.readers[0].namespace="+home, "metrics.readers[0].name=phalanx")
	r.operate()
	for name, kind := range map[string]schema.GroupVersionKind{
		"volcano":      {Group: "scheduling.volcano.sh", Version: "v1beta1", Kind: "PodGroup"},
		"coscheduling": {Group: "scheduling.x-k8s.io", Version: "v1alpha1", Kind: "PodGroup"},
		"koordinator":  {Group: "scheduling.sigs.k8s.io", Version: "v1alpha1", Kind: "PodGroup"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			job := jobOf(ns, "job", 4)
			job.Annotations = map[string]string{gang.AnnotationScheduler: name}
			create(t, job)
			said := awaitCondition(t, ns, "NoPodGroups").Message
			if want := "there is no custom resource definition podgroups." + kind.Group; !strings.Contains(said, want) {
				t.Errorf("the condition says %q", said)
			}
			define(t, definitions(t)[kind.Group])
			awaitCondition(t, ns, "PodGroupThere")
			group := awaitGroup(t, kind, ns, 4)
			if v1alpha1.OwnerUID(group) != job.UID {
				t.Errorf("the PodGroup is of %v", group.GetOwnerReferences())
			}
			patch(t, job, `{"spec":{"replicaSpecs":{"worker":{"replicas":3}}}}`)
			awaitGroup(t, kind, ns, 3)
			if err := cluster.client.Delete(t.Context(), group); err != nil {
				t.Fatal(err)
			}
			pod := awaitPod(t, ns, "job-edljob-worker-0", isThere)
			if err := cluster.client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
			awaitGroup(t, kind, ns, 3)
		})
	}
	status, text := r.metrics(token(t, home, "phalanx"))
	if want := `controller_runtime_reconcile_errors_total{controller="gang"} 0`; status != http.StatusOK ||
		!strings.Contains(text, want) {
		t.Errorf("%d: the keeper of gangs has failed; want %s in\n%.4000s", status, want, text)
	}
}

// A job that is deleted and applied again finds the PodGroup of before, which the garbage collector has not taken yet.
// It gets its own as soon as that is gone, though nothing else happens to it.
func TestAPredecessorsPodGroupIsWaitedFor(t *testing.T) {
	install(t).operate()
	define(t, definitions(t)["scheduling.volcano.sh"])
	kind := schema.GroupVersionKind{Group: "scheduling.volcano.sh", Version: "v1beta1", Kind: "PodGroup"}
	ns := namespace(t)
	apply := func(replicas int32) *v1alpha1.ElasticJob {
		job := jobOf(ns, "job", replicas)
		job.Annotations = map[string]string{gang.AnnotationScheduler: "volcano"}
		create(t, job)
		return job
	}
	before := apply(4)
	group := awaitGroup(t, kind, ns, 4)
	awaitPod(t, ns, "job-edljob-worker-3", isThere)
	remove := func(object client.Object) {
		if err := cluster.client.Delete(t.Context(), object, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	remove(before)
	for _, kind := range []client.Object{&corev1.Pod{}, &corev1.Service{}, &corev1.Secret{}} {
		err := cluster.client.DeleteAllOf(t.Context(), kind, client.InNamespace(ns), client.GracePeriodSeconds(0))
		if err != nil {
			t.Fatal(err)
		}
	}
	after := apply(3)
	awaitPod(t, ns, "job-edljob-worker-2", isThere) // the last event that is news of this job
	awaitCondition(t, ns, "PodGroupOfPredecessor")
	if v1alpha1.OwnerUID(group) != before.UID {
		t.Fatalf("the PodGroup is of %v", group.GetOwnerReferences())
	}
	remove(group)
	if made := awaitGroup(t, kind, ns, 3); v1alpha1.OwnerUID(made) != after.UID {
		t.Errorf("the PodGroup is of %v", made.GetOwnerReferences())
	}
}

// A gang that the user's own template makes stays as it is.
func TestAUsersOwnGangStays(t *testing.T) {
	install(t).operate()
	all := definitions(t)
	define(t, all["scheduling.sigs.k8s.io"])
	ns := namespace(t)
	job := jobOf(ns, "job", 2)
	template := &job.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker].Template
	template.Spec.SchedulerName = "koord-scheduler"
	template.Metadata.Annotations = map[string]string{
		"gang.scheduling.koordinator.sh/name": "mine", "gang.scheduling.koordinator.sh/min-available": "4",
	}
	create(t, job)
	other := jobOf(ns, "other", 1) // by the time it has a PodGroup, the first would have one, too
	other.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker].Template.Spec.SchedulerName = "koord-scheduler"
	pod := awaitPod(t, ns, "job-edljob-worker-1", func(pod *corev1.Pod) error {
		if got := pod.Annotations["gang.scheduling.koordinator.sh/min-available"]; got != "4" {
			return fmt.Errorf("min-available %q", got)
		}
		return nil
	})
	if label, there := pod.Labels["pod-group.scheduling.sigs.k8s.io"]; there {
		t.Errorf("the pod is of the PodGroup %s", label)
	}
	create(t, other)
	kind := schema.GroupVersionKind{Group: "scheduling.sigs.k8s.io", Version: "v1alpha1", Kind: "PodGroup"}
	if got := awaitGroup(t, kind, ns, 1).GetName(); got != "other-edljob-worker" {
		t.Errorf("the PodGroup is %s", got)
	}
}
