package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"phalanx/operator/api/v1alpha1"
	"phalanx/operator/internal/elasticjob"
	"phalanx/operator/internal/engine"
	"phalanx/operator/internal/link"
)

// A request that fails is tried again after 5 ms, and then after twice as long each time, up to this.
const retryAfterMax = 30 * time.Second

// Settings are those of the operator's controllers.
type Settings struct {
	Options  elasticjob.Options
	Policy   engine.Policy
	Workers  int       // jobs that are worked on at a time
	Self     link.Self // for the masters
	Switches switches  // nil: nobody knows under which switches nodes are
	// NoticeTaints are those by which somebody says that a node is about to go.
	NoticeTaints []string
}

// Setup adds the controllers to a manager.
func Setup(ctx context.Context, manager ctrl.Manager, settings Settings) error {
	if err := manager.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, ownerIndex, ownerOf); err != nil {
		return fmt.Errorf("indexing pods by owner: %w", err)
	}
	if err := manager.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, nodeIndex, nodeOf); err != nil {
		return fmt.Errorf("indexing pods by node: %w", err)
	}
	if err := setupJobs(ctx, manager, settings); err != nil {
		return fmt.Errorf("setting up ElasticJob: %w", err)
	}
	if err := setupPlans(manager); err != nil {
		return fmt.Errorf("setting up ScalePlan: %w", err)
	}
	return nil
}

func setupJobs(ctx context.Context, manager ctrl.Manager, settings Settings) error {
	heard := &heard{}
	cached, server := manager.GetClient(), manager.GetAPIReader()
	nodes := &nodes{cache: cached, server: server, notices: settings.NoticeTaints}
	if err := manager.GetFieldIndexer().IndexField(ctx, &corev1.Node{}, noticeIndex, nodes.noticed); err != nil {
		return fmt.Errorf("indexing nodes by notice: %w", err)
	}
	reconciler := &JobReconciler{
		client: cached, server: server, events: manager.GetEventRecorder("phalanx-operator"),
		switches: settings.Switches, masters: link.New(ctx, settings.Self, heard.ring), ledger: newLedger(),
		first:  &firstLook{server: server},
		nodes:  nodes,
		policy: settings.Policy, options: settings.Options, now: time.Now,
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, retryAfterMax)
	return builder.ControllerManagedBy(manager).
		For(&v1alpha1.ElasticJob{}, builder.WithPredicates(jobNews())).
		Owns(&corev1.Service{}).
		Watches(&corev1.Pod{}, &podHandler{reconciler.ledger}).
		WatchesRawSource(source.Func(heard.start)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(reconciler.nodes.jobsOn),
			builder.WithPredicates(nodes.news())).
		WithOptions(controller.Options{MaxConcurrentReconciles: settings.Workers, RateLimiter: limiter}).
		Complete(reconciler)
}

// jobNews is a change of a job's spec or of its annotations, which count as well. A status is the operator's own.
func jobNews() predicate.Predicate {
	return predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
}

type requests = workqueue.TypedRateLimitingInterface[reconcile.Request]

// heard leads from what a job's master says to the job.
type heard struct {
	mu    sync.Mutex
	queue requests // nil: the controller does not run yet
}

func (h *heard) start(_ context.Context, queue requests) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue = queue
	return nil
}

func (h *heard) ring(job types.NamespacedName) {
	h.mu.Lock()
	queue := h.queue
	h.mu.Unlock()
	if queue != nil {
		queue.Add(reconcile.Request{NamespacedName: job})
	}
}

// podHandler leads from a pod to its job. It goes by the label, not by the owner: a job that waits for a name that a
// pod of its namesake still has wants to hear that this one is gone.
type podHandler struct{ ledger *ledger }

var _ handler.EventHandler = (*podHandler)(nil)

func (h *podHandler) Create(_ context.Context, event event.CreateEvent, queue requests) {
	h.heard(event.Object, false, queue)
}

func (h *podHandler) Update(_ context.Context, event event.UpdateEvent, queue requests) {
	h.heard(event.ObjectNew, false, queue)
}

func (h *podHandler) Delete(_ context.Context, event event.DeleteEvent, queue requests) {
	h.heard(event.Object, true, queue)
}

func (h *podHandler) Generic(context.Context, event.GenericEvent, requests) {}

func (h *podHandler) heard(object client.Object, gone bool, queue requests) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	if job := v1alpha1.OwnerUID(pod); job != "" {
		h.ledger.saw(job, pod, gone)
	}
	if name := pod.Labels[elasticjob.LabelName]; name != "" {
		queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: name}})
	}
}

func ownUID(pod engine.Pod) types.UID { return types.UID(pod.UID) }
