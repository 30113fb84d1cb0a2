// Package cache finds the programs that tests build once and keep: Kubernetes' own, and helm's.
package cache

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// Folder is where programs of a module are kept, under kind: another one for each go.mod and go.sum. tools/operator.sh
// looks at the same places.
func Folder(module, kind string) (string, error) {
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
	return filepath.Join(caches, kind, fmt.Sprintf("%x", sum.Sum(nil))[:16]), nil
}
