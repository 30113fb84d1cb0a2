package keeper

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/gang"
)

// What fails is tried again after 5 ms, and then after twice as long each time, up to this.
const retryAfterMax = 30 * time.Second

// Setup adds the keeper to a manager. It is woken by a job that changes, by a pod that is made (a PodGroup
// that somebody has deleted is back with it), and by a scheduler that is installed later than its jobs.
func Setup(manager ctrl.Manager, workers int) error {
	k := &Keeper{
		client: manager.GetClient(), events: manager.GetEventRecorder("phalanx-operator"), now: time.Now,
	}
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(definitionKind)
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, retryAfterMax)
	err := builder.ControllerManagedBy(manager).
		Named("gang").
		For(&v1alpha1.ElasticJob{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, firstStatus()))).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(jobOfPod), builder.WithPredicates(made())).
		WatchesMetadata(definition, handler.EnqueueRequestsFromMapFunc(k.jobsOfDefinition), builder.WithPredicates(
			predicate.NewPredicateFuncs(func(object client.Object) bool { return gang.OfDefinition(object.GetName()) != nil }))).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers, RateLimiter: limiter}).
		Complete(k)
	if err != nil {
		return fmt.Errorf("setting up gangs: %w", err)
	}
	return nil
}

// firstStatus is when a job gets its first one: a condition cannot be alone in it.
func firstStatus() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event event.UpdateEvent) bool {
		before, wasJob := event.ObjectOld.(*v1alpha1.ElasticJob)
		after, isJob := event.ObjectNew.(*v1alpha1.ElasticJob)
		return wasJob && isJob && before.Status.ObservedGeneration == 0 && after.Status.ObservedGeneration != 0
	}}
}

// made: whether its job has a gang says the job. The cache keeps of a pod only what others look at, and not its marks.
func made() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

func jobOfPod(_ context.Context, pod client.Object) []reconcile.Request {
	name := types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetLabels()[elasticjob.LabelName]}
	return []reconcile.Request{{NamespacedName: name}}
}

// jobsOfDefinition are those that wait for PodGroups of this kind, or have some.
func (k *Keeper) jobsOfDefinition(ctx context.Context, definition client.Object) []reconcile.Request {
	scheduler := gang.OfDefinition(definition.GetName())
	var jobs v1alpha1.ElasticJobList
	if err := k.client.List(ctx, &jobs); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing jobs of the cache")
		return nil
	}
	var requests []reconcile.Request
	for i := range jobs.Items {
		if wanted, err := gang.Of(&jobs.Items[i]); err == nil && wanted != nil && wanted.Scheduler == scheduler {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&jobs.Items[i])})
		}
	}
	return requests
}
