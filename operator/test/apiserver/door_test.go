//go:build apiserver

package apiserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"phalanx/operator/api/v1alpha1"
)

// Jobs as people's guides have them are taken by kubectl's strict checks, and get their pods.
func TestJobsOfGuides(t *testing.T) {
	startOperator(t)
	addPriorities(t)
	paths, err := filepath.Glob("../../internal/elasticjob/testdata/jobs/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no jobs: %v", err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var object unstructured.Unstructured
			if err := yaml.Unmarshal(data, &object.Object); err != nil {
				t.Fatal(err)
			}
			object.SetNamespace(s.namespace)
			strict := client.WithFieldValidation(cluster.client, metav1.FieldValidationStrict)
			if err := strict.Create(t.Context(), &object); err != nil {
				t.Fatal(err)
			}
			replicas, _, err := unstructured.NestedInt64(object.Object, "spec", "replicaSpecs", "worker", "replicas")
			if err != nil {
				t.Fatal(err)
			}
			s.await(func() error { return s.whole(int(replicas)) })
			if name == "torch-gang-number" {
				const key = "gang.scheduling.koordinator.sh/min-available"
				if got := s.live(v1alpha1.ReplicaTypeWorker)[name+"-edljob-worker-0"].Annotations[key]; got != "4" {
					t.Errorf("%s: %q", key, got)
				}
			}
		})
	}
}

func TestWrongJobsAreRefusedAtTheDoor(t *testing.T) {
	spec := func(change func(*v1alpha1.ElasticJob)) *v1alpha1.ElasticJob {
		job := simpleJob("job", 1)
		change(job)
		return job
	}
	worker := func(job *v1alpha1.ElasticJob) *v1alpha1.ReplicaSpec { return job.Spec.ReplicaSpecs["worker"] }
	cases := map[string]struct {
		job  *v1alpha1.ElasticJob
		want string
	}{
		"parameter servers": {
			spec(func(j *v1alpha1.ElasticJob) { j.Spec.DistributionStrategy = "ParameterServerStrategy" }),
			"expected AllreduceStrategy",
		},
		"other roles": {
			spec(func(j *v1alpha1.ElasticJob) { j.Spec.ReplicaSpecs["ps"] = worker(j) }), "expected worker and dlrover-master",
		},
		"a long name": {
			spec(func(j *v1alpha1.ElasticJob) { j.Name = strings.Repeat("x", 38) }), "at most 37 characters",
		},
		"a negative size": {
			spec(func(j *v1alpha1.ElasticJob) { worker(j).Replicas = ptr.To[int32](-1) }), "greater than or equal to 0",
		},
		"a priority": {
			spec(func(j *v1alpha1.ElasticJob) { worker(j).Priority = "urgent" }), "priority",
		},
	}
	ns := namespace(t)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.job.Namespace = ns
			err := cluster.client.Create(t.Context(), tc.job)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// What the API server only refuses in a pod is said in the job's status.
func TestAPodThatIsRefusedIsSaidSo(t *testing.T) {
	s := newStage(t)
	startOperator(t)
	job := simpleJob("job", 2)
	job.Spec.ReplicaSpecs["worker"].Template.Spec.Containers[0].Image = ""
	s.create(job)
	s.await(func() error {
		for _, condition := range s.job("job").Status.Conditions {
			if condition.Reason == "PodsRefused" && strings.Contains(condition.Message, "image: Required value") {
				return nil
			}
		}
		return errorf("conditions %v", s.job("job").Status.Conditions)
	})
}
