package nodetaint

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/api/v1alpha1"
)

// site has nodes, and the keeper of their taints.
type site struct {
	t        *testing.T
	client   client.Client
	recorder *events.FakeRecorder
	keeper   *Keeper
	now      time.Time
}

func newSite(t *testing.T, nodes int) *site {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	s := &site{t: t, recorder: events.NewFakeRecorder(100), now: noon}
	s.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.ElasticJob{}).
		WithIndex(&v1alpha1.ElasticJob{}, blamedIndex, blamedBy).WithIndex(&corev1.Node{}, markedIndex, marked).Build()
	s.keeper = &Keeper{s.client, s.recorder, func() time.Time { return s.now }}
	for i := range nodes {
		node := &corev1.Node{}
		node.Name = fmt.Sprintf("node-%d", i)
		node.Spec.Taints = []corev1.Taint{{Key: "others", Effect: corev1.TaintEffectNoSchedule}}
		if err := s.client.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// blame makes a job that avoids these nodes for an hour.
func (s *site) blame(name string, nodes ...string) {
	s.t.Helper()
	job := &v1alpha1.ElasticJob{}
	job.Name, job.Namespace = name, "ns"
	if err := s.client.Create(s.t.Context(), job); err != nil {
		s.t.Fatal(err)
	}
	for _, node := range nodes {
		job.Status.ExcludedNodes = append(job.Status.ExcludedNodes, v1alpha1.ExcludedNode{
			Name: node, Until: metav1.NewTime(s.now.Add(time.Hour)), Reason: "sector 7 is gone",
		})
	}
	if err := s.client.Status().Update(s.t.Context(), job); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) reconcile(node string) time.Duration {
	s.t.Helper()
	result, err := s.keeper.Reconcile(s.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
	if err != nil {
		s.t.Fatal(err)
	}
	return result.RequeueAfter
}

func (s *site) taints(name string) []string {
	s.t.Helper()
	var node corev1.Node
	if err := s.client.Get(s.t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
		s.t.Fatal(err)
	}
	var keys []string
	for _, taint := range node.Spec.Taints {
		keys = append(keys, taint.Key)
	}
	return keys
}

func (s *site) want(node string, keys ...string) {
	s.t.Helper()
	if got := s.taints(node); !slices.Equal(got, keys) {
		s.t.Errorf("%s has the taints %v, want %v", node, got, keys)
	}
}

func TestABlamedNodeIsTaintedForAsLongAsItIsBlamed(t *testing.T) {
	s := newSite(t, 20)
	s.blame("a", "node-3")
	s.want("node-3", "others")
	if wait := s.reconcile("node-3"); wait != time.Hour {
		t.Errorf("it looks again in %v", wait)
	}
	s.want("node-3", "others", Key)
	if said := <-s.recorder.Events; !strings.Contains(said, "ns/a: sector 7 is gone") {
		t.Errorf("it says %s", said)
	}
	s.reconcile("node-3")
	s.want("node-3", "others", Key)
	s.now = noon.Add(time.Hour)
	if wait := s.reconcile("node-3"); wait != 0 {
		t.Errorf("behind that it looks again in %v", wait)
	}
	s.want("node-3", "others")
	s.reconcile("node-3")
	if len(s.recorder.Events) != 1 {
		t.Errorf("it says %d things", len(s.recorder.Events))
	}
	s.reconcile("of another cluster")
}

// A node that was full is avoided by one job, and nobody says that it is bad.
func TestANodeThatHasRefusedPodsIsNotTainted(t *testing.T) {
	s := newSite(t, 20)
	s.blame("a", "node-3")
	job := &v1alpha1.ElasticJob{}
	if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, job); err != nil {
		t.Fatal(err)
	}
	job.Status.ExcludedNodes[0].Refused = true
	if err := s.client.Status().Update(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	s.reconcile("node-3")
	s.want("node-3", "others")
}

func TestJobsDoNotEmptyACluster(t *testing.T) {
	s := newSite(t, 29)
	s.blame("a", "node-0", "node-1", "node-2")
	s.reconcile("node-0")
	s.now = noon.Add(time.Minute)
	s.reconcile("node-1")
	if wait := s.reconcile("node-2"); wait != 59*time.Minute {
		t.Errorf("it looks again in %v, and the first is free in 59 min", wait)
	}
	s.want("node-2", "others")
	s.blame("b", "node-0") // it is tainted already, and may be for longer
	s.reconcile("node-0")
	s.now = noon.Add(time.Hour)
	s.reconcile("node-0")
	s.want("node-0", "others", Key)
	s.now = noon.Add(time.Hour + 2*time.Minute)
	s.reconcile("node-0")
	s.want("node-0", "others")
}
