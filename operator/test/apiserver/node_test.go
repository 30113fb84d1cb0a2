//go:build apiserver

package apiserver

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
)

// onOwnNode is a job of two workers that take their time to end, of which rank 1 is alone on a node. What a node does
// not say (that its pods have ended) nobody says here.
func onOwnNode(t *testing.T, flags ...string) (*stage, corev1.Pod) {
	s := newStage(t)
	startOperator(t, with(flags...))
	startKubelets(s, 50)
	job := simpleJob("job", 2)
	job.Spec.ReplicaSpecs["worker"].Template.Metadata.Annotations = map[string]string{holding: "yes"}
	s.create(job)
	s.await(s.running("job", 2))
	pod := holder(s, "1")
	if pod.Spec.NodeName == holder(s, "0").Spec.NodeName {
		t.Fatalf("both workers are on %s: the test needs more nodes", pod.Spec.NodeName)
	}
	t.Cleanup(func() { // other tests have pods there
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}
		if err := client.IgnoreNotFound(cluster.client.Delete(context.Background(), node)); err != nil {
			t.Error(err)
		}
	})
	return s, pod
}

func isDisrupted(s *stage, other types.UID) {
	s.t.Helper()
	s.await(endsAre(s, "job", 1, map[string]int32{"Disruption": 1}))
	s.await(s.running("job", 2))
	if now := holder(s, "0"); now.UID != other {
		s.t.Errorf("%s has been replaced by %s", other, now.Name)
	}
}

// is says whether a pod is there, alive or not.
func (s *stage) is(pod corev1.Pod) bool {
	return slices.ContainsFunc(s.pods(v1alpha1.ReplicaTypeWorker), func(p corev1.Pod) bool { return p.UID == pod.UID })
}

func (s *stage) awaitRemoval(pod corev1.Pod) {
	s.t.Helper()
	s.await(func() error {
		if s.is(pod) {
			return errorf("%s is still there", pod.Name)
		}
		return nil
	})
}

func TestANodeThatIsDeleted(t *testing.T) {
	s, pod := onOwnNode(t)
	other := holder(s, "0").UID
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}
	if err := cluster.client.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	isDisrupted(s, other)
	s.awaitRemoval(pod)
}

func TestANodeThatIsOutOfService(t *testing.T) {
	s, pod := onOwnNode(t)
	other := holder(s, "0").UID
	const taint = `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"off","effect":"NoExecute"}]}}`
	s.patch(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}, taint)
	isDisrupted(s, other)
	s.awaitRemoval(pod)
}

// A node that says nothing keeps its pods until somebody evicts them. Then they never leave, but where the operator may
// remove them.
func TestANodeThatIsNotReady(t *testing.T) {
	s, pod := onOwnNode(t, "--node-lost-force-delete-after=1s")
	other := holder(s, "0").UID
	setReady(t, pod.Spec.NodeName, corev1.ConditionUnknown)
	s.patch(s.job("job"), `{"spec":{"replicaSpecs":{"worker":{"replicas":3}}}}`) // so that we see that it has looked
	s.await(s.running("job", 3))
	if now := holder(s, "1"); now.UID != pod.UID {
		t.Fatalf("%s has been replaced by %s, and its node may come back", pod.Name, now.Name)
	}
	// As the node controller does.
	if err := cluster.client.Delete(t.Context(), &pod, client.GracePeriodSeconds(1)); err != nil {
		t.Fatal(err)
	}
	s.await(endsAre(s, "job", 1, map[string]int32{"Disruption": 1}))
	s.await(s.running("job", 3))
	s.awaitRemoval(pod)
	if now := holder(s, "0"); now.UID != other {
		t.Errorf("%s has been replaced by %s", other, now.Name)
	}
}

// By itself the operator removes nothing from a node that may run it.
func TestAPodOfASilentNodeStays(t *testing.T) {
	s, pod := onOwnNode(t)
	setReady(t, pod.Spec.NodeName, corev1.ConditionUnknown)
	if err := cluster.client.Delete(t.Context(), &pod, client.GracePeriodSeconds(1)); err != nil {
		t.Fatal(err)
	}
	s.await(endsAre(s, "job", 1, map[string]int32{"Disruption": 1}))
	s.await(s.running("job", 2))
	if !s.is(pod) {
		t.Errorf("%s has been removed", pod.Name)
	}
}

func setReady(t *testing.T, name string, ready corev1.ConditionStatus) {
	t.Helper()
	var node corev1.Node
	if err := cluster.client.Get(t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	if err := cluster.client.Status().Update(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
}
