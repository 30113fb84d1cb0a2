// Package images tests what can be tested of the container images without a container runtime.
package images

import (
	"bufio"
	"debug/elf"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/engine"
)

const root = "../../.." // of the tree: what docker build is given

// The images' user.
const user = 65532

var builtMaster = flag.String("master", filepath.Join(root, "build/release/bin/phalanx-master"),
	"phalanx-master as ./run build makes it; its test is left out where there is none")

// dockerfile is what of one is looked at.
type dockerfile struct {
	copied     []string // from the tree
	run        []string
	program    string // where the last COPY puts it
	entrypoint []string
	user       string
}

func readDockerfile(t *testing.T, image string) dockerfile {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "images", image, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	var file dockerfile
	for _, line := range strings.Split(strings.ReplaceAll(string(data), "\\\n", ""), "\n") {
		word, rest, _ := strings.Cut(line, " ")
		fields := strings.Fields(rest)
		switch {
		case word == "COPY" && strings.HasPrefix(fields[0], "--from="):
			file.program = fields[len(fields)-1]
		case word == "COPY":
			file.copied = append(file.copied, fields[:len(fields)-1]...)
		case word == "RUN":
			file.run = append(file.run, rest)
		case word == "USER":
			file.user = rest
		case word == "ENTRYPOINT":
			if err := json.Unmarshal([]byte(rest), &file.entrypoint); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	return file
}

func output(t *testing.T, folder, name string, arguments ...string) string {
	t.Helper()
	command := exec.Command(name, arguments...)
	command.Dir = folder
	text, err := command.Output()
	if err != nil {
		t.Fatalf("%s %v: %v", name, arguments, err)
	}
	return string(text)
}

func TestBothImages(t *testing.T) {
	for _, image := range []string{"operator", "master"} {
		file := readDockerfile(t, image)
		for _, path := range file.copied {
			if output(t, root, "git", "ls-files", "--", path) == "" {
				t.Errorf("%s: %s is copied and not in the tree", image, path)
			}
		}
		if len(file.copied) == 0 || file.user != "65532:65532" || !slices.Equal(file.entrypoint, []string{file.program}) {
			t.Errorf("%s: user %q, entry point %q of %q", image, file.user, file.entrypoint, file.program)
		}
	}
}

// The launcher's image copies to where the operator's pods have a volume for it, by a command of its own.
func TestTheLaunchersImage(t *testing.T) {
	file := readDockerfile(t, "launcher")
	create := engine.Create{Role: v1alpha1.ReplicaTypeWorker}
	pod := elasticjob.Pod(simpleJob(), create, elasticjob.Options{LauncherImage: "phalanx-launcher"})
	init := pod.Spec.InitContainers[0]
	want := []string{"cp", "-R", file.program + "/.", init.VolumeMounts[0].MountPath}
	if !slices.Equal(file.entrypoint, want) || init.Command != nil || init.Args != nil {
		t.Errorf("entry point %q, want %q; the pod runs %q", file.entrypoint, want, init.Command)
	}
	if !slices.Equal(file.copied, []string{"dist/phalanx-*.whl"}) || file.user != "65532:65532" {
		t.Errorf("copied %q, as %q", file.copied, file.user)
	}
}

// within says that one of the paths is, or holds, another.
func within(paths []string, path string) bool {
	return slices.ContainsFunc(paths, func(one string) bool { return path == one || strings.HasPrefix(path, one+"/") })
}

func TestTheOperatorsBuildHasAllItNeeds(t *testing.T) {
	copied := readDockerfile(t, "operator").copied
	list := output(t, filepath.Join(root, "operator"), "go", "list", "-deps", "./cmd/manager")
	count := 0
	for _, name := range strings.Fields(list) {
		path, ours := strings.CutPrefix(name, "phalanx/")
		if ours && !within(copied, path) {
			t.Errorf("%s is not copied", path)
		}
		if ours {
			count++
		}
	}
	if count < 5 {
		t.Errorf("%d packages of ours: %s", count, list)
	}
}

func TestTheMastersBuildHasAllItNeeds(t *testing.T) {
	copied := readDockerfile(t, "master").copied
	text, err := os.ReadFile(filepath.Join(root, "CMakeLists.txt"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?m)^\s*(?:add_subdirectory|include)\(([\w/.]+)\)`).FindAllSubmatch(text, -1)
	if len(named) < 5 {
		t.Fatalf("CMakeLists.txt includes %d files and folders", len(named))
	}
	for _, name := range named {
		if path := string(name[1]); !within(copied, path) {
			t.Errorf("CMakeLists.txt includes %s, which is not copied", path)
		}
	}
}

// alone is a file system with nothing but a program, and a folder that anybody may write to.
func alone(t *testing.T, program, at string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: nobody else may give a program another file system")
	}
	folder, err := os.MkdirTemp("", "phalanx-image-") // t.TempDir is not everybody's to enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(folder, "var/lib/phalanx")
	for _, path := range []string{filepath.Dir(filepath.Join(folder, at)), state} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{folder: 0o755, state: 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, at), data, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}

func inside(folder, program string, arguments ...string) *exec.Cmd {
	return &exec.Cmd{
		Path: program, Args: append([]string{program}, arguments...), Dir: "/", Env: []string{},
		SysProcAttr: &syscall.SysProcAttr{Chroot: folder, Credential: &syscall.Credential{Uid: user, Gid: user}},
	}
}

func isStatic(t *testing.T, path string) bool {
	t.Helper()
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	return !slices.ContainsFunc(file.Progs, func(part *elf.Prog) bool { return part.Type == elf.PT_INTERP })
}

// The master takes what the operator's pods give it, alone, as the image's user, and serves.
func TestTheMastersProgram(t *testing.T) {
	if _, err := os.Stat(*builtMaster); err != nil {
		t.Skipf("%v; ./run build makes it", err)
	}
	file := readDockerfile(t, "master")
	if !isStatic(t, *builtMaster) {
		t.Error("the program needs an interpreter, which the image does not have")
	}
	arguments := masterCommand(t)
	if arguments[0] != filepath.Base(file.program) {
		t.Fatalf("the pods run %s, the image has %s", arguments[0], file.program)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	folder := alone(t, *builtMaster, file.program)
	command := inside(folder, file.program, append(arguments[1:], "--ready-fd=3")...)
	var said strings.Builder
	command.Stderr, command.ExtraFiles = &said, []*os.File{writer}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	line, _ := bufio.NewReader(reader).ReadString('\n') // empty where it ends before
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	command.Wait() //nolint:errcheck // it was asked to end
	if !strings.HasPrefix(line, "ready ") {
		t.Errorf("%v: %q\n%s", arguments, line, said.String())
	}
}

func simpleJob() *v1alpha1.ElasticJob {
	worker := &v1alpha1.ReplicaSpec{}
	worker.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "training"}}
	job := &v1alpha1.ElasticJob{}
	job.Name = "job"
	job.Spec.ReplicaSpecs = map[string]*v1alpha1.ReplicaSpec{v1alpha1.ReplicaTypeWorker: worker}
	return job
}

// masterCommand is that of a job's master pod, on a port that is free and at an address that is here.
func masterCommand(t *testing.T) []string {
	t.Helper()
	create := engine.Create{Role: v1alpha1.ReplicaTypeMaster}
	command := elasticjob.Pod(simpleJob(), create, elasticjob.Options{}).Spec.Containers[0].Command
	for i, argument := range command {
		argument = strings.ReplaceAll(argument, "$(POD_IP)", "127.0.0.1")
		command[i] = strings.ReplaceAll(argument, "=50001", "=0")
	}
	return command
}
