//go:build apiserver

package apiserver

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// controlPlane is the folder with etcd and kube-apiserver. Where they are missing they are built: minutes, and then
// never again for this go.mod. tools/operator.sh looks at the same place.
func controlPlane() (string, error) {
	module, err := filepath.Abs("../controlplane")
	if err != nil {
		return "", err
	}
	folder, err := builtFolder(module)
	if err != nil {
		return "", err
	}
	for name, source := range map[string]string{
		"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
	} {
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

func builtFolder(module string) (string, error) {
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	caches := os.Getenv("PHALANX_CACHE")
	if caches == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		caches = filepath.Join(user, "phalanx")
	}
	return filepath.Join(caches, "controlplane", fmt.Sprintf("%x", sum.Sum(nil))[:16]), nil
}
