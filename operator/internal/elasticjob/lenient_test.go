package elasticjob

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
)

func TestNumbersInATemplatesMetadata(t *testing.T) {
	var meta v1alpha1.TemplateMeta
	text := `{"annotations":{"n":4,"big":12345678901234567890,"yes":true,"s":"x","none":null},` +
		`"labels":{"l":1.50},"name":"x"}`
	if err := json.Unmarshal([]byte(text), &meta); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.TemplateMeta{
		Labels: map[string]string{"l": "1.50"},
		Annotations: map[string]string{
			"n": "4", "big": "12345678901234567890", "yes": "true", "s": "x", "none": "",
		},
	}
	if diff := cmp.Diff(want, meta); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	err := json.Unmarshal([]byte(`{"labels":{"l":["a"]}}`), &meta)
	if err == nil || !strings.Contains(err.Error(), "labels[l]: expected a text, a number or a boolean, not a list") {
		t.Errorf("got %v", err)
	}
}

// One job that does not fit is one job's matter: it must not keep the others from being listed.
func TestAMalformedJobIsReadAllTheSame(t *testing.T) {
	const fits = `{"metadata":{"name":"fits","uid":"1"},"spec":{"replicaSpecs":{"worker":{"replicas":2}}}}`
	cases := map[string]struct{ spec, want string }{
		"a label that is an object": {
			`{"replicaSpecs":{"worker":{"template":{"metadata":{"labels":{"team":{"name":"x"}}}}}}}`,
			"template.metadata.labels[team]: expected a text, a number or a boolean, not an object",
		},
		"labels that are a list": {
			`{"replicaSpecs":{"worker":{"template":{"metadata":{"labels":["x"]}}}}}`, "template.metadata: ",
		},
		"a quantity that only looks like one": {
			`{"replicaSpecs":{"worker":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"1e1.5"}}}]}}}}}`,
			"quantities must match",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			text := `{"items":[{"kind":"ElasticJob","metadata":{"name":"bad","uid":"2","resourceVersion":"7"},"spec":` +
				tc.spec + `,"status":{"restarts":3,"replicas":1}},` + fits + `]}`
			var list v1alpha1.ElasticJobList
			if err := json.Unmarshal([]byte(text), &list); err != nil {
				t.Fatal(err)
			}
			bad, good := &list.Items[0], &list.Items[1]
			if bad.UID != "2" || bad.ResourceVersion != "7" || bad.Kind != "ElasticJob" || bad.Status.Restarts != 3 {
				t.Errorf("of the bad one is left %+v", bad)
			}
			if _, err := Desired(bad, engine.DefaultPolicy()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if good.Name != "fits" || good.Malformed != "" || *worker(good).Replicas != 2 {
				t.Errorf("the good one: %+v", good)
			}
		})
	}
}

func TestAMalformedPlanIsReadAllTheSame(t *testing.T) {
	var plan v1alpha1.ScalePlan
	text := `{"metadata":{"name":"bad"},"spec":{"ownerJob":"job",
		"replicaResourceSpecs":{"worker":{"resource":{"cpu":"1e1.5"}}}}}`
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		t.Fatal(err)
	}
	step := NextStep(&plan, jobOf())
	if plan.Name != "bad" || step.Status.Phase != v1alpha1.PlanFailed ||
		!strings.HasPrefix(step.Status.Message, "the plan cannot be read: ") {
		t.Errorf("%s: %+v", plan.Name, step.Status)
	}
}

// A plan for a job that cannot be read waits, and does not resize it twice when it is mended.
func TestAPlanForAMalformedJobWaits(t *testing.T) {
	plan := &v1alpha1.ScalePlan{}
	plan.Spec.OwnerJob = "job"
	plan.Spec.ReplicaResourceSpecs = map[string]v1alpha1.ReplicaResourceSpec{"worker": {Replicas: new(int32(3))}}
	bad := &v1alpha1.ElasticJob{Malformed: "labels"}
	for phase, want := range map[string]string{"": v1alpha1.PlanPending, v1alpha1.PlanScaling: v1alpha1.PlanScaling} {
		plan.Status.Phase = phase
		if step := NextStep(plan, bad); step.Status.Phase != want || step.Replicas != nil {
			t.Errorf("in phase %q: %+v", phase, step)
		}
	}
}
