//go:build apiserver

package apiserver

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
)

var errorf = fmt.Errorf

// ends says how often a worker's rank has ended, by class, as the status has it.
func ends(s *stage, job string, rank int32) map[string]int32 {
	for _, entry := range s.job(job).Status.Ranks {
		if entry.Role == v1alpha1.ReplicaTypeWorker && entry.Rank == rank {
			return entry.Ends
		}
	}
	return map[string]int32{}
}

func endsAre(s *stage, job string, rank int32, want map[string]int32) func() error {
	return func() error {
		if got := ends(s, job, rank); !maps.Equal(got, want) {
			return errorf("rank %d: %v, want %v", rank, got, want)
		}
		return nil
	}
}

func TestAFailedWorkerIsReplacedUntilItsBudgetIsSpent(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	kubelet := startKubelet(s)
	s.create(simpleJob("job", 2))
	s.await(s.running("job", 2))
	for round := range int32(3) {
		kubelet.end(holder(s, "1"), 1)
		s.await(endsAre(s, "job", 1, map[string]int32{"Application": round + 1}))
		s.await(s.running("job", 2))
	}
	if pod := holder(s, "1"); pod.Name != "job-edljob-worker-4" || pod.Labels["elasticjob.dlrover/relaunch-count"] != "3" {
		t.Errorf("%s, relaunch count %s", pod.Name, pod.Labels["elasticjob.dlrover/relaunch-count"])
	}
	kubelet.end(holder(s, "1"), 1)
	s.await(func() error {
		status := s.job("job").Status
		if status.Phase != v1alpha1.PhaseFailed {
			return errorf("phase %s", status.Phase)
		}
		return empty(s)
	})
}

// holder is the live pod of a rank, as the API server has it: a status may reach the stage before the pods it is about.
func holder(s *stage, rank string) corev1.Pod {
	s.t.Helper()
	var pods corev1.PodList
	err := cluster.client.List(s.t.Context(), &pods, client.InNamespace(s.namespace), client.MatchingLabels{
		"elasticjob.dlrover/replica-type": v1alpha1.ReplicaTypeWorker, "elasticjob.dlrover/rank-index": rank,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if alive(&pod) {
			return pod
		}
	}
	s.t.Fatalf("nobody holds rank %s", rank)
	return corev1.Pod{}
}

// As the scheduler preempts: first a condition, then a deletion, and the pod takes its time.
func TestAPreemptedWorkerIsReplacedWhileItLeavesAndCostsNothing(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	kubelet := startKubelet(s)
	job := simpleJob("job", 2)
	job.Spec.ReplicaSpecs["worker"].Template.Metadata.Annotations = map[string]string{holding: "yes"}
	s.create(job)
	s.await(s.running("job", 2))
	victim := holder(s, "1")
	status := victim.Status.DeepCopy()
	status.Conditions = append(status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler",
	})
	kubelet.report(victim, *status)
	if err := cluster.client.Delete(t.Context(), &victim); err != nil {
		t.Fatal(err)
	}
	s.await(s.running("job", 2))
	s.await(endsAre(s, "job", 1, map[string]int32{"Disruption": 1}))
	if !slices.ContainsFunc(s.pods("worker"), func(p corev1.Pod) bool { return p.UID == victim.UID }) {
		t.Error("the victim is gone: this was to show that nobody waits for that")
	}
}

func TestAMasterEvictedBeforeItsContainersHaveAStatus(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	kubelet := startKubelet(s)
	s.create(simpleJob("job", 1))
	s.await(s.running("job", 1))
	evicted := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "memory"}
	evicted.Conditions = []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
	}}
	for _, pod := range s.live(v1alpha1.ReplicaTypeMaster) {
		kubelet.report(pod, evicted)
	}
	s.await(func() error {
		if _, ok := s.live(v1alpha1.ReplicaTypeMaster)["elasticjob-job-dlrover-master-1"]; !ok {
			return errorf("no new master")
		}
		return s.running("job", 1)()
	})
}

func TestANodeThatIsBlamedIsAvoided(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	kubelet := startKubelet(s)
	s.create(simpleJob("job", 2))
	s.await(s.running("job", 2))
	bad := holder(s, "1").Spec.NodeName
	kubelet.end(holder(s, "1"), 201)
	s.await(func() error {
		if excluded := s.job("job").Status.ExcludedNodes; len(excluded) != 1 || excluded[0].Name != bad {
			return errorf("excluded %v, want %s", excluded, bad)
		}
		return s.running("job", 2)()
	})
	if node := holder(s, "1").Spec.NodeName; node == bad {
		t.Errorf("the new pod is on %s, too", bad)
	}
}

// A failure that happens while no operator is there is booked once, by the next one.
func TestAFailureWhileNoOperatorIsThere(t *testing.T) {
	s := newStage(t)
	operator := startOperator(t)
	kubelet := startKubelet(s)
	s.create(simpleJob("job", 2))
	s.await(s.running("job", 2))
	operator.kill()
	kubelet.end(holder(s, "0"), 1)
	operator = startOperator(t)
	s.await(endsAre(s, "job", 0, map[string]int32{"Application": 1}))
	s.await(s.running("job", 2))
	operator.kill()
	startOperator(t)
	s.patch(s.job("job"), `{"spec":{"replicaSpecs":{"worker":{"replicas":3}}}}`) // so that we see that it has looked
	s.await(s.running("job", 3))
	if err := endsAre(s, "job", 0, map[string]int32{"Application": 1})(); err != nil {
		t.Error(err)
	}
}
