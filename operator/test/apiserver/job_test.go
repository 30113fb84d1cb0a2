//go:build apiserver

package apiserver

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
)

func TestPodsOfANewJob(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	warm := simpleJob("warm", 1) // the operator has its caches then
	s.create(warm)
	s.await(func() error { return s.whole(1) })
	s.patch(warm, `{"spec":{"suspend":true}}`)
	s.await(func() error { return empty(s) })

	began := time.Now()
	s.create(simpleJob("fresh", 3))
	s.await(func() error {
		if len(s.live(v1alpha1.ReplicaTypeWorker)) == 0 {
			return fmt.Errorf("no pod")
		}
		return nil
	})
	t.Logf("first worker pod after %v", time.Since(began).Round(time.Millisecond))
	s.await(func() error { return s.whole(3) })
	masters := s.live(v1alpha1.ReplicaTypeMaster)
	if _, ok := masters["elasticjob-fresh-dlrover-master-0"]; !ok {
		t.Errorf("masters: %v", masters)
	}
	pod, ok := s.live(v1alpha1.ReplicaTypeWorker)["fresh-edljob-worker-2"]
	if !ok {
		t.Fatalf("workers: %v", s.live(v1alpha1.ReplicaTypeWorker))
	}
	checkWorker(t, s, pod)
	var service corev1.Service
	key := client.ObjectKey{Namespace: s.namespace, Name: "elasticjob-fresh-dlrover-master"}
	if err := cluster.client.Get(t.Context(), key, &service); err != nil {
		t.Fatal(err)
	}
	for label, value := range service.Spec.Selector {
		if masters["elasticjob-fresh-dlrover-master-0"].Labels[label] != value {
			t.Errorf("the service selects %s=%s, which its master is not", label, value)
		}
	}
}

func empty(s *stage) error {
	if left := len(s.live(v1alpha1.ReplicaTypeWorker)) + len(s.live(v1alpha1.ReplicaTypeMaster)); left > 0 {
		return fmt.Errorf("%d pods are left", left)
	}
	return nil
}

func checkWorker(t *testing.T, s *stage, pod corev1.Pod) {
	t.Helper()
	address := "elasticjob-fresh-dlrover-master." + s.namespace + ".svc:50001"
	env := map[string]string{}
	for _, variable := range pod.Spec.Containers[0].Env {
		env[variable.Name] = variable.Value
	}
	for name, want := range map[string]string{
		"DLROVER_MASTER_ADDR": address, "DLROVER_MASTER_SERVICE_ADDR": address, "PHALANX_MASTER_ADDR": address,
		"NODE_NUM": "3", "NODE_RANK": "2", "NODE_ID": "2", "NODE_TYPE": "worker", "ELASTIC_JOB_NAME": "fresh",
	} {
		if env[name] != want {
			t.Errorf("%s=%q, want %q", name, env[name], want)
		}
	}
	for label, want := range map[string]string{
		"app": "dlrover", "elasticjob.dlrover/name": "fresh", "elasticjob.dlrover/replica-type": "worker",
		"elasticjob.dlrover/replica-index": "2", "elasticjob.dlrover/rank-index": "2",
		"elasticjob.dlrover/relaunch-count": "0",
	} {
		if pod.Labels[label] != want {
			t.Errorf("label %s=%q, want %q", label, pod.Labels[label], want)
		}
	}
	if pod.OwnerReferences[0].Name != "fresh" || pod.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("owner %v, restart policy %s", pod.OwnerReferences, pod.Spec.RestartPolicy)
	}
}

func TestSameNameInTwoNamespaces(t *testing.T) {
	one, other := newStage(t), newStage(t)
	startOperator(t)
	one.create(simpleJob("twin", 2))
	other.create(simpleJob("twin", 2))
	one.await(func() error { return one.whole(2) })
	other.await(func() error { return other.whole(2) })
}

func TestSuspendAndResume(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	startKubelet(s)
	job := simpleJob("job", 2)
	s.create(job)
	s.await(s.running("job", 2))
	s.patch(job, `{"spec":{"suspend":true}}`)
	s.await(func() error {
		if phase := s.job("job").Status.Phase; phase != v1alpha1.PhaseSuspended {
			return fmt.Errorf("phase %s", phase)
		}
		return empty(s)
	})
	s.patch(job, `{"spec":{"suspend":false}}`)
	s.await(s.running("job", 2))
	if restarts := s.job("job").Status.Restarts; restarts != 0 {
		t.Errorf("suspending has cost %d restarts", restarts)
	}
}

func TestAJobThatStartsSuspendedHasNoPods(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	job := simpleJob("job", 2)
	job.Spec.Suspend = ptr.To(true)
	s.create(job)
	s.await(func() error {
		if phase := s.job("job").Status.Phase; phase != v1alpha1.PhaseSuspended {
			return fmt.Errorf("phase %q", phase)
		}
		return nil
	})
	if pods := s.pods(v1alpha1.ReplicaTypeWorker); len(pods) > 0 {
		t.Errorf("%d pods", len(pods))
	}
}

func TestSuccess(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	kubelet := startKubelet(s)
	s.create(simpleJob("job", 2))
	s.await(s.running("job", 2))
	for _, pod := range s.live(v1alpha1.ReplicaTypeMaster) {
		kubelet.end(pod, 0)
	}
	s.await(func() error {
		if status := s.job("job").Status; status.Phase != v1alpha1.PhaseSucceeded || status.CompletionTime == nil {
			return fmt.Errorf("phase %s", status.Phase)
		}
		return empty(s)
	})
}

// A job that is deleted and applied anew at once waits for the names that the pods of the old one still have.
func TestDeletedAndAppliedAnew(t *testing.T) {
	s := newStage(t)
	operator := startOperator(t)
	startKubelet(s)
	held := simpleJob("job", 1)
	held.Spec.ReplicaSpecs[v1alpha1.ReplicaTypeWorker].Template.Metadata.Annotations = map[string]string{holding: "yes"}
	s.create(held)
	s.await(s.running("job", 1))
	old := s.live(v1alpha1.ReplicaTypeWorker)["job-edljob-worker-0"]
	operator.kill() // there is no garbage collector here that would remove what it makes for the old job
	if err := cluster.client.Delete(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	if err := cluster.client.Delete(t.Context(), &old); err != nil { // as the garbage collector does
		t.Fatal(err)
	}
	s.forceDelete(s.pods(v1alpha1.ReplicaTypeMaster)...)
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: s.namespace} }
	for _, own := range []client.Object{
		&corev1.Secret{ObjectMeta: named("elasticjob-job-token")},
		&corev1.Service{ObjectMeta: named("elasticjob-job-dlrover-master")},
	} {
		if err := cluster.client.Delete(t.Context(), own); err != nil {
			t.Fatal(err)
		}
	}
	startOperator(t)
	s.create(simpleJob("job", 1))
	s.await(func() error {
		for _, condition := range s.job("job").Status.Conditions {
			if condition.Type == v1alpha1.ConditionDegraded && condition.Status == "True" {
				return nil
			}
		}
		return fmt.Errorf("nobody says that the name is taken: %v", s.job("job").Status.Conditions)
	})
	s.forceDelete(old)
	s.await(s.running("job", 1))
	if now := s.live(v1alpha1.ReplicaTypeWorker)["job-edljob-worker-0"]; now.UID == old.UID || now.UID == "" {
		t.Errorf("worker-0 is %s", now.UID)
	}
}
