package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/engine"
)

// ownerIndex finds the pods of a job in the cache by its UID: a job that was deleted and made anew has none of the old.
const ownerIndex = "elasticjob-uid"

func ownerOf(object client.Object) []string {
	if uid := v1alpha1.OwnerUID(object); uid != "" {
		return []string{string(uid)}
	}
	return nil
}

// picture is what a job's pods are, as far as anybody knows. The pods belong to the cache: nobody may change them.
type picture struct {
	pods    []engine.Pod
	going   []string  // nodes that are about to go
	expires time.Time // when to look again, if nothing happens; zero: never
}

// observe asks of no node that was asked of before.
func (r *JobReconciler) observe(ctx context.Context, job *v1alpha1.ElasticJob, now time.Time,
	asked map[string]host) (picture, error) {
	ahead, sure := r.ledger.unseen(job.UID, now)
	if !sure {
		if err := r.makeSure(ctx, job, now); err != nil {
			return picture{}, err
		}
		ahead, _ = r.ledger.unseen(job.UID, now)
	}
	cached, err := r.cached(ctx, job)
	if err != nil {
		return picture{}, err
	}
	pods := r.merge(job.UID, cached, ahead)
	observed := elasticjob.Observe(pods)
	for i := range observed {
		if ahead.deleted[types.UID(observed[i].UID)] {
			observed[i].Leaving, observed[i].Ready = true, false
		}
	}
	r.ledger.blocked(job.UID, observed, now)
	if err := r.nodes.tell(ctx, observed, asked); err != nil {
		return picture{}, err
	}
	going, err := r.nodes.going(ctx)
	if err != nil {
		return picture{}, err
	}
	return picture{observed, going, ahead.expires}, nil
}

// merge adds to the cache's pods those that it does not show yet, and tells the ledger which it does.
func (r *JobReconciler) merge(job types.UID, cached []*corev1.Pod, ahead unseen) []*corev1.Pod {
	pods := slices.Clone(cached)
	there := map[types.UID]bool{}
	var created, deleted []types.UID
	for _, pod := range cached {
		there[pod.UID] = true
		if ahead.created[pod.UID] != nil {
			created = append(created, pod.UID)
		}
	}
	for uid, pod := range ahead.created {
		if !there[uid] {
			pods = append(pods, pod)
		}
	}
	for uid := range ahead.deleted {
		if !there[uid] && ahead.created[uid] == nil {
			deleted = append(deleted, uid)
		}
	}
	r.ledger.shown(job, created, deleted)
	return pods
}

func (r *JobReconciler) cached(ctx context.Context, job *v1alpha1.ElasticJob) ([]*corev1.Pod, error) {
	var list corev1.PodList
	err := r.client.List(ctx, &list, client.InNamespace(job.Namespace),
		client.MatchingFields{ownerIndex: string(job.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing pods of the cache: %w", err)
	}
	pods := make([]*corev1.Pod, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// makeSure finds out which pods a job has that the cache does not show. Where this process has not looked at the job
// before, its first look says whether there can be any.
func (r *JobReconciler) makeSure(ctx context.Context, job *v1alpha1.ElasticJob, now time.Time) error {
	if r.ledger.looked(job.UID) {
		return r.askServer(ctx, job, now)
	}
	before, err := r.first.of(ctx, job.UID)
	if err != nil {
		return err
	}
	known, err := r.known(ctx, job)
	if err != nil {
		return err
	}
	for _, pod := range before {
		if !known[pod] {
			if err := r.askServer(ctx, job, now); err != nil {
				return err
			}
			r.first.forget(job.UID)
			return nil
		}
	}
	r.ledger.settle(job.UID, nil, now)
	r.first.forget(job.UID)
	return nil
}

// known are the pods of a job that the cache shows.
func (r *JobReconciler) known(ctx context.Context, job *v1alpha1.ElasticJob) (map[types.UID]bool, error) {
	cached, err := r.cached(ctx, job)
	if err != nil {
		return nil, err
	}
	known := map[types.UID]bool{}
	for _, pod := range cached {
		known[pod.UID] = true
	}
	return known, nil
}

// askServer lists a job's pods from the API server, not from the cache.
func (r *JobReconciler) askServer(ctx context.Context, job *v1alpha1.ElasticJob, now time.Time) error {
	var list corev1.PodList
	err := r.server.List(ctx, &list, client.InNamespace(job.Namespace),
		client.MatchingLabels{elasticjob.LabelName: job.Name})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	known, err := r.known(ctx, job)
	if err != nil {
		return err
	}
	var missing []*corev1.Pod
	for i := range list.Items {
		if pod := &list.Items[i]; v1alpha1.OwnerUID(pod) == job.UID && !known[pod.UID] {
			missing = append(missing, pod)
		}
	}
	r.ledger.settle(job.UID, missing, now)
	return nil
}
