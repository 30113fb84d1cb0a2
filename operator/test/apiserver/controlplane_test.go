//go:build apiserver

package apiserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"phalanx/operator/test/cache"
)

// controlPlane is the folder with the programs of a control plane. Where they are missing they are built: minutes, and
// then never again for this go.mod. tools/operator.sh looks at the same place.
func controlPlane() (string, error) {
	module, err := filepath.Abs("../controlplane")
	if err != nil {
		return "", err
	}
	folder, err := cache.Folder(module, "controlplane")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"} {
		source := "k8s.io/kubernetes/cmd/" + name
		if name == "etcd" {
			source = "go.etcd.io/etcd/server/v3"
		}
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "building %s into %s\n", name, folder)
		build := exec.Command("go", "build", "-C", module, "-o", path, source)
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return "", fmt.Errorf("building %s: %w", name, err)
		}
	}
	return folder, nil
}

const startLimit = 3 * time.Minute

// keepState gives etcd and API server folders of their own, so that one that was killed finds its data when it starts
// again.
func keepState(env *envtest.Environment, folder string) error {
	server := env.ControlPlane.GetAPIServer()
	server.CertDir = filepath.Join(folder, "certificates")
	env.ControlPlane.Etcd = &envtest.Etcd{DataDir: filepath.Join(folder, "etcd")}
	// Beside other work on two processors the API server has taken more than the 20 s that it is given otherwise.
	server.StartTimeout, env.ControlPlane.Etcd.StartTimeout = startLimit, startLimit
	env.ControlPlaneStartTimeout = startLimit
	for _, made := range []string{server.CertDir, env.ControlPlane.Etcd.DataDir} {
		if err := os.Mkdir(made, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// killEtcd kills it as a lost node does, and starts it again on what it has written.
func killEtcd(t *testing.T) {
	t.Helper()
	killChild(t, "etcd")
	if err := cluster.env.ControlPlane.Etcd.Start(); err != nil {
		t.Fatal(err)
	}
}

// killAPIServer is killEtcd for the API server.
func killAPIServer(t *testing.T) {
	t.Helper()
	killChild(t, "kube-apiserver")
	if err := cluster.env.ControlPlane.GetAPIServer().Start(); err != nil {
		t.Fatal(err)
	}
}

// killChild kills the child of this process that has a name, and waits for its end.
func killChild(t *testing.T, name string) {
	t.Helper()
	child, err := childNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	handle, err := unix.PidfdOpen(child, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(handle)
	if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	ended := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
	for err = unix.EINTR; err == unix.EINTR; {
		_, err = unix.Poll(ended, -1)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// startComponent runs another program of the control plane, as an administrator, until the test ends.
func startComponent(t *testing.T, name string, flags ...string) {
	t.Helper()
	always := []string{"--kubeconfig=" + cluster.adminFile, "--leader-elect=false", "--secure-port=0"}
	command := exec.Command(filepath.Join(cluster.binaries, name), append(always, flags...)...)
	output, err := os.CreateTemp(t.TempDir(), name)
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = output, output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := command.Process.Kill(); err != nil {
			t.Error(err)
		}
		command.Wait() //nolint:errcheck // it was killed
		if text, err := os.ReadFile(output.Name()); err == nil && t.Failed() {
			t.Logf("%s:\n%s", name, tail(text))
		}
		output.Close()
	})
}

func childNamed(name string) (int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		var pid, parent int
		var state string
		_, rest, named := strings.Cut(string(text), " ("+name[:min(len(name), 15)]+") ")
		if _, err := fmt.Sscan(rest, &state, &parent); !named || err != nil || parent != os.Getpid() || state == "Z" {
			continue
		}
		if _, err := fmt.Sscan(string(text), &pid); err != nil {
			return 0, err
		}
		return pid, nil
	}
	return 0, fmt.Errorf("this process has no child %s", name)
}
