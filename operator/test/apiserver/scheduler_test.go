//go:build apiserver

package apiserver

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
)

// addPriorities makes three classes as guides to elastic training have them: what serves people may preempt what
// trains, and workers preempt nobody.
func addPriorities(t *testing.T) {
	t.Helper()
	never, lower := corev1.PreemptNever, corev1.PreemptLowerPriority
	for _, class := range []schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "inference"}, Value: 1000, PreemptionPolicy: &lower},
		{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 900, PreemptionPolicy: &never},
		{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: 800, PreemptionPolicy: &never},
	} {
		if err := cluster.client.Create(t.Context(), &class); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
}

// addMachine makes a node that has room.
func addMachine(t *testing.T, name, cpu string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: resource.MustParse("100"),
	}
	node.Status.Capacity = node.Status.Allocatable
	if err := cluster.client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.client.Delete(context.Background(), node); err != nil {
			t.Error(err)
		}
	})
	node.Spec.Taints = nil // the API server taints each new node as not ready
	if err := cluster.client.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

func request(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}

// With kube-scheduler: a pod that serves people takes the place of a preemptible worker. That costs the job nothing,
// not even where its budget is none; the worker's successor waits, the others go on, and when there is room it runs.
func TestAWorkerGivesWayToWhatServesPeople(t *testing.T) {
	addPriorities(t)
	addMachine(t, "machine", "5")
	startComponent(t, "kube-scheduler")
	s := newStage(t)
	startOperator(t)
	tendPods(s, 0, false)
	job := simpleJob("job", 4)
	worker := job.Spec.ReplicaSpecs["worker"]
	worker.Priority, worker.RestartCount = "0.5", new(int32(0))
	worker.Template.Spec.Containers[0].Resources = request("1")
	s.create(job)
	s.await(s.running("job", 4))
	before := map[string]types.UID{}
	for _, pod := range s.live(v1alpha1.ReplicaTypeWorker) {
		before[pod.Labels["elasticjob.dlrover/rank-index"]] = pod.UID
	}
	if master := s.live(v1alpha1.ReplicaTypeMaster)["elasticjob-job-dlrover-master-0"]; *master.Spec.Priority != 900 {
		t.Errorf("the master has priority %d", *master.Spec.Priority)
	}

	online := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "online"}}
	online.Spec.PriorityClassName = "inference"
	online.Spec.Containers = []corev1.Container{{Name: "main", Image: "serving", Resources: request("1.5")}}
	s.create(online)
	s.await(s.ready("job", 3))
	var waiting corev1.Pod
	s.await(func() error {
		for _, pod := range s.live(v1alpha1.ReplicaTypeWorker) {
			if before[pod.Labels["elasticjob.dlrover/rank-index"]] != pod.UID {
				waiting = pod
			}
		}
		found := slices.ContainsFunc(waiting.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		})
		if !found {
			return errorf("nobody waits: %q", waiting.Name)
		}
		return s.whole(4)
	})
	rank := waiting.Labels["elasticjob.dlrover/rank-index"]
	if rank != "2" && rank != "3" {
		t.Errorf("rank %s has lost its pod: it is not preemptible", rank)
	}
	s.await(endsAre(s, "job", int32(rankOf(waiting)), map[string]int32{"Disruption": 1}))
	for other, uid := range before {
		if now := holder(s, other); other != rank && now.UID != uid {
			t.Errorf("rank %s has a new pod, %s", other, now.Name)
		}
	}
	if status := s.job("job").Status; status.Phase != v1alpha1.PhaseRunning {
		t.Errorf("phase %s", status.Phase)
	}
	if err := cluster.client.Delete(t.Context(), online, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.await(s.running("job", 4))
	if now := holder(s, rank); now.UID != waiting.UID {
		t.Errorf("%s runs in the place of %s", now.Name, waiting.Name)
	}
}

// With Kubernetes' own controllers: what a job has goes when the job is deleted, and a taint evicts.
func TestControllersOfKubernetes(t *testing.T) {
	startComponent(t, "kube-controller-manager", "--node-monitor-grace-period=10m",
		"--controllers=garbage-collector-controller,taint-eviction-controller,node-lifecycle-controller")
	s := newStage(t)
	startOperator(t)
	startKubelets(s, 50)
	job := simpleJob("job", 2)
	s.create(job)
	s.await(s.running("job", 2))

	evicted := holder(s, "1")
	taint := `{"spec":{"taints":[{"key":"test","effect":"NoExecute"}]}}`
	s.patch(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: evicted.Spec.NodeName}}, taint)
	t.Cleanup(func() {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: evicted.Spec.NodeName}}
		if err := cluster.client.Delete(context.Background(), node); err != nil {
			t.Error(err)
		}
	})
	s.await(endsAre(s, "job", 1, map[string]int32{"Disruption": 1}))

	if err := cluster.client.Delete(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	s.await(func() error {
		var services corev1.ServiceList
		if err := s.cache.List(t.Context(), &services); err != nil {
			return err
		}
		pods := len(s.pods(v1alpha1.ReplicaTypeWorker)) + len(s.pods(v1alpha1.ReplicaTypeMaster))
		if left := pods + len(services.Items); left > 0 {
			return errorf("%d pods and services are left", left)
		}
		return nil
	})
}

// Who gates pods (Kueue, for one) finds the gates in them, and a job that waits behind them waits, and does not fail.
func TestGatedPodsWait(t *testing.T) {
	s := newStage(t)
	startOperator(t, with("--start-blocked-for=1ms"))
	startKubelet(s)
	job := simpleJob("job", 2)
	worker := job.Spec.ReplicaSpecs["worker"]
	worker.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}}
	s.create(job)
	s.await(func() error {
		for _, condition := range s.job("job").Status.Conditions {
			if condition.Type == v1alpha1.ConditionWorkersReady && condition.Reason == "Unschedulable" {
				return s.whole(2)
			}
		}
		return errorf("conditions %v", s.job("job").Status.Conditions)
	})
	for _, pod := range s.live(v1alpha1.ReplicaTypeWorker) {
		if len(pod.Spec.SchedulingGates) != 1 {
			t.Errorf("%s: gates %v", pod.Name, pod.Spec.SchedulingGates)
		}
		s.patch(&pod, `{"spec":{"schedulingGates":null}}`)
	}
	s.await(s.running("job", 2))
	if restarts := s.job("job").Status.Restarts; restarts != 0 {
		t.Errorf("%d restarts", restarts)
	}
}
