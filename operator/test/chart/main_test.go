//go:build apiserver

// Package chart renders charts/phalanx by helm's own command, and installs it into a real API server: there the
// operator runs as the account, and with the flags, that the chart has given it.
package chart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"phalanx/operator/internal/manager"
	"phalanx/operator/test/cache"
)

// cluster is what all tests share. Set by TestMain, and then read.
var cluster struct {
	helm       string // the command
	program    string // the operator
	folder     string // for files of the run
	chart      string // a copy for this API server
	kubeconfig string // of an administrator
	admin      *rest.Config
	client     client.WithWatch
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
	helms, err := built("../helm", "helm", map[string]string{"helm": "helm.sh/helm/v4/cmd/helm"})
	if err != nil {
		return 0, err
	}
	cluster.helm = filepath.Join(helms, "helm")
	binaries, err := built("../controlplane", "controlplane", map[string]string{
		"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
	})
	if err != nil {
		return 0, err
	}
	if cluster.folder, err = os.MkdirTemp("", "phalanx-chart-"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(cluster.folder)
	if err := copyChart(); err != nil {
		return 0, err
	}
	cluster.program = filepath.Join(cluster.folder, "manager")
	if err := build(".", cluster.program, "../../cmd/manager"); err != nil {
		return 0, err
	}
	// Beside other work on two processors the API server has taken more than the 20 s that it is given otherwise.
	env := &envtest.Environment{BinaryAssetsDirectory: binaries, ControlPlaneStartTimeout: 3 * time.Minute}
	if cluster.admin, err = env.Start(); err != nil {
		return 0, fmt.Errorf("starting the control plane: %w", err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the control plane:", err)
		}
	}()
	if err := connect(env); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// copyChart: the API server is built without its version, and helm would find it too old.
func copyChart() error {
	cluster.chart = filepath.Join(cluster.folder, "phalanx")
	if err := os.CopyFS(cluster.chart, os.DirFS(chartFolder)); err != nil {
		return err
	}
	path := filepath.Join(cluster.chart, "Chart.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	without := regexp.MustCompile("(?m)^kubeVersion: .*\n").ReplaceAll(data, nil)
	if len(without) == len(data) {
		return fmt.Errorf("%s: there is no kubeVersion", path)
	}
	return os.WriteFile(path, without, 0o600)
}

func connect(env *envtest.Environment) error {
	scheme, err := manager.Scheme()
	if err != nil {
		return err
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return err
	}
	if cluster.client, err = client.NewWithWatch(cluster.admin, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	user, err := env.AddUser(envtest.User{Name: "administrator", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return err
	}
	config, err := user.KubeConfig()
	if err != nil {
		return err
	}
	cluster.kubeconfig = filepath.Join(cluster.folder, "kubeconfig")
	return os.WriteFile(cluster.kubeconfig, config, 0o600)
}

// built is the folder with programs of a module, which are built where they are missing: minutes, and then never again
// for its go.mod.
func built(module, kind string, sources map[string]string) (string, error) {
	folder, err := cache.Folder(module, kind)
	if err != nil {
		return "", err
	}
	for name, source := range sources {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "building %s into %s\n", name, folder)
		if err := build(module, path, source); err != nil {
			return "", err
		}
	}
	return folder, nil
}

func build(folder, path, source string) error {
	command := exec.Command("go", "build", "-C", folder, "-o", path, source)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("building %s: %w", source, err)
	}
	return nil
}

// helm runs the command. Its error is what it has said.
func helm(ctx context.Context, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, cluster.helm, arguments...)
	command.Env = append(os.Environ(), "KUBECONFIG="+cluster.kubeconfig, "HELM_CACHE_HOME="+cluster.folder,
		"HELM_CONFIG_HOME="+cluster.folder, "HELM_DATA_HOME="+cluster.folder)
	var said strings.Builder
	command.Stderr = &said
	output, err := command.Output()
	if err != nil {
		return "", errors.New(said.String())
	}
	return string(output), nil
}
