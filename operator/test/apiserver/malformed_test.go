//go:build apiserver

package apiserver

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
)

// malformedJob is one that the API server takes and that cannot be read.
func malformedJob(name string, labels map[string]any, cpu string) *unstructured.Unstructured {
	job := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"replicaSpecs": map[string]any{"worker": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"labels": labels},
			"spec": map[string]any{"containers": []any{map[string]any{
				"name": "main", "image": "training", "resources": map[string]any{"limits": map[string]any{"cpu": cpu}},
			}}},
		}}}},
	}}
	job.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ElasticJob"))
	job.SetName(name)
	return job
}

// What one user has written wrong is told to him, and is nobody else's matter: neither of an operator that works, nor
// of one that begins.
func TestAJobThatCannotBeRead(t *testing.T) {
	s := newStage(t)
	operator := startOperator(t)
	s.create(simpleJob("before", 1))
	s.await(func() error { return s.whole(1) })
	s.submit(malformedJob("labels", map[string]any{"team": map[string]any{"name": "x"}}, "1"))
	s.submit(malformedJob("quantity", nil, "1e1.5"))
	refused := func(name, want string) func() error {
		return func() error {
			var job v1alpha1.ElasticJob
			key := client.ObjectKey{Namespace: s.namespace, Name: name}
			if err := s.cache.Get(t.Context(), key, &job); err != nil {
				return err // it was submitted a moment ago
			}
			accepted := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionAccepted)
			if accepted == nil || accepted.Status != "False" || !strings.Contains(accepted.Message, want) {
				return errorf("%s: %+v", name, accepted)
			}
			return nil
		}
	}
	s.await(refused("labels", "template.metadata.labels[team]: expected a text, a number or a boolean, not an object"))
	s.await(refused("quantity", "quantities must match"))
	s.create(simpleJob("between", 1))
	s.await(func() error { return s.hasWorker("between-edljob-worker-0") })
	operator.kill()
	startOperator(t)
	s.create(simpleJob("after", 1))
	s.await(func() error { return s.hasWorker("after-edljob-worker-0") })

	t.Log("somebody mends it")
	s.patch(s.job("labels"), `{"spec":{"replicaSpecs":{"worker":{"template":{"metadata":{"labels":{"team":"x"}}}}}}}`)
	s.await(func() error { return s.hasWorker("labels-edljob-worker-0") })
}

func (s *stage) hasWorker(name string) error {
	if _, there := s.live(v1alpha1.ReplicaTypeWorker)[name]; !there {
		return errorf("there is no %s", name)
	}
	return nil
}
