package operator

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is generated is what the types and markers say now.
func TestGeneratedFilesAreUpToDate(t *testing.T) {
	cases := map[string][]string{ // the folder of the files, and what makes them, into another one
		"api/v1alpha1": {"object", "paths=./api/...", "output:object:dir=DIR"},
		"config/crd":   {"crd:maxDescLen=0", "paths=./api/...", "output:crd:dir=DIR"},
		"config/rbac":  {"rbac:roleName=phalanx-operator", "paths=./internal/...", "output:rbac:dir=DIR"},

		"../charts/phalanx/files/crds": {"crd:maxDescLen=0", "paths=./api/...", "output:crd:dir=DIR"},
		"../charts/phalanx/files/rbac": {"rbac:roleName=phalanx-operator", "paths=./internal/...", "output:rbac:dir=DIR"},
	}
	for folder, arguments := range cases {
		t.Run(folder, func(t *testing.T) {
			made := t.TempDir()
			command := []string{"tool", "controller-gen"}
			for _, argument := range arguments {
				command = append(command, strings.ReplaceAll(argument, "DIR", made))
			}
			if output, err := exec.Command("go", command...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			files, err := filepath.Glob(filepath.Join(made, "*"))
			if err != nil || len(files) == 0 {
				t.Fatalf("nothing was made: %v", err)
			}
			for _, file := range files {
				compare(t, filepath.Join(folder, filepath.Base(file)), file)
			}
		})
	}
}

func compare(t *testing.T, kept, made string) {
	t.Helper()
	have, err := os.ReadFile(kept)
	if err != nil {
		t.Fatalf("%v; go generate writes it", err)
	}
	want, err := os.ReadFile(made)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is old; go generate writes it anew (-kept +made):\n%.2000s", kept, cmp.Diff(string(have), string(want)))
	}
}
