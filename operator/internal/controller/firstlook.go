package controller

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
)

// firstLookPage is how many pods one answer of the API server names: some megabytes, most of them managed fields.
const firstLookPage = 500

// firstLook knows which pods each job had when this process began to decide: those that operators before it have made.
// The API server says so for all jobs at once. A list for each job would cost it a walk over all pods of the namespace
// each time. Safe for use by several goroutines.
type firstLook struct {
	server client.Reader

	mu   sync.Mutex
	done bool
	pods map[types.UID][]types.UID // by job
}

// of returns the pods that a job had.
func (l *firstLook) of(ctx context.Context, job types.UID) ([]types.UID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.done {
		pods, err := l.list(ctx)
		if err != nil {
			return nil, fmt.Errorf("listing the pods of all jobs: %w", err)
		}
		l.pods, l.done = pods, true
	}
	return l.pods[job], nil
}

// forget is for a job whose pods are all known by now.
func (l *firstLook) forget(job types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, job)
}

func (l *firstLook) list(ctx context.Context) (map[types.UID][]types.UID, error) {
	pods := map[types.UID][]types.UID{}
	page := metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	for {
		err := l.server.List(ctx, &page, client.HasLabels{elasticjob.LabelName}, client.Limit(firstLookPage),
			client.Continue(page.Continue))
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			if job := v1alpha1.OwnerUID(&page.Items[i]); job != "" {
				pods[job] = append(pods[job], page.Items[i].UID)
			}
		}
		if page.Continue == "" {
			return pods, nil
		}
	}
}
