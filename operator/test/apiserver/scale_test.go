//go:build apiserver

package apiserver

import (
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
)

// As kubectl scale and an autoscaler do it.
func TestScaleSubresource(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	startKubelet(s)
	job := simpleJob("job", 2)
	s.create(job)
	s.await(s.running("job", 2))
	for _, size := range []int32{5, 1} {
		scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: size}}
		err := cluster.client.SubResource("scale").Update(t.Context(), job, client.WithSubResourceBody(scale))
		if err != nil {
			t.Fatal(err)
		}
		s.await(s.running("job", size))
	}
	if pod := holder(s, "0"); pod.Name != "job-edljob-worker-0" {
		t.Errorf("rank 0 is held by %s: scaling has touched it", pod.Name)
	}
	var scale autoscalingv1.Scale
	if err := cluster.client.SubResource("scale").Get(t.Context(), job, &scale); err != nil {
		t.Fatal(err)
	}
	const selector = "elasticjob.dlrover/name=job,elasticjob.dlrover/replica-type=worker"
	if scale.Status.Replicas != 1 || scale.Status.Selector != selector {
		t.Errorf("scale: %+v", scale.Status)
	}
	if restarts := s.job("job").Status.Restarts; restarts != 0 {
		t.Errorf("scaling has cost %d restarts", restarts)
	}
}

func plan(name string, workers int32) *v1alpha1.ScalePlan {
	plan := &v1alpha1.ScalePlan{}
	plan.Name = name
	plan.Spec.OwnerJob = "job"
	plan.Spec.ReplicaResourceSpecs = map[string]v1alpha1.ReplicaResourceSpec{"worker": {Replicas: ptr.To(workers)}}
	return plan
}

func TestScalePlan(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	startKubelet(s)
	s.create(plan("early", 3))
	phase := func(name, want string) func() error {
		return func() error {
			var plan v1alpha1.ScalePlan
			if err := s.cache.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, &plan); err != nil {
				return err
			}
			if plan.Status.Phase != want {
				return errorf("%s is %q: %s", name, plan.Status.Phase, plan.Status.Message)
			}
			return nil
		}
	}
	s.await(phase("early", v1alpha1.PlanPending))
	s.create(simpleJob("job", 1))
	s.await(phase("early", v1alpha1.PlanSucceeded))
	s.await(s.running("job", 3))

	resources := plan("resources", 2)
	worker := resources.Spec.ReplicaResourceSpecs["worker"]
	worker.Resource = corev1.ResourceList{corev1.ResourceCPU: {}}
	resources.Spec.ReplicaResourceSpecs["worker"] = worker
	s.create(resources)
	s.await(phase("resources", v1alpha1.PlanFailed))

	record := plan("record", 2)
	record.Labels = map[string]string{"scale-type": "auto"}
	s.create(record)
	s.create(plan("late", 4))
	s.await(phase("late", v1alpha1.PlanSucceeded))
	if err := phase("record", "")(); err != nil {
		t.Error(err)
	}
	s.await(s.running("job", 4))
}
