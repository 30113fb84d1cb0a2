package nodetaint

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"phalanx/operator/api/v1alpha1"
)

// blamedIndex finds the jobs that avoid a node, markedIndex the nodes that are marked.
const (
	blamedIndex = "status.excludedNodes.name"
	markedIndex = "unhealthy"
)

// atMost is how many nodes in a hundred are tainted at once, and one in any case: a job's programs say what a bad node
// is, and nobody's program is to empty a cluster.
const atMost = 10

// Keeper puts taints on nodes and takes them off. Its role is not in the generated one: it is given where taints are
// allowed.
type Keeper struct {
	client client.Client
	events events.EventRecorder
	now    func() time.Time
}

var _ reconcile.Reconciler = (*Keeper)(nil)

// Setup adds the keeper to a manager.
func Setup(ctx context.Context, manager ctrl.Manager) error {
	k := &Keeper{manager.GetClient(), manager.GetEventRecorder("phalanx-operator"), time.Now}
	indexer := manager.GetFieldIndexer()
	if err := indexer.IndexField(ctx, &v1alpha1.ElasticJob{}, blamedIndex, blamedBy); err != nil {
		return fmt.Errorf("indexing jobs by nodes that they avoid: %w", err)
	}
	if err := indexer.IndexField(ctx, &corev1.Node{}, markedIndex, marked); err != nil {
		return fmt.Errorf("indexing nodes by mark: %w", err)
	}
	err := builder.ControllerManagedBy(manager).
		Named("nodetaint").
		For(&corev1.Node{}, builder.WithPredicates(markNews())).
		Watches(&v1alpha1.ElasticJob{}, handler.EnqueueRequestsFromMapFunc(nodesOf), builder.WithPredicates(blameNews())).
		Complete(k)
	if err != nil {
		return fmt.Errorf("setting up taints of nodes: %w", err)
	}
	return nil
}

func blamedBy(object client.Object) []string {
	var names []string
	if job, ok := object.(*v1alpha1.ElasticJob); ok {
		for _, node := range job.Status.ExcludedNodes {
			names = append(names, node.Name)
		}
	}
	return names
}

func marked(node client.Object) []string {
	if node.GetAnnotations()[Key] != "" {
		return []string{"yes"}
	}
	return nil
}

func nodesOf(_ context.Context, job client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, name := range blamedBy(job) {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return requests
}

// markNews: nodes beat, and nothing of that is ours.
func markNews() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event event.UpdateEvent) bool {
		return event.ObjectOld.GetAnnotations()[Key] != event.ObjectNew.GetAnnotations()[Key]
	}}
}

func blameNews() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event event.UpdateEvent) bool {
		before, wasJob := event.ObjectOld.(*v1alpha1.ElasticJob)
		after, isJob := event.ObjectNew.(*v1alpha1.ElasticJob)
		return wasJob && isJob &&
			!equality.Semantic.DeepEqual(before.Status.ExcludedNodes, after.Status.ExcludedNodes)
	}}
}

// Reconcile brings one node's taint to what jobs say of it.
func (k *Keeper) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var node corev1.Node
	if err := k.client.Get(ctx, request.NamespacedName, &node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	blames, err := k.blames(ctx, node.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	now := k.now()
	change, blame, at := Decide(node.Annotations[Key], blames, now)
	if change == Taint && node.Annotations[Key] == "" {
		room, err := k.roomAt(ctx, now)
		if err != nil {
			return reconcile.Result{}, err
		}
		if room.After(now) {
			k.events.Eventf(&node, nil, corev1.EventTypeWarning, "NotTainted", "Taint",
				"%d in 100 nodes are tainted already; %s: %s", atMost, blame.Job, blame.Reason)
			return reconcile.Result{RequeueAfter: room.Sub(now)}, nil
		}
	}
	if change != Keep {
		if err := k.carryOut(ctx, &node, change, blame); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	if at.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(at.Sub(now), time.Millisecond)}, nil
}

func (k *Keeper) blames(ctx context.Context, node string) ([]Blame, error) {
	var jobs v1alpha1.ElasticJobList
	if err := k.client.List(ctx, &jobs, client.MatchingFields{blamedIndex: node}); err != nil {
		return nil, fmt.Errorf("listing the jobs that avoid node %s: %w", node, err)
	}
	var blames []Blame
	for i := range jobs.Items {
		job := &jobs.Items[i]
		for _, excluded := range job.Status.ExcludedNodes {
			if excluded.Name == node && !excluded.Refused {
				blames = append(blames, Blame{job.Namespace + "/" + job.Name, excluded.Reason, excluded.Until.Time})
			}
		}
	}
	return blames, nil
}

// roomAt is when one node more may be tainted: now, or when the first of those that are is no longer.
func (k *Keeper) roomAt(ctx context.Context, now time.Time) (time.Time, error) {
	var all, tainted corev1.NodeList
	if err := k.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return now, fmt.Errorf("counting nodes: %w", err)
	}
	err := k.client.List(ctx, &tainted, client.MatchingFields{markedIndex: "yes"}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return now, fmt.Errorf("counting tainted nodes: %w", err)
	}
	if len(tainted.Items) < max(1, len(all.Items)*atMost/100) {
		return now, nil
	}
	var first time.Time
	for i := range tainted.Items {
		if until := readMark(tainted.Items[i].Annotations[Key]).Until; first.IsZero() || until.Before(first) {
			first = until
		}
	}
	if soon := now.Add(time.Second); first.Before(soon) {
		return soon, nil // that one's own turn may come a moment later
	}
	return first, nil
}

func (k *Keeper) carryOut(ctx context.Context, node *corev1.Node, change Change, blame Blame) error {
	text, err := patch(node, change, blame)
	if err != nil {
		return err
	}
	if err := k.client.Patch(ctx, node, client.RawPatch(types.MergePatchType, text)); err != nil {
		return fmt.Errorf("tainting node %s: %w", node.Name, err)
	}
	log := ctrl.Log.WithName("nodetaint").WithValues("node", node.Name, "job", blame.Job)
	if change == Clear {
		log.Info("the taint is taken off")
		k.events.Eventf(node, nil, corev1.EventTypeNormal, "Untainted", "Untaint", "no job has blamed it for a while")
		return nil
	}
	log.Info("tainted", "why", blame.Reason, "until", blame.Until)
	k.events.Eventf(node, nil, corev1.EventTypeWarning, "Tainted", "Taint", "%s: %.800s; until %s", blame.Job,
		blame.Reason, blame.Until.UTC().Format(time.RFC3339))
	return nil
}
