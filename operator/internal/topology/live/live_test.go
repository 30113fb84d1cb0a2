package live

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/internal/topology"
)

// site is a small API server with pods, and what the topology makes of it.
type site struct {
	t        *testing.T
	client   client.Client
	recorder *events.FakeRecorder
	topology *Topology
	queue    requests
}

func newSite(t *testing.T, pods ...*corev1.Pod) *site {
	t.Helper()
	s := &site{t: t, recorder: events.NewFakeRecorder(10)}
	made := fake.NewClientBuilder()
	for _, pod := range pods {
		made = made.WithObjects(pod)
	}
	s.client = made.Build()
	s.topology = newTopology(s.client, s.recorder)
	s.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	return s
}

// read hands in a ConfigMap, and carries out what is queued. It returns the names of the pods that were.
func (s *site) read(data map[string]string) []string {
	s.t.Helper()
	config := &corev1.ConfigMap{Data: data}
	config.Name, config.Namespace = ConfigMapName, "phalanx"
	s.topology.read(s.t.Context(), config, s.queue)
	var names []string
	for s.queue.Len() > 0 {
		request, _ := s.queue.Get()
		names = append(names, request.Name)
		if _, err := s.topology.Reconcile(context.Background(), request); err != nil {
			s.t.Fatal(err)
		}
		s.queue.Done(request)
	}
	slices.Sort(names)
	return names
}

func (s *site) labels(name string) map[string]string {
	s.t.Helper()
	var pod corev1.Pod
	if err := s.client.Get(s.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &pod); err != nil {
		s.t.Fatal(err)
	}
	return pod.Labels
}

func podOn(name, host string, phase corev1.PodPhase) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = name, "ns"
	pod.Labels = map[string]string{"elasticjob.dlrover/name": "job"}
	pod.Status.HostIP, pod.Status.Phase = host, phase
	return pod
}

func TestATableReachesThePods(t *testing.T) {
	s := newSite(t, podOn("a", "10.0.0.1", corev1.PodRunning), podOn("b", "10.0.0.2", corev1.PodRunning),
		podOn("unknown", "10.0.0.9", corev1.PodRunning), podOn("unscheduled", "", corev1.PodPending),
		podOn("ended", "10.0.0.1", corev1.PodFailed))
	table := map[string]string{Key: "asw-0 psw-0 10.0.0.1\nasw-1 psw-0 10.0.0.2"}
	if got := s.read(table); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("written: %v", got)
	}
	if got := s.labels("b"); got[topology.LabelRack] != "asw-1" || got["elasticjob.dlrover/name"] != "job" {
		t.Errorf("labels of b: %v", got)
	}
	if got := s.read(table); len(got) > 0 {
		t.Errorf("written again: %v", got)
	}
	if got := s.read(map[string]string{Key: "asw-0 psw-0 10.0.0.2"}); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("behind the change: %v", got)
	}
	if got := s.labels("a"); len(got) != 1 {
		t.Errorf("a is in no table any more, and has %v", got)
	}
	if got := s.labels("b")[topology.LabelRack]; got != "asw-0" {
		t.Errorf("b is under %q", got)
	}
}

func TestWrongLinesAreToldToPeople(t *testing.T) {
	cases := map[string]struct {
		data map[string]string
		want string // empty: nothing is said
	}{
		"a wrong line": {map[string]string{Key: "asw-0 10.0.0.1"}, `line 1: "asw-0 10.0.0.1": expected 3 words, not 2`},
		"another key": {
			map[string]string{"topology.config": "x"}, "there is no key topology_config; there are topology.config",
		},
		"empty":   {map[string]string{Key: ""}, ""},
		"nothing": {nil, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.read(tc.data)
			select {
			case got := <-s.recorder.Events:
				if tc.want == "" || !strings.Contains(got, tc.want) {
					t.Errorf("event %q, want %q", got, tc.want)
				}
			default:
				if tc.want != "" {
					t.Errorf("no event, want %q", tc.want)
				}
			}
		})
	}
}
