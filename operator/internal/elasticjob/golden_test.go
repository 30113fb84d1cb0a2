package elasticjob

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/engine"
)

var update = flag.Bool("update", false, "write the golden files anew")

var options = Options{MasterImage: "phalanx-master:test", NodeLostAfter: 30}

func readJob(t *testing.T, path string) *v1alpha1.ElasticJob {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var job v1alpha1.ElasticJob
	if err := yaml.Unmarshal(data, &job); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	job.UID = "the-uid"
	return &job
}

// Jobs as people's guides have them become the pods in testdata/pods.
func TestPodsOfGuides(t *testing.T) {
	paths, err := filepath.Glob("testdata/jobs/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no jobs: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			job := readJob(t, path)
			policy := engine.DefaultPolicy()
			desired, err := Desired(job, policy)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for _, action := range engine.Decide(engine.Observed{}, desired, policy, time.Unix(0, 0)) {
				create := action.(engine.Create)
				if create.Rank > 1 {
					continue // as rank 1
				}
				text, err := yaml.Marshal(Pod(job, create, options))
				if err != nil {
					t.Fatal(err)
				}
				got.WriteString("---\n")
				got.Write(text)
			}
			compare(t, filepath.Join("testdata", "pods", filepath.Base(path)), got.Bytes())
		})
	}
}

func compare(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test ./internal/elasticjob -update writes it", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
