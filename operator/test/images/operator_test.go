//go:build apiserver

package images

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The operator is built by the Dockerfile's own command. Alone, as the image's user, it knows the flags of the chart.
// The first time all of its modules are compiled anew, which takes minutes.
func TestTheOperatorsProgram(t *testing.T) {
	file := readDockerfile(t, "operator")
	program := filepath.Join(t.TempDir(), "phalanx-operator")
	build := file.run[len(file.run)-1]
	if !strings.Contains(build, "go build") || !strings.Contains(build, "-o /phalanx-operator ") {
		t.Fatalf("the last RUN is %s", build)
	}
	build = strings.ReplaceAll(build, "-o /phalanx-operator ", "-o "+program+" ")
	build = strings.ReplaceAll(build, "${TARGETOS}", "linux")
	build = strings.ReplaceAll(build, "${TARGETARCH}", strings.TrimSpace(output(t, root, "go", "env", "GOARCH")))
	output(t, filepath.Join(root, "operator"), "sh", "-c", build)
	if !isStatic(t, program) {
		t.Error("the program needs an interpreter, which the image does not have")
	}
	help, err := inside(alone(t, program, file.program), file.program, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("--help: %v\n%s", err, help)
	}
	template, err := os.ReadFile(filepath.Join(root, "charts/phalanx/templates/deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`(?m)^\s+- --([\w-]+)`).FindAllSubmatch(template, -1)
	if len(flags) < 5 {
		t.Fatalf("the chart gives %d flags", len(flags))
	}
	for _, name := range flags {
		if !regexp.MustCompile(`(?m)^\s+-` + string(name[1]) + `\b`).Match(help) {
			t.Errorf("the chart gives --%s, which the operator does not have", name[1])
		}
	}
}
