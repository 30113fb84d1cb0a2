//go:build apiserver

// Package apiserver runs the operator, as a process with no other rights than its generated role, against a real API
// server. Pods get their status from a kubelet of this package.
package apiserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/yaml"

	"phalanx/operator/internal/manager"
)

const operatorUser = "phalanx-operator"

// cluster is what all tests share. Set by TestMain, and then read.
var cluster struct {
	admin      *rest.Config
	client     client.WithWatch
	env        *envtest.Environment
	binaries   string // the folder of the control plane
	adminFile  string // a kubeconfig
	kubeconfig string // of the operator
	program    string // the operator
}

func TestMain(m *testing.M) {
	log.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (int, error) {
	binaries, err := controlPlane()
	if err != nil {
		return 0, err
	}
	folder, err := os.MkdirTemp("", "phalanx-operator-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(folder)
	cluster.binaries = binaries
	cluster.env = &envtest.Environment{
		BinaryAssetsDirectory: binaries,
		CRDDirectoryPaths:     []string{"../../config/crd"},
		ErrorIfCRDPathMissing: true,
	}
	env := cluster.env
	if err := keepState(env, folder); err != nil {
		return 0, err
	}
	// Each job has a service with an address.
	env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/16")
	if cluster.admin, err = env.Start(); err != nil {
		return 0, fmt.Errorf("starting the control plane: %w", err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the control plane:", err)
		}
	}()
	cluster.admin.QPS = -1 // no limit
	cluster.adminFile = filepath.Join(folder, "admin")
	if err := os.WriteFile(cluster.adminFile, env.KubeConfig, 0o600); err != nil {
		return 0, err
	}
	scheme, err := manager.Scheme()
	if err != nil {
		return 0, err
	}
	if cluster.client, err = client.NewWithWatch(cluster.admin, client.Options{Scheme: scheme}); err != nil {
		return 0, err
	}
	if err := admitOperator(env, folder); err != nil {
		return 0, fmt.Errorf("giving the operator its role: %w", err)
	}
	cluster.program = filepath.Join(folder, "manager")
	build := exec.Command("go", "build", "-o", cluster.program, "../../cmd/manager")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return 0, fmt.Errorf("building the operator: %w", err)
	}
	return m.Run(), nil
}

// admitOperator makes a user who may do what config/rbac/role.yaml says, and nothing else.
func admitOperator(env *envtest.Environment, folder string) error {
	user, err := env.AddUser(envtest.User{Name: operatorUser}, nil)
	if err != nil {
		return err
	}
	config, err := user.KubeConfig()
	if err != nil {
		return err
	}
	cluster.kubeconfig = filepath.Join(folder, "kubeconfig")
	if err := os.WriteFile(cluster.kubeconfig, config, 0o600); err != nil {
		return err
	}
	data, err := os.ReadFile("../../config/rbac/role.yaml")
	if err != nil {
		return err
	}
	var role rbacv1.ClusterRole // the file's first document; the second is for leader election
	if err := yaml.Unmarshal(firstDocument(data), &role); err != nil {
		return err
	}
	if err := cluster.client.Create(context.Background(), &role); err != nil {
		return err
	}
	return cluster.client.Create(context.Background(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: operatorUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: operatorUser}},
	})
}

// operator is a process of the operator.
type operator struct {
	t       *testing.T
	command *exec.Cmd
	once    sync.Once
}

// startOperator begins a process of the operator; changes are made to its command before.
func startOperator(t *testing.T, changes ...func(*exec.Cmd)) *operator {
	t.Helper()
	o := &operator{t: t, command: exec.Command(cluster.program,
		"--kubeconfig", cluster.kubeconfig, "--health-probe-bind-address=0", "--master-image=phalanx-master:test")}
	output, err := os.CreateTemp(t.TempDir(), "operator")
	if err != nil {
		t.Fatal(err)
	}
	o.command.Stdout, o.command.Stderr = output, output
	for _, change := range changes {
		change(o.command)
	}
	if err := o.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		o.kill()
		if text, err := os.ReadFile(output.Name()); err == nil && t.Failed() {
			t.Logf("the operator:\n%s", tail(text))
		}
		output.Close()
	})
	return o
}

// with adds flags to a command.
func with(flags ...string) func(*exec.Cmd) {
	return func(command *exec.Cmd) { command.Args = append(command.Args, flags...) }
}

// kill ends the operator as a lost node does.
func (o *operator) kill() {
	o.once.Do(func() {
		if err := o.command.Process.Kill(); err != nil {
			o.t.Error(err)
		}
		o.command.Wait() //nolint:errcheck // it was killed
	})
}

func tail(text []byte) []byte { return text[max(0, len(text)-8000):] }

func firstDocument(data []byte) []byte {
	text := string(data)
	const mark = "\n---\n"
	if len(text) > 4 && text[:4] == "---\n" {
		text = text[4:]
	}
	for i := range text {
		if len(text)-i >= len(mark) && text[i:i+len(mark)] == mark {
			return []byte(text[:i])
		}
	}
	return []byte(text)
}

// namespace makes one for a test.
func namespace(t *testing.T) string {
	t.Helper()
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := cluster.client.Create(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	return made.Name
}

// patience is how long a test waits for what must come. Figures are what is printed, not this.
const patience = 3 * time.Minute
