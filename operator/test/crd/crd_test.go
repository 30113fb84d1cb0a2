// Package crd checks the custom resource definitions, and jobs against them, by the code that the API server does it
// with: schemas, unknown fields, rules and what those may cost.
package crd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

const guides = "../../internal/elasticjob/testdata/jobs/"

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func definition(t *testing.T, plural string) *apiextensions.CustomResourceDefinition {
	t.Helper()
	var written apiextensionsv1.CustomResourceDefinition
	path := "../../config/crd/elastic.iml.github.io_" + plural + ".yaml"
	if err := yaml.UnmarshalStrict(read(t, path), &written); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&written)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&written.Spec)
	written.Status.StoredVersions = []string{"v1alpha1"}
	var internal apiextensions.CustomResourceDefinition
	convert := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition
	if err := convert(&written, &internal, nil); err != nil {
		t.Fatal(err)
	}
	return &internal
}

func TestDefinitionsAreValid(t *testing.T) {
	for _, plural := range []string{"elasticjobs", "scaleplans"} {
		for _, err := range crdvalidation.ValidateCustomResourceDefinition(t.Context(), definition(t, plural)) {
			t.Errorf("%s: %v", plural, err)
		}
	}
}

// door says what the API server has against an ElasticJob, unknown fields included.
func door(t *testing.T) func(manifest string) []string {
	t.Helper()
	spec := definition(t, "elasticjobs").Spec
	validated := spec.Validation // of all versions, where they are alike
	if validated == nil {
		validated = spec.Versions[0].Schema
	}
	structural, err := schema.NewStructural(validated.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	byField, _, err := validation.NewSchemaValidator(validated.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	byRule := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	return func(manifest string) []string {
		t.Helper()
		var job map[string]any
		if err := yaml.Unmarshal([]byte(manifest), &job); err != nil {
			t.Fatal(err)
		}
		whole(job)
		var against []string
		for _, err := range validation.ValidateCustomResource(nil, job, byField) {
			against = append(against, err.Error())
		}
		ruled, _ := byRule.Validate(context.Background(), nil, structural, job, nil, celconfig.RuntimeCELCostBudget)
		for _, err := range ruled {
			against = append(against, err.Error())
		}
		track := schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
		for _, path := range pruning.PruneWithOptions(job, structural, true, track) {
			against = append(against, "unknown field "+path)
		}
		return against
	}
}

// whole makes whole numbers of those that the YAML reader gives as floats, as the API server's does.
func whole(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key := range value {
			value[key] = whole(value[key])
		}
	case []any:
		for i := range value {
			value[i] = whole(value[i])
		}
	case float64:
		return int64(value)
	}
	return value
}

func TestJobsOfGuidesAreTaken(t *testing.T) {
	against := door(t)
	paths, err := filepath.Glob(guides + "*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no jobs: %v", err)
	}
	for _, path := range paths {
		for _, complaint := range against(string(read(t, path))) {
			t.Errorf("%s: %s", filepath.Base(path), complaint)
		}
	}
}

func TestWrongJobsAreRefused(t *testing.T) {
	against := door(t)
	right := string(read(t, guides+"fine-tuning-llama2.yaml"))
	cases := map[string]struct{ replace, by, want string }{
		"parameter servers": {"AllreduceStrategy", "ParameterServerStrategy", "expected AllreduceStrategy"},
		"no worker":         {"    worker:", "    ps:", "replicaSpecs: expected a worker"},
		"other roles":       {"  replicaSpecs:", "  replicaSpecs:\n    ps: {}", "other roles are not supported yet"},
		"a long name":       {"fine-tuning-llama2", strings.Repeat("x", 38), "at most 37 characters"},
		"a dotted name":     {"fine-tuning-llama2", "fine.tuning", "no dot"},
		"a negative size":   {"replicas: 4", "replicas: -1", "greater than or equal to 0"},
		"a priority":        {"restartCounts: 3", "priority: urgent", "priority"},
		"a misspelt field":  {"optimizeMode", "optimiseMode", "unknown field spec.optimiseMode"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			manifest := strings.Replace(right, tc.replace, tc.by, 1)
			if got := strings.Join(against(manifest), "\n"); manifest == right || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
